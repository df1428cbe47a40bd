"""What all watchers of section 4 share: they stop a member, and say what it gets.

Invariant: a look costs the same however long the response is already, unless the watcher is about to fire. A response
shorter than its watcher's window is never stopped. A window is about the text and does not scale, but it is at most a
quarter of the budget: with a small budget a longer one would outlast the watchers' patience.
"""

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from untail.config import Strict
from untail.rollout.live import Member
from untail.rollout.points import Mechanism, Verdict, View, Watch

Share = Annotated[float, Field(ge=0, le=1)]


class Watcher(Mechanism, Watch):
    sections = "4"
    reason: ClassVar[str]
    only_stops = True

    class Config(Strict):
        stopped: Literal["penalty", "group_min", "zero", "mask"] = "penalty"

    def look(self, member: Member, view: View) -> Verdict | None:
        return Verdict("stop", self.reason, self.config.stopped) if self.fires(member, view) else None

    def window(self, view: View) -> int:
        """Pre: the config has one."""
        return min(self.config.window, max(1, view.budget // 4))

    @abstractmethod
    def fires(self, member: Member, view: View) -> bool:
        """Pre: it has at least one token."""
