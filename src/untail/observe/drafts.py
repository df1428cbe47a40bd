"""What became of drafts, by drafter: a step's figures, and a run's."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


def with_ratios(counts: Mapping[str, int]) -> dict[str, Any]:
    """`acceptance`: of the verified drafts, the share that was accepted; `accept_len`: accepted drafts of a sequence in
    a step that carried some. None where nothing was verified."""
    return {
        **counts,
        "acceptance": counts["accepted"] / counts["drafted"] if counts["drafted"] else None,
        "accept_len": counts["accepted"] / counts["proposals"] if counts["proposals"] else None,
    }


def over_steps(rows: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """From each step's drafts, by drafter, to those of a run."""
    total: dict[str, Counter[str]] = {}
    for row in rows:
        for name, counts in row.items():
            whole = {key: value for key, value in counts.items() if isinstance(value, int)}
            total.setdefault(name, Counter()).update(whole)
    return {name: with_ratios(counts) for name, counts in total.items()}
