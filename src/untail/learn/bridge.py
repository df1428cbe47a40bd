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


@dataclass(frozen=True, slots=True)
class Crossing:
    """What was said about the rest of a trajectory at a segment's end where it once rested, and where a learner without
    a bridge would have had to judge it: by the value at the last token, and by the bridge; that is None where the
    trajectory ended before it had its tokens, and its return was taken."""

    position: int
    last_value: float
    bridged: float | None


@dataclass(slots=True)
class _Note:
    """On a trajectory under way."""

    trained: int = 0
    waiting: list[int] = field(default_factory=list)  # segment ends where it rested that are not trained yet
    crossings: list[Crossing] = field(default_factory=list)


@dataclass(slots=True)
class Errors:
    """What was said at segment ends less the return that the trajectory then had: by the bridge (0 where it took the
    return itself), by the last token's value, and whether the bridge had its tokens."""

    bridged: list[float] = field(default_factory=list)
    last: list[float] = field(default_factory=list)
    read: list[bool] = field(default_factory=list)

    def add(self, trajectory: Trajectory, crossings: list[Crossing], gamma: float) -> None:
        for crossing in crossings:
            truth = float(final_return(trajectory, np.array(crossing.position), gamma))
            self.bridged.append(0.0 if crossing.bridged is None else crossing.bridged - truth)
            self.last.append(crossing.last_value - truth)
            self.read.append(crossing.bridged is not None)

    def figures(self) -> dict[str, float]:
        """Mean squares: over all segment ends, and over those where the bridge had its tokens."""
        bridged, last, read = (np.array(column) for column in (self.bridged, self.last, self.read))
        means = {"": np.ones(len(read), dtype=bool), "_read": read.astype(bool)}
        figures = {"bridge_ends": float(len(read)), "bridge_ends_read": float(sum(read))}
        for suffix, chosen in means.items():
            if chosen.any():
                figures[f"bridge_error{suffix}"] = float((bridged[chosen] ** 2).mean())
                figures[f"bridge_error_last{suffix}"] = float((last[chosen] ** 2).mean())
        return {name: figure for name, figure in figures.items() if np.isfinite(figure)}


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
        ahead: list[Group] = []
        ripe: dict[str, Stretch] = {}
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
        if self.config is None or not _goes_on(trajectory):
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
            return (_next_written(trajectory, end),)
        written = end + np.flatnonzero(trajectory.from_model[end:])[: self.config.tokens]
        return tuple(written.tolist()) if len(written) == self.config.tokens else None

    def crossed(self, batch: Batch, stretches: Iterable[Stretch], estimates: Estimates, gamma: float) -> "Errors":
        """The batch is trained. What goes on is noted; those that ended tell how good what was said was."""
        errors = Errors()
        if self.config is None:
            return errors
        self._note_where_they_rest(batch)
        for stretch in stretches:
            trajectory = stretch.trajectory
            note = self._notes.setdefault(trajectory.id, _Note())
            note.trained = stretch.end
            note.crossings += self._crossings(stretch, note.waiting, estimates[trajectory.id].value_N)
            note.waiting = [position for position in note.waiting if position > stretch.end]
            if not stretch.beyond:
                errors.add(trajectory, note.crossings, gamma)
                del self._notes[trajectory.id]
        underway = {trajectory.id for group in batch.underway for trajectory in group.trajectories}
        self._notes = {name: note for name, note in self._notes.items() if name in underway}  # the rest is gone
        return errors

    def _note_where_they_rest(self, batch: Batch) -> None:
        for trajectory in (trajectory for group in batch.underway for trajectory in group.trajectories):
            if _goes_on(trajectory) and trajectory.segments:
                note, position = self._notes.setdefault(trajectory.id, _Note()), trajectory.segments[-1].end
                if position > note.trained and position not in note.waiting:
                    note.waiting.append(position)

    def _crossings(self, stretch: Stretch, waiting: list[int], value_N: np.ndarray) -> list[Crossing]:
        trajectory, crossings = stretch.trajectory, []
        for position in waiting:
            goes_on = position < len(trajectory.tokens) or stretch.beyond
            if position <= stretch.end and goes_on:
                beyond = self._beyond(trajectory, position)
                bridged = float(value_N[list(beyond)].mean()) if beyond else None
                last_value = float(value_N[_next_written(trajectory, position)])
                crossings.append(Crossing(position, last_value, bridged))
        return crossings

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            name: [note.trained, note.waiting, [[c.position, c.last_value, c.bridged] for c in note.crossings]]
            for name, note in self._notes.items()
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._notes = {
            name: _Note(trained, list(waiting), [Crossing(*crossing) for crossing in crossings])
            for name, (trained, waiting, crossings) in state.items()
        }


def estimate_of(stretch: Stretch, value_N: np.ndarray) -> Estimate:
    """`value_N` has a value for every token of the stretch and every position beyond it."""
    reward = 0.0 if stretch.beyond else stretch.trajectory.reward
    bootstrap = float(value_N[list(stretch.beyond)].mean()) if stretch.beyond else 0.0
    return Estimate(stretch.begin, stretch.end, value_N, reward, bootstrap)


def _goes_on(trajectory: Trajectory) -> bool:
    return not trajectory.stopped and trajectory.end not in ("stop", "length")


def _next_written(trajectory: Trajectory, position: int) -> int:
    """The first position from there on whose token the model wrote, or will write: its state is what has a value."""
    rest = np.flatnonzero(trajectory.from_model[position:])
    return position + int(rest[0]) if len(rest) else len(trajectory.tokens)
