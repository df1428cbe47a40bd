"""The loop: act, learn, and again. It is written once; where and how finely it runs is in the layout.

Invariant: a row of figures per iteration, and synchronous in every mode: whoever acts has the weights of the last
update, and an update sees nothing but what they brought. So all modes learn the same.
"""

import asyncio
import time
from dataclasses import dataclass

from untail.embodied.config import EmbodiedConfig
from untail.embodied.layout import Layout
from untail.embodied.workers import Crew, EnvWorker, LearnWorker, Played, PolicyWorker
from untail.flow.cluster import Cluster
from untail.flow.worker import WorkerGroup


@dataclass(frozen=True, slots=True)
class Row:
    """An iteration. `mean_return` is that of the episodes that ended in it, and nothing where none did."""

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
        self.env, self.policy, self.learn = self._groups(cluster)
        if len(layout.learn) > 1:
            self.learn.meet(self.learn[0].free_address().wait()).wait()
        self.iteration = 0

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

    async def iterate(self) -> Row:
        began = time.perf_counter()
        await self.policy.load(await self.learn[0].weights(), self.iteration)
        played, _ = await asyncio.gather(self.env.play(self.iteration), self.policy.serve())
        rolled_out = time.perf_counter()
        figures = (await self.learn.learn(self.iteration))[0]
        ended = time.perf_counter()
        row = Row(self.iteration, ended - began, rolled_out - began, ended - rolled_out, *_means(played), figures)
        self.iteration += 1
        return row


def _means(played: list[Played]) -> tuple[float, float | None]:
    returns = [number for each in played for number in each.returns]
    return sum(each.reward for each in played) / len(played), sum(returns) / len(returns) if returns else None
