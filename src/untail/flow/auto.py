"""Roles that sit where a plan puts them (flow.mode = "auto").

Invariant: they sit where the fastest plan for the costs as measured puts them. What they really take is heard after
each step; they move when another mode has become so much faster that the steps that are left pay for the move.
"""

from pathlib import Path
from typing import Any

from untail.config import Recipe
from untail.flow.cluster import Cluster
from untail.flow.measure import measure
from untail.flow.placement import Placement
from untail.flow.plan import Plan
from untail.flow.profile import Profile, training_work
from untail.flow.watch import Watch
from untail.flow.work import Work
from untail.flow.worker import Worker
from untail.types import Prompt

MOVE_S = 20.0  # to save, to end all workers and to start others, at most


class ProfileWorker(Worker):
    """Measures on a device as engines and learner have one."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    def measure(self, prompts: list[Prompt]) -> Profile:
        from untail.engine.models.load import load_model

        config = self.recipe.engine
        return measure(self.recipe, load_model(self.recipe.model, config.device, config.dtype), prompts)


class Auto:
    def __init__(self, work: Work, schedule: str = "sync"):
        self._watch = Watch(work)
        self._in_step = schedule == "sync"  # else a step's rollout is not what it takes, but what is waited for

    @classmethod
    def of(cls, recipe: Recipe, cluster: Cluster, prompts: list[Prompt]) -> "Auto":
        return cls(work_of(recipe, cluster, prompts), recipe.flow.schedule)

    @property
    def plan(self) -> Plan:
        """The one in force."""
        return self._watch.plan

    @property
    def portion(self) -> int:
        """Groups that the learner is handed at a time."""
        return self.plan.granularity

    def place(self, devices: list[int]) -> Placement:
        where = self.plan.root.placement()
        learner, engines = ([devices[number] for number in where[role]] for role in ("update", "rollout"))
        shared = [device for device in engines if device in learner]
        if self.plan.mode == "collocated":
            return Placement([], engines, learner)
        return Placement([device for device in engines if device not in shared], shared, learner)

    def hear(self, row: dict[str, Any], steps_left: int) -> bool:
        """A step's metrics. True if the roles are to move: `plan` is a new one then."""
        seconds = {"rollout": row["rollout_s"]} if self._in_step else {}
        if "update_s" in (learn := row["learn"]):
            seconds["update"] = learn["update_s"] + learn.get("logprob_s", 0.0)
        before, after = self.plan, self._watch.hear(seconds)
        if after is None:
            return False
        if after.mode != before.mode and _gain(before, after) * steps_left > MOVE_S:
            return True
        if after.root.placement() != before.root.placement():
            self._watch.plan = before  # with the new costs: what is heard next is of where they sit now
        return False


def work_of(recipe: Recipe, cluster: Cluster, prompts: list[Prompt]) -> Work:
    """By `flow.profile`, or else by what is measured on the cluster's first device."""
    flow = recipe.flow
    profile = _measured(recipe, cluster, prompts) if flow.profile is None else Profile.load(Path(flow.profile))
    return training_work(profile, recipe, len(cluster.devices), steady=flow.schedule != "sync")


def _measured(recipe: Recipe, cluster: Cluster, prompts: list[Prompt]) -> Profile:
    worker = cluster.group(ProfileWorker, recipe, devices=[cluster.devices[:1]], name="profile")[0]
    try:
        profile: Profile = worker.measure(prompts).wait()
        return profile
    finally:
        worker.kill()


def _gain(before: Plan, after: Plan) -> float:
    """Seconds a step that the new mode saves."""
    stay = [other.seconds for other in after.alternatives if other.mode == before.mode and other.seconds is not None]
    return min(stay) - after.predicted_step_s if stay else 0.0
