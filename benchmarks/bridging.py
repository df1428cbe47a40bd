"""What value bridging (8.7) does to the critic's error at the ends of segments, on the recipe `dynaseg`.

Every seed is run twice: with bridging (16 tokens) and without (`learn.bridge.tokens = 0`: the value at a segment's last
token). The error is (what was said about the rest at a segment's end - the return the trajectory then had)^2, a mean
over all segment ends of trajectories that ended after the first FIRST steps, in which the critic still knows nothing.
Where a trajectory ended before the bridge had its 16 tokens, the bridge waited for the end and took the return: 0.

`fall`: 1 - error with / error without, two runs. `fall_same_run`: the same within the run with bridging, where every
segment end is judged both ways by the same critic. `fall_read`: that over segment ends that had their 16 tokens alone.

    OMP_NUM_THREADS=1 nice -n 10 python benchmarks/bridging.py OUT.json [STEPS] [SEEDS]
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from untail.config import load_recipe
from untail.engine.models.load import load_model
from untail.flow.roles import LocalRoles
from untail.run import Run
from untail.tasks.prepare import prepare
from untail.train import Training

FIRST = 5


async def train(seed: int, steps: int, tokens: int) -> list[dict]:
    """The learner's figures, step by step."""
    changes = {"seed": seed, "steps": steps, "rollout": {"prompts": 16}, "validation": {"prompts": 8}}
    recipe = load_recipe("dynaseg", changes, [f"learn.bridge.tokens={tokens}"])
    model = load_model(recipe.model, recipe.engine.device, recipe.engine.dtype)
    data = prepare(recipe, model.tokenizer, model.decoder.shape.context)
    roles = LocalRoles(recipe, model, data.rewards, data.prompts)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        run = Run.begin(Path(folder) / "run", recipe)
        training = Training(run, roles, data.held_out, lambda row: rows.append(row.get("learn")), asyncio.Event())
        await training.begin()
        while await training.one_step():
            pass
        await roles.close()
        run.close()
    return [row for row in rows if row is not None]


def pooled(rows: list[dict], name: str, count: str) -> float | None:
    """The mean over all segment ends, from the means of the steps."""
    known = [row for row in rows if name in row]
    ends = sum(row[count] for row in known)
    return sum(row[name] * row[count] for row in known) / ends if ends else None


def fall(better: float | None, worse: float | None) -> float | None:
    return None if better is None or not worse else 1 - better / worse


def summary(runs: dict[str, list[list[dict]]]) -> dict:
    with_bridge, without = ([row for rows in runs[arm] for row in rows[FIRST:]] for arm in ("with", "without"))
    error = pooled(with_bridge, "bridge_error", "bridge_ends")
    last = pooled(with_bridge, "bridge_error_last", "bridge_ends")
    read = pooled(with_bridge, "bridge_error_read", "bridge_ends_read")
    last_read = pooled(with_bridge, "bridge_error_last_read", "bridge_ends_read")
    error_without = pooled(without, "bridge_error", "bridge_ends")
    return {
        "ends": sum(row.get("bridge_ends", 0) for row in with_bridge),
        "ends_read": sum(row.get("bridge_ends_read", 0) for row in with_bridge),
        "error_with": error,
        "error_without": error_without,
        "fall": fall(error, error_without),
        "error_last_same_run": last,
        "fall_same_run": fall(error, last),
        "error_read": read,
        "error_last_read": last_read,
        "fall_read": fall(read, last_read),
    }


def main(out: Path, steps: int, seeds: list[int]) -> None:
    seen: dict[str, list[list[dict]]] = {"with": [], "without": []}
    for seed in seeds:
        for arm, tokens in (("with", 16), ("without", 0)):
            seen[arm].append(asyncio.run(train(seed, steps, tokens)))
        result = {
            "steps": steps,
            "seeds": seeds[: len(seen["with"])],
            **summary(seen),
            "by_seed": [
                summary({"with": [a], "without": [b]}) for a, b in zip(seen["with"], seen["without"], strict=True)
            ],
            "explained_variance": [[row.get("explained_variance") for row in rows] for rows in seen["with"]],
        }
        out.write_text(json.dumps(result) + "\n")
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    arguments = sys.argv[2:]
    main(
        Path(sys.argv[1]),
        int(arguments[0]) if arguments else 24,
        [int(seed) for seed in arguments[1].split(",")] if len(arguments) > 1 else [0, 1, 2],
    )
