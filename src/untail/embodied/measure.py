"""What the roles cost on this machine.

Invariant: costs are measured in workers like those that will run, on one device and on all at once; the lower quartile
counts, for what others do on the machine only adds.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from untail.embodied.config import EmbodiedConfig
from untail.embodied.layout import Layout, lay_out
from untail.embodied.workers import Crew
from untail.flow.cluster import Cluster

ROUNDS = 40
UPDATES = 5


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds on so many devices: one shard's step and action, a message's way, and an update on all shards."""

    devices: int
    step_s: float
    act_s: float
    hop_s: float
    learn_s: float


class Probe(Crew):
    """Does what it will have to do, and takes the time."""

    def __init__(self, config: EmbodiedConfig, layout: Layout):
        super().__init__(config, layout)
        self._echo = self.channel("echo")

    async def measure(self) -> Measured:
        learned = []
        for iteration in range(UPDATES):
            self.actor.begin(iteration)
            await self.play(iteration)
            began = time.perf_counter()
            await self.learn(iteration)
            learned.append(time.perf_counter() - began)
        rounds = [await self._round() for _ in range(ROUNDS)]
        act_s, step_s, hop_s = (_low(column) for column in zip(*rounds, strict=True))
        return Measured(self.world, step_s, act_s, hop_s, _low(learned))

    async def _round(self) -> tuple[float, float, float]:
        shard, obs_NO = self.shards[0], self.shards[0].obs_NO
        assert obs_NO is not None
        began = time.perf_counter()
        action_NA, _ = await self.act(shard.number, obs_NO)
        action_NA[0, 0].item()  # a device that works on its own is waited for
        acted = time.perf_counter()
        outcome = shard.simulator.step(action_NA)
        outcome.reward_N[0].item()
        stepped = time.perf_counter()
        self._echo.put(obs_NO, key=self.rank)
        await self._echo.get(key=self.rank)
        return acted - began, stepped - acted, time.perf_counter() - stepped


def measure(cluster: Cluster, config: EmbodiedConfig) -> list[Measured]:
    """On one device, and on as many as there are; the slowest of its workers counts."""
    found = []
    for count in sorted({1, min(len(cluster.devices), config.shards)}):
        layout = lay_out("collocated", count, config.shards)
        probes = cluster.group(Probe, config, layout, devices=layout.env, name=f"probe-{count}")
        if count > 1:
            probes.meet(probes[0].free_address().wait()).wait()
        each = probes.measure().wait()
        slowest = (max(getattr(m, name) for m in each) for name in ("step_s", "act_s", "hop_s", "learn_s"))
        found.append(Measured(count, *slowest))
    return found


def _low(seconds: Sequence[float]) -> float:
    return quantiles(seconds, n=4, method="inclusive")[0]
