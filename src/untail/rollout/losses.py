"""What becomes of members whose engine is lost: they go on elsewhere, from the tokens that they have.

Invariant: no token that was heard of is lost, and none is generated twice under one trajectory: a member that ran goes
back into the queue where it stood when its engine last spoke; one that rested there keeps its place and loses only its
keys and values. Until the engine is back nobody is placed on it. Whoever knows of the loss first says so (`engine`):
those who rest are told nothing by their engine, and it may be back before anybody who ran there is heard.
"""

from collections.abc import Callable

from untail.backends.base import EngineLost
from untail.rollout.live import Member, State
from untail.rollout.stage import Stage


class Losses:
    def __init__(self, stage: Stage, end_segment: Callable[[Member, str], None], leave: Callable[[Member], None]):
        """`leave`: of one whose end was only waited for."""
        self.stage = stage
        self._end_segment = end_segment
        self._leave = leave

    def engine(self, engine: int, why: str, life: int | None = None) -> None:
        """It is lost, in the life that it has, or in this one."""
        if self.close(engine, life):
            self._let_rest_elsewhere(engine, why)

    def close(self, engine: int, life: int | None = None) -> bool:
        """Nobody is placed there, and whoever was on the way goes anywhere. False if that was known, or is of an
        earlier life."""
        if not self.stage.fleet.lose(engine, life):
            return False
        for member in self.stage.members.values():
            if member.goes_to == engine:
                member.goes_to = None
        return True

    def hear(self, member: Member, error: EngineLost) -> None:
        if error.engine is None or not self.stage.fleet.is_hit(member, error):
            return  # it has been said before: the member is on its way elsewhere
        self.engine(error.engine, str(error), error.life)
        if member.state is State.RUNNING:
            self._go_on_elsewhere(member)
        else:
            self._leave(member)

    def _let_rest_elsewhere(self, engine: int, why: str) -> None:
        stage, hit = self.stage, [m for m in self.stage.members.values() if m.engine == engine]
        stage.announce("lost", engine=engine, members=len(hit), error=why)
        for member in hit:
            if member.slot is None:
                stage.fleet.drop(member)

    def _go_on_elsewhere(self, member: Member) -> None:
        stage = self.stage
        self._end_segment(member, "lost")
        stage.fleet.drop(member)
        member.state, member.cutting, member.goes_to = State.WAITING, False, None
        if not member.partial_due:
            stage.busy.discard(member)
        if stage.closing:
            stage.record("defer", id=member.id, tokens=member.length)
            stage.resting.append(member)
        else:
            stage.record("segment", id=member.id, tokens=member.length, why="lost")
            stage.queue.put(member)
