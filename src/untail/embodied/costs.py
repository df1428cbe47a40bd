"""What the roles cost on this machine, and which mode the planner makes of it.

Invariant: costs are measured in workers like those that will run, on one device and on all at once; the lower quartile
counts, for what others do on the machine only adds. An item is an environment. A worker that has several shards steps
them one after the other, and so does a policy act.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import quantiles

from untail.embodied.build import on_host
from untail.embodied.config import EmbodiedConfig
from untail.embodied.layout import Layout, Mode, lay_out
from untail.embodied.workers import Crew
from untail.flow.cluster import Cluster
from untail.flow.cost import Cost, Point, Profiled
from untail.flow.graph import Edge, Graph, Node
from untail.flow.plan import Plan, Step
from untail.flow.work import Work

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


@dataclass(frozen=True)
class WholeBatch:
    """A role that cannot begin before all items are there: a portion would cost it as much."""

    cost: Cost
    batch: int

    def seconds(self, devices: int, items: int) -> float:
        return self.cost.seconds(devices, self.batch)

    def memory_gib(self, devices: int, items: int) -> float:
        return self.cost.memory_gib(devices, self.batch)

    def swap_s(self, devices: int) -> float:
        return self.cost.swap_s(devices)


def graph(config: EmbodiedConfig, hop_s: float) -> Graph:
    """Of one iteration. Apart, env and policy exchange two messages a step for every shard."""
    hops_s = config.horizon * config.shards * hop_s
    return Graph(
        [Node("env", on_host=on_host(config)), Node("policy"), Node("learn")],
        [
            Edge("env", "policy", "observations", hops_s),
            Edge("policy", "env", "actions", hops_s, rounds=config.horizon),
            Edge("policy", "learn", "experiences", config.shards * hop_s),
            Edge("learn", "policy", "weights", next_step=True),
        ],
    )


def make_work(config: EmbodiedConfig, measured: Sequence[Measured], devices: int) -> Work:
    """What the planner is asked."""
    batch, portion = config.envs, config.shard_envs
    step, act, learn = [], [], []
    for m in measured:
        step += [Point(m.devices, portion * m.devices, m.step_s)]
        act += [Point(m.devices, portion * m.devices, m.act_s)]
        learn += [Point(m.devices, batch, m.learn_s)]
        own = -(-config.shards // m.devices)  # shards of the fullest worker
        if own > 1:
            step += [Point(m.devices, portion * m.devices * own, own * m.step_s)]
            act += [Point(m.devices, portion * m.devices * own, own * m.act_s)]
    costs: dict[str, Cost] = {
        "env": Profiled(step),
        "policy": Profiled(act),
        "learn": WholeBatch(Profiled(learn), batch),
    }
    return Work(graph(config, measured[-1].hop_s), costs, devices, batch, portions=[portion])


def mode_of(plan: Plan) -> Mode:
    """The mode that runs it: what counts is whether the policy acts beside environments that step."""
    (loop,) = (step for step in _all(plan.root) if {leaf.node for leaf in step.leaves} == {"env", "policy"})
    if loop.kind == "in turn":
        return "collocated"
    places = plan.root.placement()
    return "disaggregated" if set(places["learn"]) <= set(places["policy"]) else "hybrid"


def _all(step: Step) -> Iterator[Step]:
    yield step
    for part in step.parts:
        yield from _all(part)


def _low(seconds: Sequence[float]) -> float:
    return quantiles(seconds, n=4, method="inclusive")[0]
