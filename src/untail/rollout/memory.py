"""What a rollout remembers between two steps, as JSON: for a checkpoint.

Invariant: a rollout that was restored goes on exactly as the one that was saved: the same groups with the same
tokens in the same order, and the same draws from then on; with fewer engines, wherever there is a slot. Only what is
between two steps can be saved.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

from untail.envs import Answer
from untail.history.predictor import Prediction
from untail.rollout.live import GroupPlan, LiveGroup, Member, Parking, Route, State
from untail.rollout.stage import Stage
from untail.types import Group, Prompt, Segment, Trajectory

PLAN = ("size", "keep", "budget", "priority", "truncated_reward")
TRAJECTORY, SEGMENT = (tuple(field.name for field in fields(of)) for of in (Trajectory, Segment))
MEMBER = (
    "serial",
    "started",
    "segment_begin",
    "stride",
    "first_stride",
    "engine",
    "goes_to",
    "rule",
    "ghost",
    "ghost_begin",
    "tool_s",
    "ceiling",
    "partial",
    "partial_at",
)


@dataclass(frozen=True, slots=True)
class _Column:
    """The first `length` of a list that only grows. A step that is broken off must leave no trace in what is saved, and
    to copy every token of every deferred trajectory after each step, for a checkpoint every ten, costs too much."""

    values: list[Any]
    length: int


def save(stage: Stage) -> dict[str, Any]:
    return written(remember(stage))


def written(remembered: Any) -> Any:
    """What `remember` gave, as JSON."""
    if isinstance(remembered, dict):
        return {key: written(value) for key, value in remembered.items()}
    if isinstance(remembered, list):
        return [written(value) for value in remembered]
    if isinstance(remembered, _Column):
        return remembered.values[: remembered.length]
    return remembered


def remember(stage: Stage) -> dict[str, Any]:
    """The rollout as it is now, however it goes on: cheap, whatever is under way."""
    pool = stage.pool
    return {
        "serial": stage.serial,
        "place": stage.order.place,
        "missed": [prompt.id for prompt in stage.order.missed],
        "live": [_save_group(group) for group in pool.live.values()],
        "ready": [
            {"id": g.id, "prompt": g.prompt.id, "trajectories": [_save_trajectory(t) for t in g.trajectories]}
            for g in pool.ready
        ],
        # A ghost's group may be gone from the pool, but what became of it still tells how the ghost is to go on.
        "ghosts": [{"group": _save_group(ghost.group), **_save_member(ghost)} for ghost in pool.ghosts.values()],
        "resting": [_key(member) for member in stage.resting],
        "queue": [_key(member) for member in stage.queue],
        "parked": [_key(member) for member in stage.parked],
        "audit": stage.audit.state(),
        "mechanisms": stage.mechanisms.state(),
    }


def restore(stage: Stage, state: dict[str, Any]) -> None:
    prompts = {prompt.id: prompt for prompt in stage.order.prompts}
    stage.serial, stage.order.place = state["serial"], state["place"]
    stage.order.missed = [prompts[name] for name in state["missed"]]
    for saved in state["live"]:
        stage.pool.add(_load_group(saved, prompts))
    for saved in state["ready"]:
        trajectories = [_load_trajectory(t, prompts) for t in saved["trajectories"]]
        stage.pool.ready.append(Group(saved["id"], prompts[saved["prompt"]], trajectories))
    for saved in state["ghosts"]:
        group = stage.pool.live.get(saved["group"]["id"]) or _load_group(saved["group"], prompts)
        ghost = _load_member(saved, group, prompts)
        stage.pool.ghosts[ghost.id] = ghost
    open_members = [m for group in stage.pool.live.values() for m in group.open]
    members = {_key(member): member for member in [*open_members, *stage.pool.ghosts.values()]}
    for member in members.values():
        _forget_what_is_gone(member, stage.fleet.slots.engines)
        stage.members[member.id] = member
    stage.resting = [members[tuple(key)] for key in state["resting"]]
    stage.parked = [members[tuple(key)] for key in state["parked"]]
    for key in state["queue"]:
        stage.queue.put(members[tuple(key)])
    stage.audit.restore(state["audit"])
    stage.mechanisms.restore(state["mechanisms"])


def _forget_what_is_gone(member: Member, engines: int) -> None:
    """What was on an engine that there is no more, or on its way there, goes on anywhere."""
    is_there = lambda engine: engine is not None and engine < engines
    member.engine = member.engine if is_there(member.engine) else None
    member.goes_to = member.goes_to if is_there(member.goes_to) else None


def _key(member: Member) -> tuple[str, bool]:
    return (member.id, member.ghost is not None)


def _save_group(group: LiveGroup) -> dict[str, Any]:
    plan = group.plan
    return {
        "id": group.id,
        "step": group.step,
        "prompt": plan.prompt.id,
        "predicted": asdict(plan.predicted),
        "plan": {name: getattr(plan, name) for name in PLAN},
        "members": [_save_member(member) for member in group.members],
    }


def _load_group(saved: dict[str, Any], prompts: dict[str, Prompt]) -> LiveGroup:
    plan = GroupPlan(prompts[saved["prompt"]], predicted=Prediction(**saved["predicted"]), **saved["plan"])
    group = LiveGroup(saved["id"], plan, saved["step"])
    group.members = [_load_member(member, group, prompts) for member in saved["members"]]
    return group


def _save_member(member: Member) -> dict[str, Any]:
    columns = {name: getattr(member, name) for name in MEMBER}
    trajectory, route = _save_trajectory(member.trajectory), asdict(member.route)
    parking = None if member.parking is None else asdict(member.parking)
    return {"state": member.state.value, "trajectory": trajectory, "route": route, "parking": parking, **columns}


def _load_member(saved: dict[str, Any], group: LiveGroup, prompts: dict[str, Prompt]) -> Member:
    member = Member(_load_trajectory(saved["trajectory"], prompts), group, saved["serial"], State(saved["state"]))
    for name in MEMBER:
        setattr(member, name, saved[name])
    member.route = Route(**saved["route"])
    if saved["parking"] is not None:
        answer = saved["parking"]["answer"]
        member.parking = Parking(**{**saved["parking"], "answer": None if answer is None else Answer(**answer)})
    return member


def _save_trajectory(trajectory: Trajectory) -> dict[str, Any]:
    columns = {name: _as_it_is(getattr(trajectory, name)) for name in TRAJECTORY}
    segments = [{name: getattr(segment, name) for name in SEGMENT} for segment in trajectory.segments]
    return {**columns, "prompt": trajectory.prompt.id, "segments": segments}


def _load_trajectory(saved: dict[str, Any], prompts: dict[str, Prompt]) -> Trajectory:
    segments = [Segment(**segment) for segment in saved["segments"]]
    return Trajectory(**{**saved, "prompt": prompts[saved["prompt"]], "segments": segments})


def _as_it_is(value: Any) -> Any:
    return _Column(value, len(value)) if isinstance(value, list) else value
