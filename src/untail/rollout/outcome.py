"""What a group's members get in the end, and what history keeps of them.

Invariant: a trajectory that was stopped never keeps a reward of its own: `penalty` gives -1, `zero` 0, `group_min` the
lowest reward of its siblings that ended by themselves, `mask` takes it out of the loss and the statistics (a critic
learns from it all the same, with the penalty).
"""

from untail.history.stats import Record
from untail.rollout.live import LiveGroup, Member, State
from untail.types import Trajectory

PENALTY = -1.0


def settle_rewards(group: LiveGroup) -> None:
    """Pre: the group is whole."""
    earned = [member.trajectory.reward for member in group.done if member.rule is None]
    for member in group.done:
        match member.rule:
            case "penalty":
                member.trajectory.reward = PENALTY
            case "mask":
                member.trajectory.reward, member.trajectory.masked = PENALTY, True
            case "zero":
                member.trajectory.reward = 0.0
            case "group_min":
                member.trajectory.reward = min(earned, default=0.0)


def records_of(group: LiveGroup, step: int, longest: int) -> list[Record]:
    """What was stopped, cancelled or cut at a budget below `longest` has a lower bound for a length."""
    return [_record(member, step, longest) for member in group.members if member.trajectory.tokens]


def _record(member: Member, step: int, longest: int) -> Record:
    trajectory = member.trajectory
    ended = member.state is State.DONE and trajectory.stopped is None
    is_bound = not ended or (trajectory.end == "length" and member.length < longest)
    return Record(
        prompt=trajectory.prompt.id,
        task=trajectory.prompt.task,
        step=step,
        version=trajectory.version[-1],
        length=trajectory.length,
        end=_end_of(trajectory),
        reward=trajectory.reward if ended and trajectory.failure is None else None,
        entropy=trajectory.mean_entropy,
        is_bound=is_bound,
        tokens=tuple(trajectory.of_model("tokens")) if ended else None,
    )


def _end_of(trajectory: Trajectory) -> str:
    return trajectory.stopped or trajectory.end or "abort"
