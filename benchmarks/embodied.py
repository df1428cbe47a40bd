"""The embodied examples in the three modes, interleaved, and the planner's choice.

For each example this machine is measured and the planner asked; then all modes, and the planned layout, do an iteration
each in turn, so that what else happens on the machine happens to all. Seconds are lower quartiles. `chosen_ratio` is
what the planned layout takes against the fastest mode.

    python benchmarks/embodied.py OUT.json [ROUNDS] [ALGO] [ENV,ENV]
"""

import asyncio
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import quantiles
from typing import Any

from untail.embodied.config import EmbodiedConfig, preset
from untail.embodied.layout import MODES, Layout
from untail.embodied.loop import Flow, Row
from untail.embodied.run import choose
from untail.flow.cluster import connect


def main(out: Path, rounds: int, algo: str, envs: list[str]) -> None:
    rows = [compare(preset(env, algo), rounds) for env in envs]
    out.write_text(json.dumps({"rounds": rounds, "algo": algo, "rows": rows}) + "\n")


def compare(config: EmbodiedConfig, rounds: int) -> dict[str, Any]:
    planned, plan = choose(config, "auto", connect)
    assert plan is not None
    layouts = {mode: choose(config, mode, connect)[0] for mode in MODES} | {"planned": planned}
    times = asyncio.run(race(config, layouts, rounds))
    figures = {name: figures_of(config, rows) for name, rows in times.items()}
    fastest = min(MODES, key=lambda mode: figures[mode]["iteration_s"])
    ratio = figures["planned"]["iteration_s"] / figures[fastest]["iteration_s"]
    for name, found in figures.items():
        print(
            f"{config.env:12} {name:14} {found['iteration_s']:.3f} s an iteration (rollout {found['rollout_s']:.3f}, "
            f"update {found['learn_s']:.3f}), {found['steps_s']:.0f} steps/s, {found['batches_s']:.0f} batches/s"
        )
    print(
        f"{config.env:12} fastest: {fastest}; planned: {planned.mode}, {plan.predicted_step_s:.3f} s predicted, "
        f"{ratio:.2f} of the fastest"
    )
    chosen = {"mode": planned.mode, "learners": len(planned.learn), **plan.as_json()}
    return {"env": config.env, "fastest": fastest, "chosen": chosen, "chosen_ratio": ratio, "modes": figures}


async def race(config: EmbodiedConfig, layouts: dict[str, Layout], rounds: int) -> dict[str, list[Row]]:
    """An iteration each in turn; the first of each only warms up."""
    with ExitStack() as stack:
        flows = {name: Flow(stack.enter_context(connect()), config, layouts[name]) for name in layouts}
        times: dict[str, list[Row]] = {name: [] for name in flows}
        for number in range(rounds + 1):
            for name, flow in flows.items():
                row = await flow.iterate()
                times[name] += [row] if number else []
    return times


def figures_of(config: EmbodiedConfig, rows: list[Row]) -> dict[str, float]:
    low = {
        name: quantiles([getattr(row, name) for row in rows], n=4)[0] for name in ("seconds", "rollout_s", "learn_s")
    }
    return {
        "iteration_s": low["seconds"],
        "rollout_s": low["rollout_s"],
        "learn_s": low["learn_s"],
        "steps_s": config.steps / low["seconds"],
        "batches_s": config.horizon * config.shards / low["seconds"],
        "last_reward": rows[-1].reward,
    }


if __name__ == "__main__":
    _, path, *rest = sys.argv
    names = rest[2].split(",") if len(rest) > 2 else ["cartpole", "halfcheetah"]
    main(Path(path), int(rest[0]) if rest else 12, rest[1] if len(rest) > 1 else "ppo", names)
