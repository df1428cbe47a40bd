"""2.1, VADE: ask the prompts that teach most, by Thompson sampling from each prompt's success posterior.

Source: VADE (arXiv 2511.18902).

    p ~ Beta(a + 1, b + 1);  gain = p (1 - p)^2, largest at p = 1/3, or p (1 - p) as an option;  the top B by gain
    after a step with r correct of G:  selected a <- l1 a + r, b <- l1 b + (G - r);  unselected a <- l2 a, b <- l2 b

Ours, off unless `kin` is set: a prompt is also judged by its kin, the prompts of its task that are about as long. Their
posterior, cut to `kin` trajectories, joins its own prior, so that one that was never asked is no longer a coin toss:

    a0, b0 = A k, B k  with  k = min(1, kin / (A + B));  p ~ Beta(sharp (a + a0) + 1, sharp (b + b0) + 1)

`sharp` (1 in VADE) counts what is known so many times. Among hundreds of prompts the luckiest draws of the many easy
ones would else beat the honest draws of the few that teach.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from untail.config import NotNegative, PositiveFloat, Strict
from untail.rollout.admit.shared import PerStep, Share, gain
from untail.rollout.live import GroupPlan
from untail.rollout.points import MECHANISMS, Admit, Mechanism, View
from untail.types import Group, Prompt


class Posterior:
    """(a, b) of every prompt, or every kin of prompts, that was ever trained.

    Invariant: what `at` says is what decaying every one at every step would say. Each keeps the numbers and the step of
    its last update, and the steps since are made up for when it is asked for."""

    def __init__(self, selected: float, unselected: float):
        self.selected = selected
        self.unselected = unselected
        self._updated: dict[str, tuple[float, float, int]] = {}  # a, b, and after which step

    def at(self, name: str, step: int) -> tuple[float, float]:
        """(a, b) as they are during `step`, before its own update."""
        a, b, updated = self._updated.get(name, (0.0, 0.0, step))
        decay = self.unselected ** max(0, step - 1 - updated)
        return a * decay, b * decay

    def update(self, name: str, step: int, correct: int, wrong: int) -> None:
        """Pre: once per name and step, with all that was trained of it."""
        a, b = self.at(name, step)
        self._updated[name] = self.selected * a + correct, self.selected * b + wrong, step

    def state(self) -> dict[str, list[float]]:
        return {name: [a, b, step] for name, (a, b, step) in self._updated.items()}

    def restore(self, state: dict[str, list[float]]) -> None:
        self._updated = {name: (a, b, int(step)) for name, (a, b, step) in state.items()}


@MECHANISMS.register("vade")
class Vade(Mechanism, Admit):
    sections = "2.1"

    class Config(Strict):
        gain: Literal["hard", "plain"] = "hard"  # p (1 - p)^2, or the weaker p (1 - p)
        selected: Share = 0.2  # l1: what an update leaves of a trained prompt's past
        unselected: Share = 0.999  # l2: what a step leaves of any other's
        kin: NotNegative = 0.0  # trajectories that its kin's success counts for in judging a prompt
        sharp: PositiveFloat = 1.0  # how often each trajectory counts

    def __init__(self, config: Any):
        super().__init__(config)
        self.posterior = Posterior(config.selected, config.unselected)
        self.kin_posterior = Posterior(config.selected, config.unselected)
        self.drawn = PerStep(self._draw)
        self.asked = PerStep(_nobody)  # ids of the prompts that this step asks

    def rank(self, view: View) -> Iterator[Prompt] | None:
        """What the step has asked comes last: in a second round it would be the first choice again."""
        return self._places(view)

    def _places(self, view: View) -> Iterator[Prompt]:
        """One at a time: a refill takes a few of perhaps 100,000."""
        drawn, asked = self.drawn.at(view), frozenset(self.asked.at(view))
        yield from (prompt for _, prompt in drawn if prompt.id not in asked)
        yield from (prompt for _, prompt in drawn if prompt.id in asked)

    def shape(self, plan: GroupPlan, view: View) -> GroupPlan | None:
        self.asked.at(view).add(plan.prompt.id)
        return plan

    def after_step(self, batch: Sequence[Group], view: View) -> None:
        by_prompt: dict[str, list[bool]] = {}
        by_kin: dict[str, list[bool]] = {}
        for group in (*batch, *view.dropped):
            for trajectory in group.trajectories:
                if trajectory.failure is None:  # otherwise its reward is not known
                    by_prompt.setdefault(group.prompt.id, []).append(trajectory.reward > 0)
                    by_kin.setdefault(kin_of(group.prompt), []).append(trajectory.reward > 0)
        for posterior, trained in ((self.posterior, by_prompt), (self.kin_posterior, by_kin)):
            for name, right in trained.items():
                posterior.update(name, view.step, sum(right), len(right) - sum(right))

    def state(self) -> dict[str, Any]:
        return {"posterior": self.posterior.state(), "kin": self.kin_posterior.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.posterior.restore(state["posterior"])
        self.kin_posterior.restore(state["kin"])

    def _draw(self, view: View) -> list[tuple[float, Prompt]]:
        """Gains and prompts, the highest gain first."""
        rng, sharp = view.rng("vade"), self.config.sharp
        drawn = []
        for prompt in view.prompts:
            a, b = self._judge(prompt, view.step)
            drawn.append((self._gain(rng.betavariate(sharp * a + 1, sharp * b + 1)), prompt))
        return sorted(drawn, key=lambda pair: -pair[0])

    def _judge(self, prompt: Prompt, step: int) -> tuple[float, float]:
        """(a, b) of the prompt itself, and what its kin adds to them."""
        a, b = self.posterior.at(prompt.id, step)
        if not self.config.kin:
            return a, b
        kin_a, kin_b = self.kin_posterior.at(kin_of(prompt), step)
        weight = min(1.0, self.config.kin / (kin_a + kin_b)) if kin_a + kin_b > 0 else 0.0
        return a + weight * kin_a, b + weight * kin_b

    def _gain(self, p: float) -> float:
        return gain(p) if self.config.gain == "hard" else p * (1 - p)


def kin_of(prompt: Prompt) -> str:
    """Prompts of one task whose lengths differ by less than a fifth share it."""
    return f"{prompt.task}/{round(4 * math.log2(max(1, len(prompt.tokens))))}"


def _nobody(view: View) -> set[str]:
    return set()
