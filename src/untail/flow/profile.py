"""What the roles of a training step take: measured once, kept as JSON, and read back as costs.

Invariant: a profile says where it was made and is read back exactly; one that lacks something, or has what cannot be,
is refused with the field's name. Roles other than the rollout are measured over responses, since recipes differ in the
size of their groups.
"""

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from untail import __version__
from untail.config import NotNegative, PositiveFloat, PositiveInt, Recipe, Strict
from untail.errors import DataError
from untail.flow.cost import Cost, Curve, ExchangeCost, OneAfterOther, Point, Profiled, RankedCost, Rollout
from untail.flow.graph import Edge, Graph, Node
from untail.flow.work import Work
from untail.learn.rules import needs_whole_batch, rules_of

# Of a batch. The last alone is waited for, so that finer ones save little; and each has passes of its own, of which a
# profile does not tell.
MOST_PORTIONS = 8


class Measured(Strict):
    """One measurement of a role."""

    devices: PositiveInt
    responses: PositiveInt
    seconds: NotNegative
    memory_gib: NotNegative = 0.0


class RoleProfile(Strict):
    points: Annotated[list[Measured], Field(min_length=1)]
    swap_s: NotNegative = 0.0  # to load it and to take it off


class ExchangeProfile(Strict):
    """What the ranks of a learner that is spread over several devices would send each other."""

    gib: PositiveFloat  # in a pass: the weights twice, forwards and backwards, and the gradients
    responses: PositiveFloat  # of a pass
    gib_s: PositiveFloat  # between two devices; this and `wait_s` are assumed, not measured: give your own
    wait_s: NotNegative = 0.0  # for each other, in a pass


class RolloutProfile(Strict):
    tau: Annotated[list[tuple[PositiveFloat, PositiveFloat]], Field(min_length=1)]  # responses in a step, its seconds
    lengths: Annotated[list[PositiveInt], Field(min_length=1)]
    prefill_s: NotNegative = 0.0  # of a response's prompt
    memory_gib: NotNegative = 0.0  # weights and KV pool
    swap_s: NotNegative = 0.0


class Profile(Strict):
    format: Literal["untail-profile-1"] = "untail-profile-1"
    untail: str = __version__
    made_on: str  # the machine, or the run
    model: str
    memory_gib: PositiveFloat | None = None  # of a device; unset: unknown, and nothing is refused for it
    sync_s: NotNegative = 0.0  # new weights for engines that have devices of their own
    rollout: RolloutProfile
    roles: dict[Literal["reward", "logprob", "update"], RoleProfile]
    exchange: ExchangeProfile | None = None  # unset: unknown; no more learners are planned than were measured

    def save(self, path: Path) -> None:
        try:
            path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise DataError(f"cannot write the profile {path}: {error.strerror}") from None

    @classmethod
    def load(cls, path: Path) -> "Profile":
        try:
            profile = cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise DataError(f"cannot read the profile {path}: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "all of it"
            raise DataError(
                f"the profile {path} cannot be used: {field}: {first['msg']}; make it again with untail plan --save"
            ) from None
        if "update" not in profile.roles:
            raise DataError(f"the profile {path} has no role 'update'; measure one, or make it again with --save")
        return profile


def training_work(profile: Profile, recipe: Recipe, devices: int, steady: bool = False) -> Work:
    """A step of this recipe on so many devices. An item is a group. The learner makes its log-probs itself, so that
    they are part of the update, and is handed groups as they come, if it need not have all of a batch first; rewards
    are the host's."""
    if Path(profile.model).name != Path(recipe.model).name:
        raise DataError(
            f"the profile of {profile.made_on} is of model = {profile.model!r}, and this is model = {recipe.model!r}; "
            "make one of that with untail plan --save"
        )
    nodes = [Node("rollout", borrows=True), Node("update")]
    edges = [Edge("rollout", "update", "groups")]
    edges.append(Edge("update", "rollout", "weights", apart_s=profile.sync_s, next_step=True))
    group = recipe.rollout.group
    costs: dict[str, Cost] = {"rollout": _rollout(profile.rollout, recipe), "update": _learner(profile, group)}
    if "reward" in profile.roles:
        nodes.append(Node("reward", on_host=True))
        edges += [Edge("rollout", "reward", "responses"), Edge("reward", "update", "rewards")]
        costs["reward"] = _role(profile.roles["reward"], group)
    memory = math.inf if profile.memory_gib is None else profile.memory_gib
    batch = recipe.rollout.prompts
    return Work(Graph(nodes, edges), costs, devices, batch, memory, _portions(recipe), steady)


def _portions(recipe: Recipe) -> list[int]:
    """Groups that the learner may be handed at a time."""
    batch = recipe.rollout.prompts
    if needs_whole_batch(recipe.learn, rules_of(recipe.learn, recipe.rollout.max_tokens)) is not None:
        return [batch]
    return [batch // count for count in range(1, MOST_PORTIONS + 1) if batch % count == 0]


def _rollout(profile: RolloutProfile, recipe: Recipe) -> Rollout:
    rollout = recipe.rollout
    return Rollout(
        lengths=[min(length, rollout.max_tokens) for length in profile.lengths],
        tau=Curve(profile.tau),
        group=rollout.group,
        slots=recipe.engine.max_seqs,
        batch=rollout.prompts,
        prefill_s=profile.prefill_s,
        gib=profile.memory_gib,
        load_s=profile.swap_s,
    )


def _learner(profile: Profile, group: int) -> RankedCost:
    passes = [_role(profile.roles[name], group) for name in ("logprob", "update") if name in profile.roles]
    measured = max(point.devices for point in profile.roles["update"].points)
    found = profile.exchange
    exchange = None if found is None else ExchangeCost(found.gib, found.responses / group, found.gib_s, found.wait_s)
    return RankedCost(OneAfterOther(passes), measured, exchange)


def _role(profile: RoleProfile, group: int) -> Profiled:
    """By group: where a measurement was of no whole number of groups, it counts in proportion."""
    points = []
    for found in profile.points:
        groups = max(1, round(found.responses / group))
        share = groups * group / found.responses
        points.append(Point(found.devices, groups, found.seconds * share, found.memory_gib))
    return Profiled(points, profile.swap_s)
