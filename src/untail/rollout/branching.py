"""A group between two segments: who is pruned, and who is copied into the places that this frees.

Invariant: a group is asked when each of its open members has come to a boundary in this step since it was last asked.
Until then they wait for one another, and their slots serve others. A copy has the parent's tokens up to where it was
made; they were generated once and count once, for the parent. For every copy the group keeps one more.
"""

from collections.abc import Callable

from untail.rollout.live import LiveGroup, Member, State, copy_of
from untail.rollout.points import Copy, GroupPoint, Verdict
from untail.rollout.stage import Stage
from untail.types import stream_key

Stop = Callable[[Member, Verdict], None]
MayStop = Callable[[Member], bool]


class Branching:
    def __init__(self, stage: Stage, stop: Stop, may_stop: MayStop):
        self.stage = stage
        self._stop = stop
        self._may_stop = may_stop

    def waits(self, member: Member) -> bool:
        """At its boundary it waits for its siblings; True if so."""
        if not self.stage.mechanisms.group_points or member.ghost is not None:
            return False
        member.rested_in = self.stage.view.step
        return True

    def ask_if_due(self, group: LiveGroup) -> None:
        stage = self.stage
        if stage.closing or not stage.mechanisms.group_points or not self._is_due(group):
            return
        for member in group.open:
            member.rested_in = 0
        for point in stage.mechanisms.group_points:
            if self._is_under_way(group):
                self._prune(group, point)
        if self._is_under_way(group) and group.free_places > 0:
            self._fill_places(group)
        self._go_on(group)

    def _is_due(self, group: LiveGroup) -> bool:
        step = self.stage.view.step
        is_due = lambda m: m.state is State.WAITING and m.rested_in == step and not m.partial_due
        return bool(group.open) and all(map(is_due, group.open))

    def _is_under_way(self, group: LiveGroup) -> bool:
        """Whoever is stopped may make the group whole: then the others are cancelled."""
        return group.id in self.stage.pool.live and bool(group.open)

    def _prune(self, group: LiveGroup, point: GroupPoint) -> None:
        members = {member.id: member for member in group.open}
        for name, verdict in self.stage.mechanisms.decide(point, group, self.stage.view).items():
            member = members[name]
            counts = member.is_open and verdict.reason not in self.stage.audit.off and self._may_stop(member)
            if counts and verdict.act == "spare":
                member.trajectory.survival *= 1 - verdict.chance
            elif counts and verdict.act == "stop":
                member.trajectory.survival = 0.0
                self._stop(member, verdict)

    def _fill_places(self, group: LiveGroup) -> None:
        stage = self.stage
        by_parent: dict[str, list[Copy]] = {}
        for copy in stage.mechanisms.copies(group, group.free_places, stage.view):
            by_parent.setdefault(copy.parent.id, []).append(copy)
        for copies in by_parent.values():
            parent = copies[0].parent
            children = [self._child_of(copy) for copy in copies]
            stage.fleet.fork(parent, children)
            for child in children:
                self._join(child, parent)

    def _child_of(self, copy: Copy) -> Member:
        stage, parent, group = self.stage, copy.parent, copy.parent.group
        number = len(group.members)
        child = copy_of(
            parent,
            stage.serial,
            id=f"{group.id}/{number}",
            stream=stream_key(stage.seed, parent.id, number),
            parent=parent.id,
            forked_at=len(parent.trajectory.tokens),
            temperature=copy.heat * stage.config.temperature,
        )
        stage.serial += 1
        group.members.append(child)
        group.plan.keep += 1
        return child

    def _join(self, child: Member, parent: Member) -> None:
        """It waits where its parent does."""
        stage, trajectory = self.stage, child.trajectory
        child.goes_to = parent.goes_to
        stage.members[child.id] = child
        stage.resting.append(child)
        stage.view.started += 1
        stage.record(
            "fork",
            id=child.id,
            parent=parent.id,
            group=child.group.id,
            tokens=trajectory.forked_at,
            temperature=trajectory.temperature,
            engine=child.engine,
        )

    def _go_on(self, group: LiveGroup) -> None:
        """Where free slots get work at once, those who waited for one another wait for a slot now."""
        stage = self.stage
        goes_on = lambda m: m.group is group and (stage.mechanisms.refills or m.goes_to is not None)
        for member in [member for member in stage.resting if goes_on(member)]:
            stage.queue.put(member)
        stage.resting = [member for member in stage.resting if not goes_on(member)]
