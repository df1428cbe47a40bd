"""The first drafter at one depth, always or in small batches only: for those who know what they want, and the yardstick
for the others."""

from untail.config import PositiveInt, Strict
from untail.draft.choose.base import CHOOSERS, OFF, Arm, Chooser, Scene


@CHOOSERS.register("first")
class First(Chooser):
    class Config(Strict):
        depth: PositiveInt = 8  # drafts per sequence
        below: PositiveInt | None = None  # the largest batch that is drafted for; unset: every one

    def choose(self, scene: Scene) -> Arm:
        is_large = self.config.below is not None and scene.batch > self.config.below
        return OFF if is_large or not self.drafters else Arm(self.drafters[0], self.config.depth)
