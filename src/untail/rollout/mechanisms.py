"""A recipe's mechanisms, asked point by point. Importing this module registers all that ship with untail.

Invariant: this is the one place that says how several answers to one question become one: see points.py.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import untail.rollout.admit
import untail.rollout.finish
import untail.rollout.lanes
import untail.rollout.stride
import untail.rollout.watch  # noqa: F401  (these five register what is in them)
from untail.backends.base import Capabilities
from untail.config import Recipe, RolloutConfig, parse
from untail.errors import ConfigError
from untail.rollout.live import GroupPlan, LiveGroup, Member, Route
from untail.rollout.points import (
    MECHANISMS,
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
from untail.types import Group, Prompt

P = TypeVar("P")


def resolved(recipe: Recipe) -> Recipe:
    """The recipe with every field of its mechanisms written out, and without those it leaves out."""
    configs = {name: MECHANISMS.get(name).Config for name in recipe.mechanisms}  # one left out has to be known, too
    tables = {
        name: parse(configs[name], table, f"mechanisms.{name}").model_dump(mode="json", exclude_none=True)
        for name, table in recipe.mechanisms.items()
        if table is not False
    }
    return recipe.model_copy(update={"mechanisms": tables})


class Mechanisms:
    def __init__(self, tables: dict[str, Any], rollout: RolloutConfig):
        """`tables` as in the recipe: by name, in the order in which they are asked."""
        self.by_name: dict[str, Mechanism] = {}
        for name, table in tables.items():
            MECHANISMS.get(name)
            if table is not False:
                self.by_name[name] = MECHANISMS.build({**table, "name": name}, f"mechanisms.{name}")
        for mechanism in self.by_name.values():
            mechanism.check(rollout.group, rollout.max_tokens)
        self._refuse_two_of("ranks prompts", Admit, "rank")
        self._refuse_two_of("sets strides", Strider, "stride")
        self._refuse_two_of("routes members", Lane, "route")
        self._refuse_two_of("places members", Place, "place")
        self.admits = self._of(Admit)
        self.lanes = self._of(Lane)
        self.places = self._of(Place)
        self.striders = self._of(Strider)
        self.watches = self._of(Watch)
        self.group_points = self._of(GroupPoint)
        self.finishes = self._of(Finish)
        self.keepers = self._of(Keep)
        self.refills = any(type(lane).refill is not Lane.refill for lane in self.lanes)

    def check(self, capabilities: Capabilities, backend: str) -> None:
        for name, mechanism in self.by_name.items():
            if mechanism.needs_entropy and capabilities.entropy == "none":
                raise ConfigError(
                    f"mechanisms.{name} needs the entropy of every token, which the backend {backend!r} does not give; "
                    f"use another backend, or leave it out with --set mechanisms.{name}=false"
                )

    @property
    def lossy(self) -> list[str]:
        """Those that sample from something else than the policy."""
        return [name for name, mechanism in self.by_name.items() if mechanism.is_lossy]

    @property
    def rest(self) -> Rest:
        """What becomes of unfinished groups: whoever keeps more wins."""
        rests = {mechanism.rest for mechanism in self.finishes}
        return next((rest for rest in ("defer", "cancel") if rest in rests), "close")

    @property
    def looks(self) -> bool:
        """Somebody wants to see tokens before a segment is over."""
        return bool(self.watches) or any(place.every < math.inf for place in self.places)

    def rank(self, view: View) -> Iterator[Prompt]:
        return next((ranked for a in self.admits if (ranked := a.rank(view)) is not None), view.next_in_order())

    def shape(self, plan: GroupPlan, view: View) -> GroupPlan | None:
        for mechanism in self.admits:
            shaped = mechanism.shape(plan, view)
            if shaped is None:
                return None
            plan = shaped
        return plan

    def route(self, member: Member, view: View) -> Route:
        return next((route for lane in self.lanes if (route := lane.route(member, view)) is not None), Route())

    def refill(self, view: View) -> int:
        return max((count for lane in self.lanes if (count := lane.refill(view)) is not None), default=0)

    def place(self, member: Member, free: Sequence[int], view: View) -> int:
        """By default the emptiest engine."""
        return next((e for place in self.places if (e := place.place(member, free, view)) is not None), free[0])

    def moves(self, view: View) -> list[Move]:
        return [move for place in self.places for move in place.moves(view)]

    def stride(self, member: Member, view: View) -> Stride:
        """Within the budget that is left. Pre: there is some."""
        stride = Stride(member.left)
        if member.route.stride is not None:
            stride = Stride(member.route.stride)
        elif self.striders:
            asked = self.striders[0].stride(member, view)
            if asked is not None:
                stride = Stride(round(asked.tokens * member.route.scale), asked.in_place)
        return Stride(max(1, min(stride.tokens, member.left)), stride.in_place)

    def look(self, member: Member, view: View, stops: bool, off: set[str]) -> Verdict | None:
        """The first verdict; `stops` is whether its patience is over, `off` are reasons that do not count."""
        for mechanism in self.watches:
            verdict = mechanism.look(member, view)
            if verdict is not None and (verdict.act == "cut" or (stops and verdict.reason not in off)):
                return verdict
        return None

    def decide(self, group: LiveGroup, view: View) -> dict[str, Verdict]:
        """The first verdict on each member."""
        verdicts: dict[str, Verdict] = {}
        for mechanism in self.group_points:
            verdicts = {**mechanism.decide(group, view), **verdicts}
        return verdicts

    def starts(self, view: View) -> int:
        by_default = view.wanted - len(view.groups) - len(view.ready)
        return max((mechanism.starts(view) for mechanism in self.finishes), default=by_default)

    def closes_at(self, view: View) -> float:
        return min((mechanism.closes_at(view) for mechanism in self.finishes), default=math.inf)

    def keeps(self, group: Group, view: View) -> bool:
        return all(mechanism.keeps(group, view) for mechanism in self.keepers)

    def after_step(self, batch: Sequence[Group], view: View) -> None:
        for mechanism in self.by_name.values():
            mechanism.after_step(batch, view)

    def state(self) -> dict[str, Any]:
        return {name: mechanism.state() for name, mechanism in self.by_name.items()}

    def restore(self, state: dict[str, Any]) -> None:
        for name, mechanism in self.by_name.items():
            mechanism.restore(state[name])

    def _of(self, point: Callable[..., P]) -> list[P]:
        return [cast(P, mechanism) for mechanism in self.by_name.values() if isinstance(mechanism, cast(type, point))]

    def _refuse_two_of(self, does: str, point: type, method: str) -> None:
        """A question that has one answer: two mechanisms would silently hide one another."""
        names = [
            name
            for name, mechanism in self.by_name.items()
            if isinstance(mechanism, point) and getattr(type(mechanism), method) is not getattr(point, method)
        ]
        if len(names) > 1:
            raise ConfigError(
                f"mechanisms.{names[0]} and mechanisms.{names[1]} contradict each other: each {does}; leave one out "
                f"with --set mechanisms.{names[1]}=false"
            )
