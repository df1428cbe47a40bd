"""What a trajectory's last segment is like, as a vector, and how alike two of them are.

On an engine that has hidden states it is the mean last-layer state from which the segment's tokens were sampled;
elsewhere it counts the segment's runs of one to three tokens, hashed into 512 places. Pre, throughout: the members are
at a boundary.
"""

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from untail.rollout.live import Member
from untail.types import Segment

PLACES = 512
LONGEST_RUN = 3
MIX = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / the golden ratio: it spreads neighbours apart


def features(members: Sequence[Member]) -> np.ndarray:
    """One row per member, all of one kind, each of length 1."""
    if all(member.feature is not None for member in members):
        rows = np.array([np.asarray(member.feature, dtype=np.float64) for member in members])
    else:
        rows = np.array([hashed_runs(last_segment(member)) for member in members])
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1.0)


def hashed_runs(tokens: Sequence[int]) -> np.ndarray:
    counts = np.zeros(PLACES)
    column = np.asarray(tokens, dtype=np.uint64)
    runs = np.full(len(column) + 1, MIX)
    for _ in range(min(LONGEST_RUN, len(column))):
        runs = (runs[:-1] ^ column[len(column) + 1 - len(runs) :]) * MIX  # each run grows by the token that follows it
        runs ^= runs >> np.uint64(29)
        counts += np.bincount((runs % np.uint64(PLACES)).astype(np.intp), minlength=PLACES)
    return counts


def similarities(members: Sequence[Member]) -> list[float]:
    """Each one's cosine to the centroid of all."""
    rows = features(members)
    centroid = rows.mean(axis=0)
    length = float(np.linalg.norm(centroid))
    return [float(cosine) for cosine in rows @ centroid / (length or 1.0)]


def far_bound(distances: Sequence[float], mads: float) -> float:
    """median + so many MAD, the median absolute deviation from the median."""
    middle = median(distances)
    return middle + mads * median(abs(distance - middle) for distance in distances)


def bounds_of_last(member: Member) -> Segment:
    """Of what the model wrote; empty where it has written nothing yet."""
    own = member.trajectory.written_segments
    return own[-1] if own else Segment(0, 0, "")


def last_segment(member: Member) -> list[int]:
    last = bounds_of_last(member)
    return member.trajectory.tokens[last.begin : last.end]


def last_entropy(member: Member) -> float:
    """Its mean over the last segment."""
    last = bounds_of_last(member)
    return fmean(member.trajectory.entropy[last.begin : last.end]) if last.end > last.begin else 0.0


def agreement(one: Member, other: Member) -> float:
    """The share of places at which two last segments have the same token, out of the longer one's."""
    a, b = last_segment(one), last_segment(other)
    return sum(x == y for x, y in zip(a, b, strict=False)) / max(len(a), len(b), 1)


def standard(values: Sequence[float | None]) -> list[float]:
    """z-scores; 0 where there is no value, or where all are the same."""
    known = [value for value in values if value is not None]
    mean = fmean(known) if known else 0.0
    spread = float(np.std(known)) if known else 0.0
    return [(value - mean) / spread if value is not None and spread > 1e-12 else 0.0 for value in values]
