"""An iteration as a flow graph, and the layout that runs the planner's plan.

Invariant: an item is an environment. A worker that has several shards steps them one after the other, a policy acts for
them one after the other, and the learner begins when all is there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from untail.embodied.build import on_host
from untail.embodied.config import EmbodiedConfig
from untail.embodied.layout import Layout, Mode, lay_out
from untail.embodied.measure import Measured
from untail.flow.cost import Cost, Point, Profiled
from untail.flow.graph import Edge, Graph, Node
from untail.flow.plan import Plan, Step
from untail.flow.work import Work


@dataclass(frozen=True)
class WholeBatch(Cost):
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


def layout_of(config: EmbodiedConfig, plan: Plan) -> Layout:
    """With as many devices for each role as the plan gives it."""
    places = plan.root.placement()
    given = {"for_envs": len(places["env"]), "learners": len(places["learn"])}
    return lay_out(mode_of(plan), plan.devices, config.shards, on_host(config), **given)


def _all(step: Step) -> Iterator[Step]:
    yield step
    for part in step.parts:
        yield from _all(part)
