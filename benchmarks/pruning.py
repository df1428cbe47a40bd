"""Whether those who are pruned would have failed: per rule, against the base rate.

Reads the events of runs in which everybody who was stopped ran on unseen (`rollout.audit=1.0`). Of those that a rule
stopped, `without_reward` is the share that ended without one, with Wilson's 95 % interval. The base rates are the same
share of all trajectories, and of those that came to a boundary at all: only they can be pruned between segments.

    untail train dygs --set rollout.audit=1.0 --set rollout.max_false_kills=1.0 --out RUN
    python benchmarks/pruning.py OUT.json RUN [RUN ...]
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from untail.observe.events import read_lines
from untail.observe.fates import Fates
from untail.observe.interval import wilson


def main(out: Path, runs: list[Path]) -> None:
    out.write_text(json.dumps({run.name: accuracy(run / "events.jsonl") for run in runs}) + "\n")


def accuracy(path: Path) -> dict[str, Any]:
    fates, at_boundary = Fates(), set[str]()
    for event in read_lines(path):
        fates.hear(event)
        if event["e"] == "segment":
            at_boundary.add(event["id"])
    rewards = {name: outcome.reward for name, outcome in {**fates.scored, **fates.audited}.items()}
    reasons = sorted(set(fates.stopped.values()))
    return {
        "base": share(rewards.values()),
        "base_at_boundary": share(reward for name, reward in rewards.items() if name in at_boundary),
        "rules": {
            reason: {
                "stopped": sum(why == reason for why in fates.stopped.values()),
                **share(rewards[name] for name, why in fates.stopped.items() if why == reason and name in rewards),
            }
            for reason in reasons
        },
    }


def share(rewards: Iterable[float]) -> dict[str, Any]:
    """Of those whose end is known, how many had no reward."""
    failed = [reward <= 0 for reward in rewards]
    if not failed:
        return {"known": 0, "without_reward": None, "ci95": None}
    mean = sum(failed) / len(failed)
    return {"known": len(failed), "without_reward": mean, "ci95": list(wilson(mean, len(failed)))}


if __name__ == "__main__":
    _, path, *folders = sys.argv
    main(Path(path), [Path(folder) for folder in folders])
