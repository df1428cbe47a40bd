"""A controller over scripted engines in virtual time, step by step. Every step is checked as it ends: the books
balance to the token, nobody held a slot twice, nothing is left running, and whatever was handed on early is trained.

The prompts are drawn in the order of their numbers in the first epoch. In tests a trajectory is called "3/1": the
second member of the group of prompt 3.
"""

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from tests.helpers.rollout import make_prompt
from tests.helpers.scripted import Script, Scripted, Scripts, Ticker, script_of
from untail.backends.virtual_loop import run_virtual
from untail.config import RolloutConfig
from untail.envs import Environment
from untail.history.store import History
from untail.observe.accounts import step_accounts
from untail.rewards.scorer import Score
from untail.rollout import memory
from untail.rollout.controller import Controller
from untail.rollout.mechanisms import Mechanisms
from untail.rollout.points import MECHANISMS, Mechanism
from untail.rollout.turns import Turns, Voice
from untail.types import Event, Group, Prompt, Trajectory, stream_key

MOST_EVENTS = 50_000  # of a step: a rollout that does not end fails its test instead of hanging it
FREES = ("segment", "defer", "park", "end", "left")
CONTEXT = 1000


class Numbers:
    """A turn's text is its tokens, and so is a reply's."""

    def text(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))

    def reply(self, turn: Sequence[int], text: str, role: str) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]


def drawn_in_order(count: int, seed: int) -> list[Prompt]:
    """Prompts such that the first epoch draws number 0 first."""
    places = list(range(count))
    random.Random(stream_key(seed, "epoch", 0)).shuffle(places)
    prompts = {place: make_prompt(number) for number, place in enumerate(places)}
    return [prompts[place] for place in range(count)]


def make_mechanisms(tables: dict[str, Any], config: RolloutConfig, **made_here: type[Mechanism]) -> Mechanisms:
    """Those of the tables, then those that the test has made itself: they are in the registry only meanwhile."""
    with patch.dict(MECHANISMS._classes, made_here):
        return Mechanisms({**tables, **{name: {} for name in made_here}}, config)


@dataclass
class Step:
    number: int
    batch: list[Group]
    events: list[Event]
    labels: dict[str, str] = field(repr=False)  # group id -> number of its prompt
    accounts: dict[str, int] = field(default_factory=dict)
    given: list[tuple[float, str]] = field(default_factory=list)  # when each group of the batch was handed on

    def all(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["e"] == kind]

    def one(self, kind: str) -> Event:
        (event,) = self.all(kind)
        return event

    def who(self, *kinds: str) -> list[str]:
        """Who had events of these kinds, in their order."""
        return [self.label(event["id"]) for event in self.events if event["e"] in kinds]

    def of(self, label: str, *kinds: str) -> list[Event]:
        """The events of one trajectory."""
        return [
            event
            for event in self.events
            if "id" in event and self.label(event["id"]) == label and (not kinds or event["e"] in kinds)
        ]

    def label(self, name: str) -> str:
        group, _, number = name.rpartition("/")
        return f"{self.labels[group]}/{number}"

    def groups(self, kind: str) -> list[str]:
        """The prompts' numbers of the groups that had such events."""
        return [self.labels[event["group"]] for event in self.all(kind)]

    @property
    def trained(self) -> dict[str, Trajectory]:
        return {self.label(t.id): t for group in self.batch for t in group.trajectories}

    @property
    def seconds(self) -> float:
        return self.one("rolled_out")["t"] - self.one("step")["t"]


class Rig:
    def __init__(
        self,
        scripts: Scripts,
        tables: dict[str, Any] | None = None,
        *made_here: type[Mechanism],
        engines: int = 1,
        slots: int = 64,
        pool: int = 16,
        seed: int = 0,
        history: History | None = None,
        backend: dict[str, Any] | None = None,
        environment: Environment | None = None,
        voice: Voice | None = None,
        context: int = CONTEXT,
        **rollout: Any,
    ):
        """`pool`: prompts that there are; `backend`: what the engines are; `context`: tokens of a sequence in an
        environment's eyes; `rollout`: fields of the recipe, where 0 is the default of `audit`."""
        self.scripts = scripts
        self.config = RolloutConfig(**{"prompts": 2, "group": 2, "max_tokens": 100, "audit": 0.0, **rollout})
        named = {cls.__name__.lower(): cls for cls in made_here}
        self.mechanisms = make_mechanisms(tables or {}, self.config, **named)
        ticker = Ticker()
        self.backends = [Scripted(scripts, ticker=ticker, **(backend or {})) for _ in range(engines)]
        self.history = history or History.open(None, "test", "test")
        self.prompts = drawn_in_order(pool, seed)
        self.slots = slots
        clock = self.backends[0].clock
        turns = environment and Turns(environment, voice or Numbers(), self._score, clock, context, 100, seed)
        self.controller = Controller(
            list(self.backends),
            slots,
            self.prompts,
            self._score,
            self.config,
            self.mechanisms,
            self.history,
            stop_ids=(0,),
            vocab=100,
            seed=seed,
            turns=turns,
        )
        self.stage = self.controller.stage
        self.labels: dict[str, str] = {}
        self.done = 0  # steps

    @property
    def backend(self) -> Scripted:
        (backend,) = self.backends
        return backend

    def run(self, steps: int = 1) -> list[Step]:
        """So many steps from the beginning, then the end."""
        return run_virtual(self._run(steps))

    def step(self) -> Step:
        """The only one."""
        (step,) = self.run(1)
        return step

    async def _run(self, steps: int) -> list[Step]:
        try:
            return [await self.roll_out() for _ in range(steps)]
        finally:
            await self.close()

    async def roll_out(self) -> Step:
        self.done += 1
        events: list[Event] = []

        def emit(event: Event) -> None:
            events.append(json.loads(json.dumps(event)))  # as it was then, and as JSON knows it
            assert len(events) < MOST_EVENTS, "the step does not end"
            if event["e"] == "admit":
                number = next(p.tokens[0] for p in self.prompts if p.id == event["prompt"])
                self.labels[event["group"]] = str(number)

        sampled = self._sampled()
        given: list[tuple[float, str]] = []
        give = lambda group: given.append((self.stage.clock.now(), group.id))
        batch = await self.controller.roll_out(self.done, emit, give=give)
        now = self.stage.clock.now()
        events += [{"e": kind, "t": now, "step": self.done} for kind in ("update", "done")]
        step = Step(self.done, batch, events, self.labels, given=given)
        step.accounts = step_accounts(events)
        self._check(step, self._sampled() - sampled)
        for backend in self.backends:
            await backend.load_weights(None, self.done)
        return step

    async def close(self) -> None:
        await self.controller.close()
        for backend in self.backends:
            assert not backend.alive, "something runs on"

    def saved(self) -> dict[str, Any]:
        """What a checkpoint would hold, through JSON."""
        return json.loads(json.dumps(memory.save(self.stage)))

    def restore(self, state: dict[str, Any], step: int, labels: dict[str, str]) -> None:
        """Go on after `step`."""
        memory.restore(self.stage, state)
        self.done = step
        self.labels.update(labels)
        for backend in self.backends:
            backend.version = step

    def _sampled(self) -> int:
        return sum(backend.sampled for backend in self.backends)

    async def _score(self, trajectory: Trajectory) -> Score:
        script = script_of(self.scripts, trajectory.prompt.tokens, trajectory.id)
        if script.score_s:
            await asyncio.sleep(script.score_s)
        if script.score_fails:
            raise ValueError(f"cannot score {trajectory.id}")
        return Score(script.reward if trajectory.end == "stop" else 0.0)

    def _check(self, step: Step, sampled: int) -> None:
        assert sorted(name for _, name in step.given) == sorted(group.id for group in step.batch), "each once"
        assert step.accounts["unaccounted"] == 0, step.accounts
        assert step.accounts["generated"] == sampled, "a token did not reach the controller, or was counted twice"
        assert step.accounts["carried_out"] == self.stage.pool.carried
        assert self.stage.fleet.slots.free == self.stage.fleet.slots.total
        assert not self.stage.busy
        assert all(backend.running == 0 for backend in self.backends)
        self._check_that_nobody_is_lost()
        _check_slots(step.events, self.slots)
        for trajectory in step.trained.values():
            _check_tokens(trajectory)

    def _check_that_nobody_is_lost(self) -> None:
        stage = self.stage
        waits = [*stage.queue, *stage.resting, *stage.parked]
        unfinished = [member for group in stage.pool.live.values() for member in group.open]
        assert {id(member) for member in waits} == {id(m) for m in [*unfinished, *stage.pool.ghosts.values()]}
        assert {member.id for member in waits} == set(stage.members)


def _check_slots(events: list[Event], slots: int) -> None:
    """Nobody took a slot that was held, and everybody left."""
    held: dict[tuple[int, int], str] = {}
    for event in events:
        if event["e"] in ("start", "resume"):
            place = (event["engine"], event["slot"])
            assert place not in held, f"{event} takes the slot of {held[place]}"
            assert 0 <= event["slot"] < slots
            assert event["id"] not in held.values(), f"{event} has a slot already"
            held[place] = event["id"]
        elif event["e"] in FREES:
            held = {place: name for place, name in held.items() if name != event["id"]}
    assert not held, f"{held} did not leave"


def _check_tokens(trajectory: Trajectory) -> None:
    """None is missing and none is there twice; versions never fall, and segments lie side by side."""
    count = len(trajectory.tokens)
    ours = [(place, token) for place, token in enumerate(trajectory.tokens, 1) if trajectory.from_model[place - 1]]
    before_a_reply = {place for place, _ in ours if place < count and not trajectory.from_model[place]}
    ends = {place for place, _ in ours if trajectory.p_eos[place - 1] == 1.0}
    assert before_a_reply <= ends <= before_a_reply | {count}
    assert trajectory.end != "stop" or count in ends
    assert ours == [(place, 0 if place in ends else place) for place, _ in ours], trajectory
    assert trajectory.reply_tokens == count - len(ours)
    columns = ("policy_logprob", "behaviour_logprob", "entropy", "p_eos", "version", "mixed_kv", "lossy", "from_model")
    assert {len(getattr(trajectory, column)) for column in columns} == {count}
    assert trajectory.version == sorted(trajectory.version)
    ends = [0, *(segment.end for segment in trajectory.segments)]
    assert [segment.begin for segment in trajectory.segments] == ends[:-1]
    assert ends[-1] == count


def lengths(*table: tuple[int, ...], default: int = 4, **more: Any) -> Scripts:
    """One row per prompt, one length per member (the last for all that follow)."""

    def script(prompt: int, member: int) -> Script:
        row = table[prompt] if prompt < len(table) else (default,)
        return Script(row[min(member, len(row) - 1)], **more)

    return script


def by(choose: Callable[[int, int], Any]) -> Scripts:
    """The script is what `choose` makes of the prompt's and the member's number: a length, or a whole script."""
    return lambda prompt, member: s if isinstance(s := choose(prompt, member), Script) else Script(s)
