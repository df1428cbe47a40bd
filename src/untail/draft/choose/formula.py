"""7.7, the drafter and the depth by formula, or off.

Source: Seer (arXiv 2511.14617). In a batch of B and at depth g, with a the chance that a draft is accepted if those
before it were, a sequence's token takes (D(g) + T_verify(B, g)) (1 - a) / (1 - a^(g+1)) seconds. The inverse of it, for
the whole batch, is made largest here:

    tokens per second = B (1 + f (a + a^2 + ... + a^g)) / (D(B, g) + T(B (1 + f g)))

T(v) are the seconds of a step that verifies v tokens, D those of drafting. f is ours: the share of sequences that the
drafter has a guess for, without which one that often has none would look slower than it is.

Invariant: T is learned from every step, whoever drafted, a and f from every step of the drafter at whatever depth, so
that a few steps tell about all depths. What a drafter showed fades with every step, its own or not, and an early belief
that never fades takes its place: one that did badly is believed in again some day, and nothing is tried for its own
sake.
"""

from typing import Any

from untail.config import PositiveInt, Strict
from untail.draft.choose.base import CHOOSERS, OFF, Arm, Chooser, Outcome, Scene
from untail.draft.choose.curve import Curve

BELIEF = 0.7  # acceptance of a drafter that is not known yet
WEIGHT = 8.0  # sequences' steps that the belief counts for
FADES = 0.995  # what is left of what was seen, a step later


class Form:
    """What a drafter shows."""

    def __init__(self) -> None:
        self.asked = self.drafting = 0.0  # sequences
        self.judged = self.accepted = 0.0  # drafts; those behind the first wrong one were not judged
        self.seconds = Curve()  # of one draft for each sequence, over the batch

    def fade(self) -> None:
        self.asked, self.drafting = FADES * self.asked, FADES * self.drafting
        self.judged, self.accepted = FADES * self.judged, FADES * self.accepted

    def heard(self, batch: int, depth: int, outcome: Outcome) -> None:
        self.asked += batch
        self.drafting += outcome.drafted_for
        self.judged += min(outcome.drafted, outcome.accepted + outcome.drafted_for)
        self.accepted += outcome.accepted
        self.seconds.record(batch, outcome.draft_s / depth)

    @property
    def acceptance(self) -> float:
        return (BELIEF * WEIGHT + self.accepted) / (WEIGHT + self.judged)

    @property
    def share(self) -> float:
        """Of the sequences, those that it has a guess for."""
        return (WEIGHT + self.drafting) / (WEIGHT + self.asked)

    def state(self) -> list[Any]:
        return [self.asked, self.drafting, self.judged, self.accepted, self.seconds.state()]

    def restore(self, state: list[Any]) -> None:
        self.asked, self.drafting, self.judged, self.accepted, seconds = state
        self.seconds.restore(seconds)


@CHOOSERS.register("formula")
class Formula(Chooser):
    section = "7.7"

    class Config(Strict):
        deepest: PositiveInt = 8  # drafts per sequence
        max_verify: PositiveInt = 512  # tokens that a step may verify: what is wider is not offered

    config: Config

    def __init__(self, config: Any, drafters: list[str], seed: int):
        super().__init__(config, drafters, seed)
        self._forms = {name: Form() for name in drafters}
        self._verify = Curve()  # seconds of a step without its drafting, over the tokens that it verified

    def choose(self, scene: Scene) -> Arm:
        deepest = min(self.config.deepest, self.config.max_verify // scene.batch - 1)
        if deepest < 1 or not self._verify:
            return OFF
        unknown = next((name for name, form in self._forms.items() if not form.seconds), None)
        if unknown is not None:
            return Arm(unknown, min(2, deepest))
        depths = range(1, deepest + 1)
        arms = [OFF, *(Arm(name, depth) for name in self.drafters for depth in depths)]
        return max(arms, key=lambda arm: self._speed(scene.batch, arm))

    def heard(self, scene: Scene, arm: Arm, outcome: Outcome) -> None:
        for form in self._forms.values():
            form.fade()
        self._verify.record(scene.batch + outcome.drafted, outcome.step_s - outcome.draft_s)
        if arm.drafter is not None:
            self._forms[arm.drafter].heard(scene.batch, arm.depth, outcome)

    def state(self) -> dict[str, Any]:
        return {"verify": self._verify.state(), "forms": {name: form.state() for name, form in self._forms.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        self._verify.restore(state["verify"])
        for name, form in self._forms.items():
            if name in state["forms"]:
                form.restore(state["forms"][name])

    def _speed(self, batch: int, arm: Arm) -> float:
        """Tokens per second, as the formula has it."""
        if arm.drafter is None:
            return batch / self._verify.estimate(batch)
        form = self._forms[arm.drafter]
        tokens = batch * (1 + form.share * accepted_of(form.acceptance, arm.depth))
        drafting_s = arm.depth * form.seconds.estimate(batch)
        return tokens / (drafting_s + self._verify.estimate(batch * (1 + form.share * arm.depth)))


def accepted_of(acceptance: float, depth: int) -> float:
    """a + a^2 + ... + a^depth"""
    a = min(acceptance, 1 - 1e-9)
    return a * (1 - a**depth) / (1 - a)
