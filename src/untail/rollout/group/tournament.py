"""5.3, tournament: score = z(-mean NLL) + z(similarity to the centroid) + z(partial score, if the task has one); the
lowest share (0.5) of the unfinished is pruned.

The NLL is that of the policy over the whole response, the similarity that of the last segment.
"""

from statistics import fmean
from typing import Annotated

from pydantic import Field

from untail.rollout.group.base import Pruner
from untail.rollout.group.features import similarities, standard
from untail.rollout.live import LiveGroup, Member
from untail.rollout.points import MECHANISMS, View


@MECHANISMS.register("tournament")
class Tournament(Pruner):
    sections = "5.3"
    reason = "tournament"
    wants_hidden = True

    class Config(Pruner.Config):
        share: Annotated[float, Field(gt=0, lt=1)] = 0.5  # of the unfinished

    config: Config

    @property
    def wants_partial(self) -> bool:
        return True

    def worst(self, group: LiveGroup, view: View) -> list[Member]:
        members = group.open
        sure = standard([fmean(member.trajectory.of_model("policy_logprob")) for member in members])
        alike = standard(similarities(members))
        partial = standard([member.partial for member in members])
        scores = {m.id: sum(parts) for m, *parts in zip(members, sure, alike, partial, strict=True)}
        ranked = sorted(members, key=lambda m: (scores[m.id], -m.serial))
        return ranked[: int(self.config.share * len(members))]
