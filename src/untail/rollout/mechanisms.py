"""A recipe's mechanisms, asked point by point. Importing this module registers all that ship with untail.

Invariant: this is the one place that says how several answers to one question become one: see points.py.
"""

import math
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any, TypeVar, cast

import untail.rollout.admit
import untail.rollout.finish
import untail.rollout.group
import untail.rollout.lanes
import untail.rollout.stride
import untail.rollout.watch  # noqa: F401  (these six register what is in them)
from untail.backends.base import Capabilities
from untail.config import Recipe, RolloutConfig, parse
from untail.errors import ConfigError, UserError
from untail.rollout.live import GroupPlan, LiveGroup, Member, Route
from untail.rollout.points import (
    MECHANISMS,
    Admit,
    Copy,
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
from untail.rollout.turns import resolved_table
from untail.types import Group, Prompt

P = TypeVar("P")
RESTS: dict[Rest, str] = {
    "close": "closes groups with their finished members",
    "cancel": "cancels groups whole",
    "defer": "lets groups go on in the next step",
}


def resolved(recipe: Recipe) -> Recipe:
    """The recipe with every field of its mechanisms and its environment written out, and without those mechanisms that
    it leaves out. What contradicts itself is refused here, before anything is loaded."""
    # One left out has to be known, too.
    configs = {name: MECHANISMS.get(name, f"mechanisms.{name}").Config for name in recipe.mechanisms}
    tables = {
        name: parse(configs[name], table, f"mechanisms.{name}").model_dump(mode="json", exclude_none=True)
        for name, table in recipe.mechanisms.items()
        if table is not False
    }
    Mechanisms(tables, recipe.rollout)
    return recipe.model_copy(update={"mechanisms": tables, "environment": resolved_table(recipe.environment)})


class MechanismError(RuntimeError):
    """A mechanism raised when it was asked: a fault of ours, or of a plug-in's author."""


def _ask(mechanism: Any, question: str, *about: Any) -> Any:
    """What goes wrong in it says whose fault it is, and what it was asked."""
    try:
        return getattr(mechanism, question)(*about)
    except UserError:
        raise
    except Exception as error:
        raise _fault(mechanism, question, error) from error


def _one_by_one(mechanism: Any, ranked: Iterator[Prompt]) -> Iterator[Prompt]:
    try:
        yield from ranked
    except Exception as error:
        raise _fault(mechanism, "rank", error) from error


def _fault(mechanism: Any, question: str, error: Exception) -> MechanismError:
    return MechanismError(
        f"mechanisms.{mechanism.name} ({type(mechanism).__module__}) failed when it was asked `{question}`: "
        f"{type(error).__name__}: {error}"
    )


class Mechanisms:
    def __init__(self, tables: dict[str, Any], rollout: RolloutConfig):
        """`tables` as in the recipe: by name, in the order in which they are asked."""
        self.by_name: dict[str, Mechanism] = {}
        for name, table in tables.items():
            MECHANISMS.get(name, f"mechanisms.{name}")
            if table is not False:
                self.by_name[name] = MECHANISMS.build({**table, "name": name}, f"mechanisms.{name}")
                self.by_name[name].name = name
        for mechanism in self.by_name.values():
            _ask(mechanism, "check", rollout.group, rollout.max_tokens)
        self._refuse_two_of("ranks prompts", Admit, "rank")
        self._refuse_two_of("sets strides", Strider, "stride")
        self._refuse_two_of("routes members", Lane, "route")
        self._refuse_two_of("places members", Place, "place")
        self._refuse_two_of("starts new groups in free slots", Lane, "refill")
        self._refuse_two_of("copies members", GroupPoint, "copies")
        self.admits = self._of(Admit)
        self.lanes = self._of(Lane)
        self.places = self._of(Place)
        self.striders = self._of(Strider)
        self.watches = self._of(Watch)
        self.group_points = self._of(GroupPoint)
        self.finishes = self._of(Finish)
        self.keepers = self._of(Keep)
        self._refuse_contradicting_rests()
        self._refuse_useless_patience(rollout)
        self.wants_hidden = any(mechanism.wants_hidden for mechanism in self.by_name.values())
        self.wants_partial = any(mechanism.wants_partial for mechanism in self.by_name.values())
        watchers = (mechanism for mechanism in self.by_name.values() if isinstance(mechanism, Watch))
        self.watchers_want_partial = any(mechanism.wants_partial for mechanism in watchers)
        self.refills = any(type(lane).refill is not Lane.refill for lane in self.lanes)

    def check(self, capabilities: Capabilities, backend: str) -> None:
        for name, mechanism in self.by_name.items():
            if mechanism.needs_entropy and capabilities.entropy == "none":
                raise ConfigError(
                    f"mechanisms.{name} needs the entropy of every token, which the backend {backend!r} does not give; "
                    f"use another backend, or leave it out with --set mechanisms.{name}=false"
                )
            if mechanism.needs_fork and capabilities.fork == "none":
                raise ConfigError(
                    f"mechanisms.{name} copies running sequences, which the backend {backend!r} cannot; use another "
                    f"backend, or leave it out with --set mechanisms.{name}=false"
                )

    @property
    def lossy(self) -> list[str]:
        """Those that sample from something else than the policy."""
        return [f"mechanisms.{name}" for name, mechanism in self.by_name.items() if mechanism.is_lossy]

    @property
    def copiers(self) -> list[str]:
        overrides = lambda m: isinstance(m, GroupPoint) and type(m).copies is not GroupPoint.copies
        return [name for name, mechanism in self.by_name.items() if overrides(mechanism)]

    @property
    def sure_pruners(self) -> list[str]:
        """Those that prune without a draw, or with next to no chance to live."""
        return [name for name, mechanism in self.by_name.items() if mechanism.prunes_surely]

    @property
    def masking_pruners(self) -> list[str]:
        """Those that take what they prune out of the loss and the statistics."""
        points = {name: mechanism for name, mechanism in self.by_name.items() if isinstance(mechanism, GroupPoint)}
        return [name for name, mechanism in points.items() if getattr(mechanism.config, "stopped", None) == "mask"]

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
        for mechanism in self.admits:
            ranked = _ask(mechanism, "rank", view)
            if ranked is not None:
                return _one_by_one(mechanism, ranked)
        return view.next_in_order()

    def shape(self, plan: GroupPlan, view: View) -> GroupPlan | None:
        for mechanism in self.admits:
            shaped = _ask(mechanism, "shape", plan, view)
            if shaped is None:
                return None
            plan = shaped
        return plan

    def route(self, member: Member, view: View) -> Route:
        return next((route for lane in self.lanes if (route := _ask(lane, "route", member, view)) is not None), Route())

    def refill(self, view: View) -> int:
        return next((count for lane in self.lanes if (count := _ask(lane, "refill", view)) is not None), 0)

    def place(self, member: Member, free: Sequence[int], view: View) -> int:
        """By default the emptiest engine."""
        return next(
            (e for place in self.places if (e := _ask(place, "place", member, free, view)) is not None), free[0]
        )

    def moves(self, view: View) -> list[Move]:
        return [move for place in self.places for move in _ask(place, "moves", view)]

    def stride(self, member: Member, view: View) -> Stride:
        """Within the budget that is left. Pre: there is some."""
        stride = Stride(member.left)
        if member.route.stride is not None:
            stride = Stride(member.route.stride)
        elif self.striders:
            asked = _ask(self.striders[0], "stride", member, view)
            if asked is not None:
                stride = Stride(round(asked.tokens * member.route.scale), asked.in_place)
        return Stride(max(1, min(stride.tokens, member.left)), stride.in_place)

    def look(self, member: Member, view: View, stops: bool, off: set[str]) -> Verdict | None:
        """The first verdict; `stops` is whether its patience is over, `off` are reasons that do not count."""
        for mechanism in self.watches:
            if mechanism.only_stops and not stops:
                continue
            verdict = _ask(mechanism, "look", member, view)
            if verdict is not None and (verdict.act == "cut" or (stops and verdict.reason not in off)):
                return verdict
        return None

    def decide(self, point: GroupPoint, group: LiveGroup, view: View) -> dict[str, Verdict]:
        return cast(dict[str, Verdict], _ask(point, "decide", group, view))

    def copies(self, group: LiveGroup, places: int, view: View) -> list[Copy]:
        return [copy for mechanism in self.group_points for copy in _ask(mechanism, "copies", group, places, view)]

    def starts(self, view: View) -> int:
        by_default = view.wanted - len(view.groups) - len(view.ready)
        return max((_ask(mechanism, "starts", view) for mechanism in self.finishes), default=by_default)

    def closes_at(self, view: View) -> float:
        return min((_ask(mechanism, "closes_at", view) for mechanism in self.finishes), default=math.inf)

    def waits_for(self, view: View) -> Set[str] | None:
        answers = (_ask(mechanism, "waits_for", view) for mechanism in self.finishes)
        return next((groups for groups in answers if groups is not None), None)

    def keeps(self, group: Group, view: View) -> bool:
        return all(_ask(mechanism, "keeps", group, view) for mechanism in self.keepers)

    def after_step(self, batch: Sequence[Group], view: View) -> None:
        for mechanism in self.by_name.values():
            _ask(mechanism, "after_step", batch, view)

    def state(self) -> dict[str, Any]:
        return {name: _ask(mechanism, "state") for name, mechanism in self.by_name.items()}

    def restore(self, state: dict[str, Any]) -> None:
        for name, mechanism in self.by_name.items():
            _ask(mechanism, "restore", state[name])

    def _of(self, point: Callable[..., P]) -> list[P]:
        return [cast(P, mechanism) for mechanism in self.by_name.values() if isinstance(mechanism, cast(type, point))]

    def _refuse_contradicting_rests(self) -> None:
        by_name = {name: mechanism for name, mechanism in self.by_name.items() if isinstance(mechanism, Finish)}
        for name, mechanism in by_name.items():
            for other, its in by_name.items():
                if its.rest in mechanism.contradicts:
                    raise ConfigError(
                        f"mechanisms.{name} and mechanisms.{other} contradict each other: of what is unfinished when "
                        f"the step closes, one {RESTS[mechanism.rest]} and the other {RESTS[its.rest]}; leave one out "
                        f"with --set mechanisms.{other}=false"
                    )

    def _refuse_useless_patience(self, rollout: RolloutConfig) -> None:
        if self.watches and isinstance(rollout.patience, int) and rollout.patience > rollout.max_tokens:
            raise ConfigError(
                f"rollout.patience = {rollout.patience} exceeds rollout.max_tokens = {rollout.max_tokens}, so that no "
                "watcher could ever stop anything; lower it, or leave the watchers out"
            )

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
