"""The decision points: what a mechanism may decide, and what it may see.

Invariant: a mechanism changes nothing by itself. It sees the rollout through `View`, answers when it is asked, and the
controller acts. A mechanism derives from `Mechanism` and from the points it needs; the controller knows the points and
no mechanism by name. Mechanisms are asked in the order of the recipe. Unless a point says otherwise, the first answer
that is not None holds, and with none the default of plain GRPO does.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from untail.config import Strict
from untail.history.predictor import Predictor
from untail.history.store import History
from untail.registry import Registry
from untail.rollout.live import GroupPlan, LiveGroup, Member, Route
from untail.types import Group, Prompt

Rest = Literal["close", "cancel", "defer"]
"""What happens to a group that is unfinished when the step closes: it closes with the members it has, if they are two
or more, and is cancelled otherwise; it is cancelled whole; it goes on in the next step."""


class View(Protocol):
    """The rollout as a mechanism sees it. Read only."""

    @property
    def step(self) -> int:
        """From 1."""
        ...

    @property
    def began(self) -> float:
        """When the step's rollout began, by the clock."""
        ...

    @property
    def now(self) -> float: ...

    @property
    def wanted(self) -> int:
        """Groups that an update is made from."""
        ...

    @property
    def group(self) -> int:
        """Trajectories per group, as the recipe says."""
        ...

    @property
    def budget(self) -> int:
        """The longest response that the recipe allows."""
        ...

    @property
    def engines(self) -> int:
        """How many there are."""
        ...

    def overdue(self, after: int = 0) -> set[str]:
        """Groups under way that would be too stale after this step's update: it waits for them. Or those that would
        be, so many steps later."""
        ...

    @property
    def concurrency(self) -> int:
        """Slots of all engines together."""
        ...

    @property
    def running(self) -> int:
        """Members in a slot."""
        ...

    @property
    def open(self) -> int:
        """Members that may still get tokens."""
        ...

    @property
    def vocab(self) -> int:
        """Tokens that the model knows."""
        ...

    @property
    def started(self) -> int:
        """Members that were to be finished in this step, new and carried over."""
        ...

    @property
    def ended(self) -> int:
        """Those of them that have ended by themselves or were stopped."""
        ...

    @property
    def prompts(self) -> Sequence[Prompt]:
        """All that may be asked."""
        ...

    @property
    def groups(self) -> Collection[LiveGroup]:
        """Under way."""
        ...

    @property
    def ready(self) -> Sequence[Group]:
        """Whole, and waiting for the update."""
        ...

    @property
    def dropped(self) -> Sequence[Group]:
        """Whole groups of this step that were not kept."""
        ...

    @property
    def rounds(self) -> int:
        """How often new groups were admitted in this step."""
        ...

    @property
    def kv_used(self) -> float:
        """Of the fullest engine, 0 to 1."""
        ...

    @property
    def history(self) -> History: ...

    @property
    def predictor(self) -> Predictor: ...

    def trainable(self) -> int:
        """Trajectories that would be trained if the step closed now."""
        ...

    def next_in_order(self) -> Iterator[Prompt]:
        """The prompts that are not under way, in the seed's own order, epoch by epoch, from where the last step left
        off."""
        ...

    def step_seconds(self, batch: int) -> float:
        """What an engine's step with `batch` sequences takes."""
        ...

    def rng(self, *key: int | str) -> random.Random:
        """Random numbers that are the same whenever this run asks for this key in this step."""
        ...


class Mechanism:
    """`Config` is its table in the recipe. What it remembers between steps must be in `state`, as JSON."""

    class Config(Strict):
        pass

    name: str = ""  # in the recipe; set by whoever makes it from there
    sections: ClassVar[str] = ""  # of the list of mechanisms, "2.1"
    needs_entropy: ClassVar[bool] = False  # refuses a backend that cannot tell a token's entropy
    needs_fork: ClassVar[bool] = False  # refuses a backend that cannot copy a sequence
    wants_hidden: ClassVar[bool] = False  # members get `feature`, where an engine has hidden states

    @property
    def wants_partial(self) -> bool:
        """Members get `partial`, where their task has a partial score."""
        return False

    def __init__(self, config: Any):
        self.config = config

    @property
    def is_lossy(self) -> bool:
        """Some tokens are sampled from something else than the policy at the recipe's temperature: only a learner that
        corrects for that may have them."""
        return False

    @property
    def prunes_surely(self) -> bool:
        """What it prunes had next to no chance to live: a learner cannot make up for it with weights."""
        return False

    def check(self, group: int, budget: int) -> None:
        """Raise ConfigError for settings that contradict the recipe's group size or longest response."""

    def after_step(self, batch: Sequence[Group], view: View) -> None:
        """The step closed and `batch` will be trained."""

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None: ...


MECHANISMS: Registry[Mechanism] = Registry("mechanism")


class Admit:
    """Which groups are started, and how."""

    def rank(self, view: View) -> Iterator[Prompt] | None:
        """Prompts, the most wanted first; the controller takes as many as it needs and skips those under way."""
        return None

    def shape(self, plan: GroupPlan, view: View) -> GroupPlan | None:
        """The plan of one group, changed; None: this prompt is not asked now.

        Every mechanism is asked in turn and gets what the one before it made. Post: 1 <= keep <= size,
        1 <= budget <= view.budget."""
        return plan


class Lane:
    """Where a member runs."""

    def route(self, member: Member, view: View) -> Route | None:
        """Asked before its first token and at every boundary."""
        return None

    def refill(self, view: View) -> int | None:
        """How many new groups may start now; asked when a slot is free and nothing waits for it.

        With no answer, new groups start at the beginning of a round only, and what is at a boundary waits for the next
        round. A round is over when nothing runs."""
        return None


@dataclass(frozen=True, slots=True)
class Move:
    member: Member
    engine: int


class Place:
    """Which engine a member runs on, where there are several."""

    def place(self, member: Member, free: Sequence[int], view: View) -> int | None:
        """One of `free`, the engines with a free slot. Pre: its KV is nowhere yet."""
        return None

    def moves(self, view: View) -> list[Move]:
        """Running members to take elsewhere; asked every `every` seconds, and after each weight update."""
        return []

    every: float = math.inf


@dataclass(frozen=True, slots=True)
class Stride:
    """How far a member goes until its next boundary. `in_place`: it keeps its slot; otherwise it waits for one."""

    tokens: int
    in_place: bool = False


class Strider(ABC):
    """How long a segment is."""

    @abstractmethod
    def stride(self, member: Member, view: View) -> Stride | None:
        """Asked before the first token and at every boundary. Post: tokens >= 1; the controller cuts it to the
        budget that is left."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`cut`: its segment ends here. `stop`: it ends here, and its reward follows the rule `stopped`. `spare`: it goes
    on, but it was to be stopped with the probability `chance`, and the draw let it live."""

    act: Literal["cut", "stop", "spare"]
    reason: str
    stopped: Literal["penalty", "group_min", "zero", "mask"] = "penalty"
    chance: float = 1.0


class Watch(ABC):
    """Looks at a running member every `rollout.watch_every` tokens."""

    only_stops: ClassVar[bool] = False  # it need not be asked while the patience lasts

    @abstractmethod
    def look(self, member: Member, view: View) -> Verdict | None:
        """Pre: it has at least one token. The controller holds `stop` back until its patience is over."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A new member that goes on where `parent` stands, with a random stream of its own."""

    parent: Member
    heat: float = 1.0  # its temperature, in those of the recipe


class GroupPoint:
    """Looks at a whole group between segments. Members that are at a boundary wait for their siblings, and their slots
    serve others meanwhile; it is asked when each open member has come to one since it was last asked, or has ended."""

    def decide(self, group: LiveGroup, view: View) -> dict[str, Verdict]:
        """Who is pruned, by member id. Pre: every open member is at a boundary, and at least one is; what an earlier
        mechanism pruned is stopped already. The controller holds `stop` back until its patience is over; there is
        nothing to `cut`."""
        return {}

    def copies(self, group: LiveGroup, places: int, view: View) -> list[Copy]:
        """Who is copied into the places of members that were stopped, by this point or a watcher. Asked after all have
        decided. Pre: as for `decide`, and places >= 1. Post: at most `places`, and every parent is open; each copy is a
        member of the group from then on, at the same boundary."""
        return []


class Finish(ABC):
    """How a step begins and ends. All are asked: the most groups are started, and the earliest time closes."""

    rest: Rest = "close"
    contradicts: tuple[Rest, ...] = ()  # what becomes of the rest under another mechanism, and cannot beside this one

    def starts(self, view: View) -> int:
        """New groups at the beginning of a round; by default as many as a batch lacks."""
        return view.wanted - len(view.groups) - len(view.ready)

    @abstractmethod
    def closes_at(self, view: View) -> float:
        """When the step closes, by the clock: view.now or earlier for at once, infinity for not yet."""

    def waits_for(self, view: View) -> Set[str] | None:
        """Groups that the step waits for from now on: everything else rests. None: nobody makes way. The first that
        has an opinion decides."""
        return None


class Keep(ABC):
    """Which whole groups are worth an update."""

    @abstractmethod
    def keeps(self, group: Group, view: View) -> bool:
        """With False it is dropped, and another is generated in its place."""
