"""The loop: act, learn, and again. It is written once; where and how finely it runs is in the layout.

Invariant: whoever runs holds the lock on its devices. Every mode is synchronous: whoever acts has the weights of the
last update, and an update sees nothing but what they brought. So all modes learn the same.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import fmean

from untail.embodied.config import EmbodiedConfig
from untail.embodied.layout import Layout
from untail.embodied.workers import Crew, EnvWorker, LearnWorker, Played, PolicyWorker
from untail.flow.cluster import Cluster
from untail.flow.switch import Turns
from untail.flow.worker import WorkerGroup


@dataclass(frozen=True, slots=True)
class Row:
    """An iteration. `mean_return` is that of the episodes that came to their end in it, if any did."""

    iteration: int
    seconds: float
    rollout_s: float
    learn_s: float
    reward: float
    mean_return: float | None
    figures: dict[str, float]


class Flow:
    """The three roles on a cluster, and the loop over them."""

    def __init__(self, cluster: Cluster, config: EmbodiedConfig, layout: Layout):
        self.config, self.layout = config, layout
        self.iteration = 0
        self._turns = Turns(cluster, capacity=math.inf)  # all of these together are small: nobody has to leave
        self.env, self.policy, self.learn = self._groups(cluster)
        if len(layout.learn) > 1:
            self.learn.meet(self.learn[0].free_address().wait()).wait()

    async def iterate(self) -> Row:
        began, iteration = time.perf_counter(), self.iteration
        await self.policy.load(await self.learn[0].weights(), iteration)
        async with self._turn_of(self.env, self.policy):
            played, _ = await asyncio.gather(self.env.play(iteration), self.policy.serve())
        rolled_out = time.perf_counter()
        async with self._turn_of(self.learn):
            figures = (await self.learn.learn(iteration))[0]
        ended = time.perf_counter()
        self.iteration += 1
        return Row(iteration, ended - began, rolled_out - began, ended - rolled_out, *_means(played), figures)

    @asynccontextmanager
    async def _turn_of(self, *groups: WorkerGroup) -> AsyncIterator[None]:
        """On all their devices at once; a crew is one group, and those on the host have none."""
        with_devices = {group.name: group for group in groups if any(group.devices)}
        async with AsyncExitStack() as turns:
            for group in with_devices.values():
                await turns.enter_async_context(self._turns.of(group))
            yield

    def _groups(self, cluster: Cluster) -> tuple[WorkerGroup, WorkerGroup, WorkerGroup]:
        layout, about = self.layout, (self.config, self.layout)
        if layout.mode == "collocated":
            crew = cluster.group(Crew, *about, devices=layout.env, name="crew")
            return crew, crew, crew
        return (
            cluster.group(EnvWorker, *about, devices=layout.env, name="env"),
            cluster.group(PolicyWorker, *about, devices=layout.policy, name="policy"),
            cluster.group(LearnWorker, *about, devices=layout.learn, name="learn"),
        )


def _means(played: list[Played]) -> tuple[float, float | None]:
    returns = [number for each in played for number in each.returns]
    return fmean(number for each in played for number in each.rewards), fmean(returns) if returns else None
