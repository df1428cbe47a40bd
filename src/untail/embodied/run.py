"""A run from its mode's name to its figures: what the command line and the benchmark share."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from untail.embodied.build import on_host, refuse_missing
from untail.embodied.config import EmbodiedConfig
from untail.embodied.layout import Layout, check_mode, lay_out
from untail.embodied.loop import Flow, Row
from untail.embodied.measure import measure
from untail.embodied.planning import layout_of, make_work
from untail.flow.cluster import Cluster
from untail.flow.plan import Plan
from untail.flow.planner import make_plan

Connect = Callable[[], AbstractContextManager[Cluster]]
"""Opens the cluster: a new one each time, so that nobody is left of what was measured."""


def choose(config: EmbodiedConfig, mode: str, connect: Connect) -> tuple[Layout, Plan | None]:
    """Where everybody goes; with "auto" by a plan, for which the cluster's devices are measured."""
    refuse_missing(config)
    with connect() as cluster:
        count = len(cluster.devices)
        if mode != "auto":
            return lay_out(check_mode(mode), count, config.shards, on_host(config)), None
        plan = make_plan(make_work(config, measure(cluster, config), count))
    return layout_of(config, plan), plan


def train(
    config: EmbodiedConfig, layout: Layout, iterations: int, connect: Connect, tell: Callable[[Row], None]
) -> list[Row]:
    """Rows of so many iterations, each told as it comes."""

    async def iterate(flow: Flow) -> list[Row]:
        rows = []
        for _ in range(iterations):
            rows.append(await flow.iterate())
            tell(rows[-1])
        return rows

    with connect() as cluster:
        return asyncio.run(iterate(Flow(cluster, config, layout)))


def summary(config: EmbodiedConfig, layout: Layout, rows: list[Row]) -> dict[str, Any]:
    """The first and the last return are those of the first and the last iteration in which episodes ended."""
    seconds = sum(row.seconds for row in rows)
    returns = [row.mean_return for row in rows if row.mean_return is not None]
    curve = [
        {"env_steps": (row.iteration + 1) * config.steps, "reward": row.reward, "return": row.mean_return}
        for row in rows
    ]
    return {
        "env": config.env,
        "algo": config.algo,
        "mode": layout.mode,
        "iterations": len(rows),
        "env_steps": len(rows) * config.steps,
        "wall_s": seconds,
        "rollout_s": sum(row.rollout_s for row in rows),
        "learn_s": sum(row.learn_s for row in rows),
        "steps_s": len(rows) * config.steps / seconds,
        "batches_s": len(rows) * config.horizon * config.shards / seconds,
        "reward_first": rows[0].reward,
        "reward_last": rows[-1].reward,
        "return_first": returns[0] if returns else None,
        "return_last": returns[-1] if returns else None,
        "curve": curve,
    }
