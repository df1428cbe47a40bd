"""2.1, VADE: ask the prompts that teach most, by Thompson sampling from each prompt's success posterior.

Source: VADE (arXiv 2511.18902).

    p ~ Beta(a + 1, b + 1);  gain = p (1 - p)^2, largest at p = 1/3, or p (1 - p) as an option;  the top B by gain
    after a step with r correct of G:  selected a <- l1 a + r, b <- l1 b + (G - r);  unselected a <- l2 a, b <- l2 b
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from untail.config import Strict
from untail.rollout.admit.shared import PerStep, Share, gain
from untail.rollout.live import GroupPlan
from untail.rollout.points import MECHANISMS, Admit, Mechanism, View
from untail.types import Group, Prompt


class Posterior:
    """(a, b) of every prompt that was ever trained.

    Invariant: what `at` says is what decaying every prompt at every step would say. A prompt keeps the numbers and the
    step of its last update, and the steps since are made up for when it is asked for."""

    def __init__(self, selected: float, unselected: float):
        self.selected = selected
        self.unselected = unselected
        self._updated: dict[str, tuple[float, float, int]] = {}  # a, b, and after which step

    def at(self, prompt: str, step: int) -> tuple[float, float]:
        """(a, b) as they are during `step`, before its own update."""
        a, b, updated = self._updated.get(prompt, (0.0, 0.0, step))
        decay = self.unselected ** max(0, step - 1 - updated)
        return a * decay, b * decay

    def update(self, prompt: str, step: int, correct: int, wrong: int) -> None:
        """Pre: once per prompt and step, with all that was trained of it."""
        a, b = self.at(prompt, step)
        self._updated[prompt] = self.selected * a + correct, self.selected * b + wrong, step

    def state(self) -> dict[str, list[float]]:
        return {prompt: [a, b, step] for prompt, (a, b, step) in self._updated.items()}

    def restore(self, state: dict[str, list[float]]) -> None:
        self._updated = {prompt: (a, b, int(step)) for prompt, (a, b, step) in state.items()}


@MECHANISMS.register("vade")
class Vade(Mechanism, Admit):
    sections = "2.1"

    class Config(Strict):
        gain: Literal["hard", "plain"] = "hard"  # p (1 - p)^2, or the weaker p (1 - p)
        selected: Share = 0.2  # l1: what an update leaves of a trained prompt's past
        unselected: Share = 0.999  # l2: what a step leaves of any other's

    def __init__(self, config: Any):
        super().__init__(config)
        self.posterior = Posterior(config.selected, config.unselected)
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
        trained: dict[str, list[bool]] = {}
        for group in (*batch, *view.dropped):
            for trajectory in group.trajectories:
                if trajectory.failure is None:  # otherwise its reward is not known
                    trained.setdefault(group.prompt.id, []).append(trajectory.reward > 0)
        for prompt, right in trained.items():
            self.posterior.update(prompt, view.step, sum(right), len(right) - sum(right))

    def state(self) -> dict[str, Any]:
        return {"posterior": self.posterior.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.posterior.restore(state["posterior"])

    def _draw(self, view: View) -> list[tuple[float, Prompt]]:
        """Gains and prompts, the highest gain first."""
        rng = view.rng("vade")
        drawn = []
        for prompt in view.prompts:
            a, b = self.posterior.at(prompt.id, view.step)
            drawn.append((self._gain(rng.betavariate(a + 1, b + 1)), prompt))
        return sorted(drawn, key=lambda pair: -pair[0])

    def _gain(self, p: float) -> float:
        return gain(p) if self.config.gain == "hard" else p * (1 - p)


def _nobody(view: View) -> set[str]:
    return set()
