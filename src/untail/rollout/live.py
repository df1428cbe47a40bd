"""The nouns of a rollout under way: a group's plan, the group, its members.

Invariant: a member is in exactly one state, and only RUNNING members and those whose engine has not yet let go of them
hold a slot. A trajectory holds every token that was generated for it up to where it ended or was stopped; nothing is
ever taken out of it.
"""

from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from untail.envs.base import Answer
from untail.history.predictor import Prediction
from untail.types import Prompt, Trajectory


@dataclass(slots=True)
class GroupPlan:
    """What admission decides about one group."""

    prompt: Prompt
    size: int  # trajectories to start
    keep: int  # the group is whole once so many have finished; the others are then cancelled
    budget: int  # response tokens each may have
    predicted: Prediction
    priority: float = 0.0  # among new work, the highest goes first
    truncated_reward: float | None = None  # instead of 0, for one that reaches its budget without any reward


class State(Enum):
    WAITING = "waiting"  # for a slot: new, or between two segments
    RUNNING = "running"  # in a slot
    PARKED = "parked"  # its turn is over; its environment is to reply
    SCORING = "scoring"  # ended by itself; its reward is on its way
    DONE = "done"  # its reward is known, or it was stopped
    GONE = "gone"  # cancelled, or its engine failed


OPEN = (State.WAITING, State.RUNNING, State.PARKED)


@dataclass(frozen=True, slots=True)
class Route:
    """The lane a member runs in. `share` is the part of all slots that its lane may take; with `stride` no stride
    mechanism is asked; `scale` shortens what they answer."""

    lane: str = "all"
    share: float = 1.0
    stride: int | None = None
    scale: float = 1.0


@dataclass(slots=True)
class Parking:
    """How a member's wait for its environment stands. Time counts within rollouts only: a pause between two steps, or
    a run that was broken off, is not in it."""

    since: float  # by the clock: up to when the rest is right
    waited_s: float = 0.0
    answer: Answer | None = None  # once there is one
    left_s: float = 0.0  # from then until the answer counts

    def tick(self, now: float) -> None:
        """Bring it up to now."""
        passed, self.since = now - self.since, now
        self.waited_s += passed
        if self.answer is not None:
            self.left_s = max(0.0, self.left_s - passed)


@dataclass(eq=False, slots=True)
class Member:
    """One trajectory of a group, and where it stands."""

    trajectory: Trajectory
    group: "LiveGroup"
    serial: int  # in the order of admission
    state: State = State.WAITING
    started: bool = False  # it has had a slot
    route: Route = Route()
    segment_begin: int = 0  # where its present segment began, in response tokens
    stride: int = 0  # tokens that its present segment was given
    first_stride: int = 0  # and its first
    engine: int | None = None  # where its KV is, or was when it was saved
    slot: int | None = None
    cutting: bool = False  # its engine was asked to cut it
    goes_to: int | None = None  # the engine that it is on its way to, one that takes members
    rule: str | None = None  # what its reward follows once it was stopped
    cancelled: str | None = None  # by whom: its group, or the step
    ghost: str | None = None  # it runs for the audit alone, after another member was stopped for this reason
    ghost_begin: int = 0  # the model's tokens from here on were made for the audit
    rested_in: int = 0  # the step in which it came to a boundary, until its group has been asked
    hidden: Any = None  # sum of hidden states over its present segment, where an engine gives it
    feature: Any = None  # their mean over its last segment
    partial: float | None = None  # the newest partial score, if its task has one that can tell
    partial_at: int = -1  # the response tokens that the newest one was asked for
    partial_due: bool = False  # it is on its way
    parking: Parking | None = None  # while it is parked
    reply: list[int] = field(default_factory=list)  # what its engine has not been told yet
    tool_s: float = 0.0  # how long it has been parked so far, all turns together
    ceiling: int | None = None  # tokens of the model that its sequence can hold, once replies take room from them

    @property
    def id(self) -> str:
        return self.trajectory.id

    @property
    def length(self) -> int:
        """Response tokens that the model wrote."""
        return self.trajectory.length

    @property
    def left(self) -> int:
        """Tokens of its budget that are left, as far as its sequence can hold them."""
        budget = self.group.plan.budget
        return (budget if self.ceiling is None else min(budget, self.ceiling)) - self.length

    @property
    def is_new(self) -> bool:
        return not self.trajectory.tokens

    @property
    def is_open(self) -> bool:
        """It may still get tokens."""
        return self.state in OPEN


@dataclass(eq=False, slots=True)
class LiveGroup:
    id: str
    plan: GroupPlan
    step: int  # in which it was admitted
    members: list[Member] = field(default_factory=list)

    @property
    def done(self) -> list[Member]:
        return [member for member in self.members if member.state is State.DONE]

    @property
    def oldest_version(self) -> int | None:
        """Of all tokens that will be trained, if there are any yet."""
        versions = (m.trajectory.version[0] for m in self.members if m.trajectory.version and m.state is not State.GONE)
        return min(versions, default=None)

    @property
    def open(self) -> list[Member]:
        return [member for member in self.members if member.is_open]

    @property
    def alive(self) -> list[Member]:
        """Those that nobody stopped or cancelled."""
        return [m for m in self.members if m.state is not State.GONE and m.trajectory.stopped is None]

    @property
    def free_places(self) -> int:
        """Of members that were stopped and that no copy has taken yet."""
        stopped = sum(member.trajectory.stopped is not None for member in self.members)
        return stopped - sum(member.trajectory.parent is not None for member in self.members)

    @property
    def is_whole(self) -> bool:
        """As many are done as are to be kept, or there is nobody left to wait for."""
        return len(self.done) >= self.plan.keep or all(m.state in (State.DONE, State.GONE) for m in self.members)

    @property
    def finished_lengths(self) -> list[int]:
        """Of those that ended by themselves: what its siblings tell about a member's length."""
        return [m.length for m in self.members if m.state in (State.SCORING, State.DONE) and not m.trajectory.stopped]


def copy_of(member: Member, serial: int, **changes: Any) -> Member:
    """One that goes on where the member stands, with these changes to its trajectory; what it writes does not touch the
    member's."""
    trajectory = replace(member.trajectory, **changes)
    for column in fields(Trajectory):
        value = getattr(trajectory, column.name)
        if isinstance(value, list):
            setattr(trajectory, column.name, list(value))
    copy = Member(trajectory, member.group, serial, member.state, member.started, member.route)
    copy.segment_begin, copy.stride, copy.engine = member.segment_begin, member.stride, member.engine
    copy.first_stride, copy.ceiling = member.first_stride, member.ceiling
    return copy


def ghost_of(member: Member, reason: str) -> Member:
    ghost = copy_of(member, member.serial, stopped=None)
    ghost.parking, ghost.reply = member.parking, member.reply
    ghost.cutting, ghost.goes_to = member.cutting, member.goes_to
    ghost.ghost, ghost.ghost_begin = reason, ghost.length
    return ghost
