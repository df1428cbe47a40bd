"""5.4, fork: places of those that were stopped are filled with copies of the best of the unfinished.

`rank`, the best first: `nll`, by the lowest mean NLL; `template`, those in which the answer's marker stands, then by
NLL; `partial`, by the highest partial score, then by NLL; `uncertainty`, by the highest mean entropy of the last
segment. `parents`: the one `best`, the `top` k, or all `survivors`, in turn. The j-th copy of a member has the
temperature T (1 + 0.2 j), at most 1.5 T.
"""

from collections import Counter
from itertools import cycle, islice
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field

from untail.config import NotNegative, PositiveInt, Strict
from untail.errors import ConfigError
from untail.rollout.group.features import last_entropy
from untail.rollout.live import LiveGroup, Member
from untail.rollout.points import MECHANISMS, Copy, GroupPoint, Mechanism, View
from untail.rollout.watch.recital import contains


@MECHANISMS.register("fork")
class Fork(Mechanism, GroupPoint):
    sections = "5.4"
    needs_fork = True

    class Config(Strict):
        rank: Literal["nll", "template", "partial", "uncertainty"] = "nll"
        parents: Literal["best", "top", "survivors"] = "survivors"
        k: PositiveInt = 2  # with parents = "top"
        marker_ids: tuple[Annotated[int, Field(ge=0)], ...] = ()  # what an answer begins with, for rank = "template"
        warmer: NotNegative = 0.2  # per copy
        warmest: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.5

    config: Config

    @property
    def wants_partial(self) -> bool:
        return self.config.rank == "partial"

    @property
    def is_lossy(self) -> bool:
        return self.config.warmer > 0 and self.config.warmest > 1

    def check(self, group: int, budget: int) -> None:
        if self.config.rank == "template" and not self.config.marker_ids:
            raise ConfigError(
                "mechanisms.fork.rank = 'template' needs mechanisms.fork.marker_ids, the token ids that an answer "
                "begins with; set them, or choose another rank"
            )

    def copies(self, group: LiveGroup, places: int, view: View) -> list[Copy]:
        ranked = sorted(group.open, key=lambda m: (*self._rank(m), m.serial))
        most = {"best": 1, "top": self.config.k, "survivors": len(ranked)}[self.config.parents]
        so_far = Counter(member.trajectory.parent for member in group.members)
        copies = []
        for parent in islice(cycle(ranked[:most]), places):
            so_far[parent.id] += 1
            heat = min(1 + self.config.warmer * so_far[parent.id], self.config.warmest)
            copies.append(Copy(parent, heat))
        return copies

    def _rank(self, member: Member) -> tuple[float, ...]:
        """The lowest is the best."""
        trajectory = member.trajectory
        nll = -fmean(trajectory.of_model("policy_logprob"))
        match self.config.rank:
            case "template":
                return (not contains(trajectory.of_model("tokens"), self.config.marker_ids), nll)
            case "partial":
                return (-(member.partial or 0.0), nll)
            case "uncertainty":
                return (-last_entropy(member),)
            case _:
                return (nll,)
