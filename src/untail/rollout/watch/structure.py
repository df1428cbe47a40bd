"""Section 4, structure: the task's partial score says that the response can no longer succeed: it is 0, or at most
`hopeless`. A task without a partial score, or one that cannot tell yet, stops nobody."""

from untail.rollout.live import Member
from untail.rollout.points import MECHANISMS, View
from untail.rollout.watch.base import Share, Watcher


@MECHANISMS.register("structure")
class Structure(Watcher):
    reason = "structure"

    class Config(Watcher.Config):
        hopeless: Share = 0.0

    config: Config

    @property
    def wants_partial(self) -> bool:
        return True

    def fires(self, member: Member, view: View) -> bool:
        return member.partial is not None and member.partial <= self.config.hopeless
