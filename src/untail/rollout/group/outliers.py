"""5.2, outliers, pruned with probability 0.5.

Far: the cosine distance of its feature to the centroid of the unfinished exceeds median + 3 MAD. Flat: the mean entropy
of its last segment is in the lowest decile of all that ended in this step so far; with `entropy = both` also in the
highest. `combine = all`: far and flat. `any`: far, or flat, or a low partial score. With `entropy = low` one whose
entropy is above the step's median is never pruned: what is unlike the others because it explores is left alone.
"""

from bisect import bisect_left, bisect_right, insort
from typing import Literal

from untail.config import NotNegative
from untail.rollout.group.base import Pruner, Share
from untail.rollout.group.features import far_bound, last_entropy, similarities
from untail.rollout.live import LiveGroup, Member
from untail.rollout.points import MECHANISMS, View


@MECHANISMS.register("outliers")
class Outliers(Pruner):
    sections = "5.2"
    reason = "outlier"
    needs_entropy = True
    wants_hidden = True

    class Config(Pruner.Config):
        combine: Literal["all", "any"] = "all"
        entropy: Literal["low", "both"] = "low"
        mads: NotNegative = 3.0
        decile: Share = 0.1
        low_partial: Share = 0.5  # below it a partial score is low
        probability: Share = 0.5

    config: Config

    def __init__(self, config: Config):
        super().__init__(config)
        self._step = 0
        self._seen: list[float] = []  # mean entropies of segments of this step, ascending

    @property
    def wants_partial(self) -> bool:
        return self.config.combine == "any"

    @property
    def chance(self) -> float:
        return self.config.probability

    def worst(self, group: LiveGroup, view: View) -> list[Member]:
        members = group.open
        entropies = {member.id: last_entropy(member) for member in members}
        self._remember(list(entropies.values()), view.step)
        distances = {m.id: 1 - alike for m, alike in zip(members, similarities(members), strict=True)}
        bound = far_bound(list(distances.values()), self.config.mads)
        found = [m for m in members if self._is_out(m, distances[m.id] > bound + 1e-9, entropies[m.id])]
        return sorted(found, key=lambda m: (-distances[m.id], m.serial))

    def _remember(self, entropies: list[float], step: int) -> None:
        if step != self._step:
            self._step, self._seen = step, []
        for entropy in entropies:
            insort(self._seen, entropy)

    def _is_out(self, member: Member, far: bool, entropy: float) -> bool:
        below, above = bisect_left(self._seen, entropy), len(self._seen) - bisect_right(self._seen, entropy)
        edge = int(self.config.decile * len(self._seen))
        flat = below < edge or (self.config.entropy == "both" and above < edge)
        if self.config.entropy == "low" and above < below:
            return False
        if self.config.combine == "all":
            return far and flat
        return far or flat or (member.partial is not None and member.partial < self.config.low_partial)
