"""Who generated which token of a group's trajectories.

Invariant: every token of a trajectory has one owner, the trajectory that it was generated for: itself from `forked_at`
on, its parent's owners before. Of a parent that is not in the group (dropped, failed) nothing is known but its id, so
that it owns all that it handed down.
"""

from dataclasses import dataclass

from untail.types import Group, Trajectory


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens [begin, end) of a trajectory, which were generated for `owner`."""

    owner: str
    begin: int
    end: int


def runs_of(group: Group) -> list[list[Run]]:
    """The runs of each trajectory, in the group's order; they cover it without a gap."""
    by_id = {trajectory.id: trajectory for trajectory in group.trajectories}
    return [_runs(trajectory, by_id) for trajectory in group.trajectories]


def _runs(trajectory: Trajectory, by_id: dict[str, Trajectory]) -> list[Run]:
    own = Run(trajectory.id, trajectory.forked_at, len(trajectory.tokens))
    return [*_handed_down(trajectory, by_id), own]


def _handed_down(trajectory: Trajectory, by_id: dict[str, Trajectory]) -> list[Run]:
    if trajectory.parent is None:
        return []
    cut = trajectory.forked_at
    if trajectory.parent not in by_id:
        return [Run(trajectory.parent, 0, cut)]
    runs = _runs(by_id[trajectory.parent], by_id)
    return [Run(run.owner, run.begin, min(run.end, cut)) for run in runs if run.begin < cut]
