"""From prompts to groups in the queue.

Invariant: a prompt that is under way is not asked again, and a step that nothing is under way for gets something, even
where every mechanism refuses.
"""

from collections.abc import Callable, Iterator

from untail.observe.excerpt import beginning
from untail.rollout.live import GroupPlan, LiveGroup, Member
from untail.rollout.points import View
from untail.rollout.stage import Stage
from untail.types import Prompt, Trajectory, stream_key

Shape = Callable[[GroupPlan, View], GroupPlan | None]


class Admission:
    def __init__(self, stage: Stage):
        self.stage = stage
        self._anyway = False  # every mechanism has refused, and the step asks for plain groups

    def admit(self, count: int) -> int:
        """Up to `count` new groups; how many there were prompts for."""
        stage = self.stage
        admitted = self._from(stage.mechanisms.rank(stage.view), count, stage.mechanisms.shape)
        if not admitted and not stage.pool.live and not stage.pool.ready:
            self._anyway = True
            admitted = self._from(stage.view.next_in_order(), count, lambda plan, view: plan)
            self._anyway = False
        return admitted

    def _from(self, ranked: Iterator[Prompt], count: int, shape: Shape) -> int:
        stage, admitted = self.stage, 0
        tries = len(stage.view.prompts)
        while admitted < count and tries and (prompt := next(ranked, None)) is not None:
            tries -= 1
            if not stage.pool.asks(prompt.id):
                plan = shape(self._plain_plan(prompt), stage.view)
                if plan is not None:
                    self._begin(plan)
                    admitted += 1
        return admitted

    def _plain_plan(self, prompt: Prompt) -> GroupPlan:
        config = self.stage.config
        predicted = self.stage.predictor.predict(prompt)
        return GroupPlan(prompt, config.group, config.group, config.max_tokens, predicted)

    def _begin(self, plan: GroupPlan) -> None:
        stage = self.stage
        group = LiveGroup(f"g{stage.serial:08}", plan, stage.view.step)
        stage.pool.add(group)
        stage.view.started += plan.size
        stage.record(
            "admit",
            group=group.id,
            prompt=plan.prompt.id,
            size=plan.size,
            keep=plan.keep,
            budget=plan.budget,
            predicted=plan.predicted.known_mean,
            source=plan.predicted.source,
            text=beginning(plan.prompt.text),
            **({"anyway": True} if self._anyway else {}),
        )
        for number in range(plan.size):
            name = f"{group.id}/{number}"
            member = Member(Trajectory(name, plan.prompt, stream_key(stage.seed, name)), group, stage.serial)
            stage.serial += 1
            group.members.append(member)
            stage.members[name] = member
            stage.queue.put(member)
