"""Everything that a rollout keeps between two decisions, in one place for those who act on it.

Invariant: every member that an engine or a scorer may still speak of is in `members` under the name of its sequence; a
ghost takes the place of the member it was made from. `busy` are those in a slot and those whose reward is on its way,
`parked` those whose environment is to reply.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from untail.backends.base import Backend
from untail.config import RolloutConfig
from untail.envs import Answer
from untail.history.past import PastResponses
from untail.history.predictor import Predictor
from untail.history.store import History
from untail.rewards.scorer import PartialScore, Score
from untail.rollout.audit import Audit
from untail.rollout.fleet import Fleet
from untail.rollout.live import Member
from untail.rollout.mechanisms import Mechanisms
from untail.rollout.meter import Meter
from untail.rollout.order import PromptOrder
from untail.rollout.pool import Pool
from untail.rollout.queue import Queue
from untail.rollout.turns import Turns
from untail.rollout.view import LiveView
from untail.types import Chunk, Event, Prompt, Trajectory

Emit = Callable[[Event], None]
ScoreIt = Callable[[Trajectory], Awaitable[Score]]
ScorePart = Callable[[Trajectory], Awaitable[PartialScore]]
Item = tuple[str, Chunk | Exception | Score | PartialScore | Answer] | None
"""What the inbox carries: something about a member, or None: an alarm went off."""


class Stage:
    def __init__(
        self,
        backends: list[Backend],
        slots_each: int,
        prompts: list[Prompt],
        score: ScoreIt,
        config: RolloutConfig,
        mechanisms: Mechanisms,
        history: History,
        vocab: int,
        seed: int,
        partial: ScorePart | None = None,
        turns: Turns | None = None,
        wants_past: bool = False,
    ):
        self.config = config
        self.mechanisms = mechanisms
        self.history = history
        self.score = score
        self.partial = partial
        self.vocab = vocab
        self.seed = seed
        self.inbox: asyncio.Queue[Item] = asyncio.Queue()
        self.turns = turns
        put = lambda name, item: self.inbox.put_nowait((name, item))
        past = PastResponses(history).of if wants_past else None
        self.fleet = Fleet(backends, slots_each, put, mechanisms.wants_hidden, hold=turns is not None, past=past)
        self.clock = self.fleet.clock
        self.meter = Meter(backends)
        self.predictor = Predictor(history, config.max_tokens)
        self.order = PromptOrder(prompts, seed)
        self.pool = Pool(config.max_staleness)
        self.audit = Audit(config.audit, config.max_false_kills, seed)
        self.queue = Queue()
        self.resting: list[Member] = []  # at a boundary, until the next round
        self.members: dict[str, Member] = {}
        self.busy: set[Member] = set()
        self.parked: list[Member] = []  # in the order in which they were
        self.serial = 0  # members admitted so far
        self.closing = False  # the step takes no more decisions
        self.failure: Exception | None = None  # the first of the step
        self.fatal: Exception | None = None  # nothing can go on
        self.view = LiveView(self)
        self.emit: Emit = lambda event: None
        self.is_on = False  # a step is under way: what is recorded belongs to it
        self._announced: list[tuple[str, dict[str, Any]]] = []

    @property
    def batch_size(self) -> int | None:
        """Groups that the step takes of those that are ready, if there are as many; None: all."""
        return None if self.mechanisms.rest == "close" else self.config.prompts

    def announce(self, kind: str, **fields: Any) -> None:
        """As `record`, of what may happen between two steps too: then it is recorded when the next begins."""
        if self.is_on:
            self.record(kind, **fields)
        else:
            self._announced.append((kind, fields))

    def record_announced(self) -> None:
        announced, self._announced = self._announced, []
        for kind, fields in announced:
            self.record(kind, **fields)

    def record(self, kind: str, **fields: Any) -> None:
        self.emit({"e": kind, "t": self.clock.now(), "step": self.view.step, **fields})
