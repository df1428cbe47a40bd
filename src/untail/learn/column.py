"""A trajectory's columns as arrays, one entry per response token; no torch.

Invariant: a column that a backend did not give is NaN throughout, and whoever needs it says so (`needs_logprobs`,
`needs_entropy`), so that a recipe is refused before anything is learned from NaN.
"""

import numpy as np

from untail.types import Segment, Trajectory


def from_model(trajectory: Trajectory) -> np.ndarray:
    """1 where the model wrote the token, 0 where an environment did."""
    return np.array(trajectory.from_model, dtype=np.float64)


def policy_logprob(trajectory: Trajectory) -> np.ndarray:
    return _filled(trajectory.policy_logprob, len(trajectory.tokens))


def behaviour_logprob(trajectory: Trajectory) -> np.ndarray:
    return _filled(trajectory.behaviour_logprob, len(trajectory.tokens))


def entropy(trajectory: Trajectory) -> np.ndarray:
    return _filled(trajectory.entropy, len(trajectory.tokens))


def is_of_version(trajectory: Trajectory, version: int) -> np.ndarray:
    """Where the token was sampled by these very weights, all of them, over keys and values of the same."""
    exact = np.array(trajectory.version) == version
    for marks in (trajectory.mixed_kv, trajectory.lossy):
        if marks:  # a backend may not give every column
            exact &= ~np.array(marks, dtype=bool)
    return exact


def segments(trajectory: Trajectory) -> list[Segment]:
    """What was never cut is one segment."""
    return trajectory.segments or [Segment(0, len(trajectory.tokens), trajectory.end or "")]


def _filled(values: list[float], count: int) -> np.ndarray:
    return np.array(values, dtype=np.float64) if len(values) == count else np.full(count, np.nan)
