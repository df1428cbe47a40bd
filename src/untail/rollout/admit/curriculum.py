"""2.7, length curriculum: the budget grows as the rewards do.

    budget = fraction x difficulty x the longest response
    fraction: 1/8 at first; x 2, up to 1, each time the EMA of the step's mean reward is 0.05 above where it was at the
        last doubling (at first: above that of the first step), and also when more than half of a step's responses were
        cut at their budget: with a short longest response 1/8 of it may hold no answer at all, and no reward would rise
    difficulty: linear from 1.5 (never solved) to 0.5 (always solved) in the success rate; while that is unknown, the
        prompt's length over the mean prompt's, within the same bounds
    once the fraction is 1: half of this for prompts with a success rate above 0.8

A response that reaches its budget without any reward gets -0.1 instead of 0.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, Any

from pydantic import Field, model_validator

from untail.config import PositiveFloat, Strict
from untail.rollout.admit.shared import PerStep, PositiveShare, Share, success_rate
from untail.rollout.live import GroupPlan
from untail.rollout.points import MECHANISMS, Admit, Mechanism, View
from untail.types import Group, Prompt


@MECHANISMS.register("curriculum")
class Curriculum(Mechanism, Admit):
    sections = "2.7"

    class Config(Strict):
        start: PositiveShare = 1 / 8  # of the longest response
        rise: PositiveFloat = 0.05  # of the reward EMA, for a doubling
        starved: Share = 0.5  # of a step's responses that were cut, for a doubling all the same
        memory: Annotated[float, Field(ge=0, lt=1)] = 0.9  # what a step leaves of the EMA
        easiest: PositiveFloat = 0.5  # difficulty of a prompt that is always solved
        hardest: PositiveFloat = 1.5  # of one that never is
        mastered: Share = 0.8  # success rate above which a prompt shrinks again
        mastered_share: PositiveShare = 0.5
        truncated_reward: Annotated[float, Field(le=0, allow_inf_nan=False)] = -0.1

        @model_validator(mode="after")
        def _harder_is_longer(self) -> "Curriculum.Config":
            if self.easiest > self.hardest:
                raise ValueError(
                    f"mechanisms.curriculum.easiest = {self.easiest} exceeds mechanisms.curriculum.hardest = "
                    f"{self.hardest}; lower it"
                )
            return self

    def __init__(self, config: Any):
        super().__init__(config)
        self.fraction = config.start
        self.ema: float | None = None
        self.mark: float | None = None  # the EMA at the last doubling
        self.usual_length = PerStep(_mean_prompt)

    def shape(self, plan: GroupPlan, view: View) -> GroupPlan | None:
        rate = success_rate(plan.prompt, view)
        share = self.fraction * self._difficulty(plan.prompt, rate, view)
        if self.fraction == 1 and rate is not None and rate > self.config.mastered:
            share *= self.config.mastered_share
        plan.budget = min(plan.budget, max(1, round(share * view.budget)))
        plan.truncated_reward = self.config.truncated_reward
        return plan

    def after_step(self, batch: Sequence[Group], view: View) -> None:
        trained = [t for group in batch for t in group.trajectories if not t.masked]
        if not trained:
            return
        mean = fmean(t.reward for t in trained)
        cut = sum(t.end == "length" for t in trained) / len(trained)
        self.ema = mean if self.ema is None else self.config.memory * self.ema + (1 - self.config.memory) * mean
        if self.mark is None:
            self.mark = self.ema
        if self.ema >= self.mark + self.config.rise or cut > self.config.starved:
            self.fraction, self.mark = min(1.0, 2 * self.fraction), self.ema

    def state(self) -> dict[str, Any]:
        return {"fraction": self.fraction, "ema": self.ema, "mark": self.mark}

    def restore(self, state: dict[str, Any]) -> None:
        self.fraction, self.ema, self.mark = state["fraction"], state["ema"], state["mark"]

    def _difficulty(self, prompt: Prompt, rate: float | None, view: View) -> float:
        low, high = self.config.easiest, self.config.hardest
        if rate is not None:
            return low + (high - low) * (1 - rate)
        return min(max(len(prompt.tokens) / self.usual_length.at(view), low), high)


def _mean_prompt(view: View) -> float:
    return fmean(len(prompt.tokens) for prompt in view.prompts)
