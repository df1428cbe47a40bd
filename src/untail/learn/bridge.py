"""Value bridging (8.7): a buffer that holds a segment back until what follows it tells what it was worth.

Without it a trajectory is trained when its group is whole. With it, whatever rests between two steps is looked at after
every rollout: its segments up to b are trained as soon as `tokens` more tokens exist that the model wrote past b. Their
bootstrap is the mean of the critic's values over those, and GAE runs on from there as if nothing had been cut:
  bootstrap = (V_b + ... + V_(b + tokens - 1)) / tokens,     tokens = 0: V_b, which only needs the last token
A trajectory that ends before has no need of it: what is left is trained with its group, by its reward.

Invariant: every token is trained at most once, in the order of the response. What is remembered of a trajectory is
forgotten as soon as it is trained to its end, or gone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from untail.config import BridgeConfig
from untail.learn.gae import Estimate, Estimates, final_return
from untail.types import Batch, Group, Trajectory


@dataclass(frozen=True, slots=True)
class Stretch:
    """Response tokens [begin, end) are trained now; if the trajectory goes on, `beyond` are the positions whose values
    tell what comes after."""

    trajectory: Trajectory
    begin: int
    end: int
    beyond: tuple[int, ...] = ()


@dataclass(slots=True)
class _Crossing:
    """One end of a segment that was trained before its trajectory ended: what was said about the rest."""

    position: int
    bootstrap: float
    last_value: float


@dataclass(slots=True)
class _Note:
    """On a trajectory under way."""

    trained: int = 0
    crossings: list[_Crossing] = field(default_factory=list)


class Bridge:
    """Without a config nothing is trained ahead."""

    def __init__(self, config: BridgeConfig | None):
        self.config = config
        self._notes: dict[str, _Note] = {}

    def stretches(self, batch: Batch) -> tuple[list[Group], dict[str, Stretch]]:
        """What is trained now, as groups of trajectories, and which part of each (by id)."""
        finished = {
            trajectory.id: Stretch(trajectory, self._trained(trajectory), len(trajectory.tokens))
            for trajectory in batch.trajectories
        }
        ahead, ripe = [], {}
        for group in batch.underway:
            own = {t.id: stretch for t in group.trajectories if (stretch := self._ripe(t)) is not None}
            if own:
                ahead.append(Group(group.id, group.prompt, [stretch.trajectory for stretch in own.values()]))
                ripe |= own
        return [*batch.groups, *ahead], {**finished, **ripe}

    def _trained(self, trajectory: Trajectory) -> int:
        note = self._notes.get(trajectory.id)
        return note.trained if note is not None else 0

    def _ripe(self, trajectory: Trajectory) -> Stretch | None:
        """Up to the last segment's end that can be crossed; None if there is none, or the trajectory is over."""
        if self.config is None or trajectory.stopped or trajectory.end in ("stop", "length"):
            return None
        begin = self._trained(trajectory)
        for segment in reversed(trajectory.segments):
            beyond = self._beyond(trajectory, segment.end)
            if segment.end > begin and beyond is not None:
                return Stretch(trajectory, begin, segment.end, beyond)
        return None

    def _beyond(self, trajectory: Trajectory, end: int) -> tuple[int, ...] | None:
        """The positions past `end` whose values tell what comes; None if there are not enough yet."""
        assert self.config is not None
        if not self.config.tokens:
            return (end,)
        written = end + np.flatnonzero(trajectory.from_model[end:])[: self.config.tokens]
        return tuple(written.tolist()) if len(written) == self.config.tokens else None

    def crossed(self, stretches: Iterable[Stretch], estimates: Estimates) -> None:
        """They are trained now: the open ones are noted, and those that ended forgotten."""
        for stretch in stretches:
            name, estimate = stretch.trajectory.id, estimates[stretch.trajectory.id]
            if stretch.beyond:
                note = self._notes.setdefault(name, _Note())
                note.trained = stretch.end
                last_value = float(estimate.value_N[stretch.beyond[0]])
                note.crossings.append(_Crossing(stretch.end, estimate.bootstrap, last_value))
            else:
                self._notes.pop(name, None)

    def errors(self, batch: Batch, gamma: float) -> tuple[np.ndarray, np.ndarray]:
        """Of every crossing of the trajectories that have ended: what was said less the return it then had; by the
        bootstrap that was used, and by the value at the segment's last token alone."""
        used, last = [], []
        for trajectory in batch.trajectories:
            note = self._notes.get(trajectory.id)
            for crossing in note.crossings if note is not None else ():
                truth = float(final_return(trajectory, np.array(crossing.position), gamma))
                used.append(crossing.bootstrap - truth)
                last.append(crossing.last_value - truth)
        return np.array(used), np.array(last)

    def forget_the_gone(self, batch: Batch) -> None:
        """Whoever is no longer under way will not come back: its engine failed, or it was cancelled."""
        underway = {trajectory.id for group in batch.underway for trajectory in group.trajectories}
        self._notes = {name: note for name, note in self._notes.items() if name in underway}

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            name: [note.trained, [[c.position, c.bootstrap, c.last_value] for c in note.crossings]]
            for name, note in self._notes.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._notes = {
            name: _Note(trained, [_Crossing(*crossing) for crossing in crossings])
            for name, (trained, crossings) in state.items()
        }


def estimate_of(stretch: Stretch, value_N: np.ndarray) -> Estimate:
    """`value_N` has a value for every token of the stretch and every position beyond it."""
    reward = 0.0 if stretch.beyond else stretch.trajectory.reward
    bootstrap = float(value_N[list(stretch.beyond)].mean()) if stretch.beyond else 0.0
    return Estimate(stretch.begin, stretch.end, value_N, reward, bootstrap)
