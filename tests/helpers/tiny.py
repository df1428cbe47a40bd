"""Mechanisms that do one thing each, as told: for tests of what asks them."""

import asyncio
import math
from collections.abc import Callable

from untail.envs import Environment, Turn
from untail.rollout.live import GroupPlan, LiveGroup, Member, Route, State
from untail.rollout.points import (
    Admit,
    Finish,
    GroupPoint,
    Keep,
    Lane,
    Mechanism,
    Move,
    Place,
    Rest,
    Stride,
    Strider,
    Verdict,
    View,
    Watch,
)
from untail.types import Group

Who = Callable[[int, int], bool]
"""By the numbers of the prompt and of the member in its group."""
Made = type[Mechanism]
ALL: Who = lambda prompt, member: True


def numbers(member: Member) -> tuple[int, int]:
    return member.trajectory.prompt.tokens[0], int(member.id.rpartition("/")[2])


def strides(tokens: int, in_place: bool = False) -> Made:
    class Strides(Mechanism, Strider):
        def stride(self, member: Member, view: View) -> Stride:
            return Stride(tokens, in_place)

    return Strides


def stops(at: int, stopped: str = "penalty", reason: str = "bad", who: Who = ALL, act: str = "stop") -> Made:
    """Fires from so many tokens on."""

    class Stops(Mechanism, Watch):
        def look(self, member: Member, view: View) -> Verdict | None:
            return Verdict(act, reason, stopped) if member.length >= at and who(*numbers(member)) else None

    return Stops


def prunes(who: Who, stopped: str = "penalty", reason: str = "pruned") -> Made:
    """Between segments."""

    class Prunes(Mechanism, GroupPoint):
        def __init__(self, config):
            super().__init__(config)
            self.asked: list[list[str]] = []  # who was open

        def decide(self, group: LiveGroup, view: View) -> dict[str, Verdict]:
            self.asked.append(sorted(member.id for member in group.open))
            assert group.open
            return {m.id: Verdict("stop", reason, stopped) for m in group.open if who(*numbers(m))}

    return Prunes


def refills(groups: int = 0) -> Made:
    class Refills(Mechanism, Lane):
        def refill(self, view: View) -> int:
            return groups

    return Refills


def routes(route: Callable[[Member], Route | None]) -> Made:
    class Routes(Mechanism, Lane):
        def route(self, member: Member, view: View) -> Route | None:
            return route(member)

    return Routes


def shapes(**fields: object) -> Made:
    """Every plan with these fields."""

    class Shapes(Mechanism, Admit):
        def shape(self, plan: GroupPlan, view: View) -> GroupPlan:
            for name, value in fields.items():
                setattr(plan, name, value)
            return plan

    return Shapes


def closes(after: float = math.inf, what: Rest = "close", groups: int | None = None) -> Made:
    """So many seconds after a step's begin; `groups` are started in a round."""

    class Closes(Mechanism, Finish):
        rest = what

        def starts(self, view: View) -> int:
            return super().starts(view) if groups is None else groups - len(view.groups) - len(view.ready)

        def closes_at(self, view: View) -> float:
            return view.began + after

    return Closes


def talks(
    reply: Callable[[Turn], str | None] = lambda turn: "abc",
    seconds: Callable[[Turn], float] = lambda turn: 0.0,
    latency: Callable[[Turn], float] = lambda turn: 0.0,
    **fields: object,
) -> Environment:
    """Works for so many `seconds`, then replies, and seems to have taken as many more as `latency` says."""

    class Talks(Environment):
        async def reply(self, turn: Turn) -> str | None:
            await asyncio.sleep(seconds(turn))
            return reply(turn)

        def latency_s(self, turn: Turn) -> float:
            return latency(turn)

    return Talks(Environment.Config(**fields))


def keeps(wanted: Callable[[Group], bool]) -> Made:
    class Keeps(Mechanism, Keep):
        def keeps(self, group: Group, view: View) -> bool:
            return wanted(group)

    return Keeps


class Mover(Mechanism, Place):
    """Everything on engine 0 goes to engine 1 the second time that somebody asks."""

    every = 3.0

    def __init__(self, config):
        super().__init__(config)
        self.asked = []

    def moves(self, view):
        self.asked.append(view.now)
        running = [m for group in view.groups for m in group.members if m.state is State.RUNNING]
        return [Move(m, 1) for m in running if m.engine == 0] if len(self.asked) == 2 else []
