"""What becomes of members and groups, as engines and scorers speak of them.

Invariant: every token is counted under one fate, when that is certain: a group's under `train` or `drop`, a cancelled
member's under `cancel`, a failed one's under `fail`, what was made past a decision under `left`, what was made for the
audit alone under `audit`. A failure costs its own trajectory and no other.
"""

import asyncio

from untail.backends.base import EngineLost
from untail.envs import Answer
from untail.observe.excerpt import ending
from untail.rewards.scorer import PartialScore, Score
from untail.rollout.audit import CANCELLED
from untail.rollout.branching import Branching
from untail.rollout.live import LiveGroup, Member, State, ghost_of
from untail.rollout.losses import Losses
from untail.rollout.outcome import records_of, settle_rewards
from untail.rollout.parking import ParkingLot
from untail.rollout.partials import Partials
from untail.rollout.points import Verdict
from untail.rollout.stage import Stage
from untail.types import Chunk, Group, Segment

LONGEST_PATIENCE = 2048


class Lives:
    def __init__(self, stage: Stage):
        self.stage = stage
        self.partials = Partials(stage)
        self.branching = Branching(stage, lambda m, verdict: self._stop(m, verdict, at_boundary=True), self._may_stop)
        self.parking = ParkingLot(self)
        self.losses = Losses(stage, self.end_segment, self._leave_lost)
        self._scoring: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        await self.parking.close()
        for task in self._scoring:
            task.cancel()
        await asyncio.gather(*self._scoring, return_exceptions=True)
        await self.partials.close()

    def hear(self, member: Member, item: Chunk | Exception | Score | PartialScore | Answer) -> None:
        self._hear(member, item)
        self.branching.ask_if_due(member.group)

    def _hear(self, member: Member, item: Chunk | Exception | Score | PartialScore | Answer) -> None:
        if isinstance(item, Score):
            self._on_score(member, item)
        elif isinstance(item, PartialScore):
            self.partials.hear(member, item)
        elif isinstance(item, Answer):
            self.parking.hear(member, item)
        elif isinstance(item, EngineLost):
            self.losses.hear(member, item)
        elif isinstance(item, Exception):
            self._on_failure(member, item)
        else:
            self.stage.meter.generated += len(item.tokens)
            if member.state is State.RUNNING:
                self._on_chunk(member, item)
            else:
                self._on_late_chunk(member, item)

    # ---- while it runs ----------------------------------------------------------------------------------------

    def _on_chunk(self, member: Member, chunk: Chunk) -> None:
        member.trajectory.take(chunk)
        if chunk.hidden_sum is not None:
            member.hidden = chunk.hidden_sum if member.hidden is None else member.hidden + chunk.hidden_sum
        turn_is_over = self.parking.takes(member)
        if chunk.end in ("stop", "length") and not turn_is_over:
            self.end(member)
            return
        if self.stage.mechanisms.watchers_want_partial:
            self.partials.ask(member)
        verdict = self._watch(member) if chunk.tokens and member.ghost is None else None
        if verdict is not None and verdict.act == "stop":
            self._stop(member, verdict, at_boundary=chunk.end is not None)
        elif chunk.end is not None:
            self._at_boundary(member)
        elif verdict is not None:
            self.stage.fleet.cut([member])

    def _watch(self, member: Member) -> Verdict | None:
        stage = self.stage
        return stage.mechanisms.look(member, stage.view, self._may_stop(member), stage.audit.off)

    def _may_stop(self, member: Member) -> bool:
        """The patience with it is over."""
        stage = self.stage
        if stage.config.patience == "segment":
            return bool(member.trajectory.segments)
        strides = 2 * member.first_stride if stage.mechanisms.striders else 0
        patience = min(LONGEST_PATIENCE, max(strides, member.group.plan.budget / 4))
        return member.length >= (stage.config.patience or patience)

    def _at_boundary(self, member: Member) -> None:
        """Its stride is used up, it was cut, or its turn is over and its environment is to reply."""
        stage = self.stage
        if member.trajectory.end == "stop":
            self.parking.park(member)
            return
        if member.left <= 0:
            member.trajectory.end = "length"
            self.end(member, at_boundary=True)
            return
        self.end_segment(member, "cut" if member.cutting else "boundary")
        member.route = stage.mechanisms.route(member, stage.view)
        if not stage.closing and not member.cutting:
            stride = stage.mechanisms.stride(member, stage.view)
            if stride.in_place:
                stage.fleet.go_on(member, stride.tokens)
                return
        self._rest(member)

    def _rest(self, member: Member) -> None:
        """It leaves its slot, for as long as it has to wait for the next."""
        stage, tokens = self.stage, member.length
        stage.fleet.rest(member)
        if not member.partial_due:  # a step that closes waits for it, so that a checkpoint has it
            stage.busy.discard(member)
        if stage.closing:
            stage.record("defer", id=member.id, tokens=tokens)
        else:
            stage.record("segment", id=member.id, tokens=tokens, why="cut" if member.cutting else "boundary")
        if member.goes_to is not None:
            stage.record("move", id=member.id, source=member.engine, engine=member.goes_to, tokens=tokens)
            stage.fleet.forget(member, at_boundary=True)
        elif member.engine is not None and not stage.fleet.slots.is_open(member.engine):  # it is lent to somebody else
            stage.fleet.forget(member, at_boundary=True)
        if not stage.closing and self.branching.waits(member):
            self.partials.ask(member)
            stage.resting.append(member)
        elif stage.closing or not (stage.mechanisms.refills or member.goes_to is not None):
            stage.resting.append(member)
        else:
            stage.queue.put(member)

    def end_segment(self, member: Member, why: str) -> None:
        end = len(member.trajectory.tokens)
        if end > member.segment_begin:
            member.trajectory.segments.append(Segment(member.segment_begin, end, why))
            if member.hidden is not None:
                member.feature = member.hidden / (end - member.segment_begin)
        member.segment_begin, member.hidden = end, None

    # ---- how it ends ------------------------------------------------------------------------------------------

    def end(self, member: Member, at_boundary: bool = False) -> None:
        """It ended by itself; its reward is the next thing to know."""
        stage, trajectory = self.stage, member.trajectory
        stage.fleet.forget(member, at_boundary or (trajectory.end == "stop" and stage.fleet.hold))
        self.end_segment(member, trajectory.end or "stop")
        member.state = State.SCORING
        if member.ghost is None:
            stage.view.ended += 1
            stage.record(
                "end",
                id=member.id,
                group=member.group.id,
                tokens=member.length,
                prompt_tokens=len(trajectory.prompt.tokens),
                end=trajectory.end,
                segments=len(trajectory.written_segments),
                boundaries=sum(segment.why == "boundary" for segment in trajectory.segments),
                versions=[trajectory.version[0], trajectory.version[-1]],
                entropy=trajectory.mean_entropy,
                predicted=member.group.plan.predicted.known_mean,
                **self.parking.figures(member),
            )
        else:
            stage.record("left", id=member.id, overrun=0)
        task = asyncio.create_task(self._score(member))
        self._scoring.add(task)
        task.add_done_callback(self._scoring.discard)

    async def _score(self, member: Member) -> None:
        try:
            async with self.stage.clock.frozen():
                score: Score | Exception = await self.stage.score(member.trajectory)
        except Exception as error:
            score = error
        self.stage.inbox.put_nowait((member.id, score))

    def _on_score(self, member: Member, score: Score) -> None:
        stage, trajectory, plan = self.stage, member.trajectory, member.group.plan
        trajectory.reward, trajectory.failure = score.value, score.failure
        stage.busy.discard(member)
        del stage.members[member.id]
        if member.ghost is not None:
            self._end_audit(member)
            return
        if trajectory.end == "length" and trajectory.reward <= 0 and plan.truncated_reward is not None:
            trajectory.reward = plan.truncated_reward
        # Recorded even if it was cancelled meanwhile: one that came to its end needs no audit to be known.
        text = ending(trajectory.text)
        stage.record("score", id=member.id, reward=trajectory.reward, failure=score.failure, text=text)
        if member.state is State.SCORING:
            member.state = State.DONE
            self.check(member.group)

    def _stop(self, member: Member, verdict: Verdict, at_boundary: bool) -> None:
        stage, trajectory = self.stage, member.trajectory
        self.end_segment(member, verdict.reason)
        trajectory.stopped, member.rule = verdict.reason, verdict.stopped
        audited = stage.audit.chooses(member.id)
        stage.view.ended += 1
        stage.record(
            "stop",
            id=member.id,
            group=member.group.id,
            tokens=member.length,
            made=trajectory.made,
            reason=verdict.reason,
            segments=len(trajectory.written_segments),
            audited=audited,
        )
        if audited:
            self._haunt(member, verdict.reason, at_boundary)
            member.state = State.DONE
        else:
            self._let_go(member, State.DONE, at_boundary)
        trajectory.end = None  # only now: a ghost goes on from there
        self.check(member.group)

    def cancel(self, member: Member) -> None:
        """Nobody waits for it any longer. Pre: it is not done."""
        member.cancelled = "step" if self.stage.closing else "group"
        # Not whether it has tokens: without a watcher nobody has seen any before its segment is over.
        audited = member.is_open and member.started and self.stage.audit.chooses(member.id)
        if audited or member.state is not State.RUNNING:  # of one that runs, the last tokens are still to come
            self._record_cancel(member, audited)
        if member.state is State.SCORING:
            member.state = State.GONE
        elif audited:
            self._haunt(member, CANCELLED, at_boundary=False)
            member.state = State.GONE
        else:
            self._let_go(member, State.GONE, at_boundary=False)

    def _record_cancel(self, member: Member, audited: bool) -> None:
        trajectory, why = member.trajectory, member.cancelled
        lengths = {"tokens": member.length, "made": trajectory.made}
        self.stage.record("cancel", id=member.id, group=member.group.id, **lengths, why=why, audited=audited)

    def _let_go(self, member: Member, state: State, at_boundary: bool) -> None:
        """Its sequence ends; if it runs, it holds its slot until the engine says so."""
        stage, was_running = self.stage, member.state is State.RUNNING
        member.state = state
        if was_running and not at_boundary:
            stage.fleet.abort(member)
            return
        self._take_out_of_line(member)
        stage.fleet.forget(member, at_boundary=True)
        stage.busy.discard(member)
        del stage.members[member.id]
        if was_running:
            stage.record("left", id=member.id, overrun=0)

    def _take_out_of_line(self, member: Member) -> None:
        """It waits for no slot and no reply any longer, if it did."""
        self.stage.queue.remove({member})
        self.stage.resting = [other for other in self.stage.resting if other is not member]
        self.parking.leave(member)

    def _on_late_chunk(self, member: Member, chunk: Chunk) -> None:
        """It was stopped or cancelled meanwhile. What was stopped has ended where it was; what was cancelled is counted
        with all it has."""
        if member.state is State.GONE:
            member.trajectory.take(chunk)
        else:
            self.stage.meter.overrun(member.id, len(chunk.tokens))
        if chunk.end in ("stop", "length", "abort"):
            if member.state is State.GONE:
                self._record_cancel(member, audited=False)
            self._leave(member)

    def _leave_lost(self, member: Member) -> None:
        """It was stopped or cancelled, and its engine is gone before it said so."""
        if member.state is State.GONE:
            self._record_cancel(member, audited=False)
        self._leave(member)

    def _leave(self, member: Member) -> None:
        stage = self.stage
        self.parking.leave(member)
        stage.fleet.forget(member)
        stage.busy.discard(member)
        stage.members.pop(member.id, None)
        stage.record("left", id=member.id, overrun=stage.meter.take_overrun(member.id))

    def _on_failure(self, member: Member, error: Exception) -> None:
        stage = self.stage
        stage.failure = stage.failure or error
        is_counted = member.state is State.DONE or (member.state is State.GONE and member.slot is None)
        made = member.trajectory.made if member.ghost is None else member.length - member.ghost_begin
        tokens = 0 if is_counted else made
        stage.record("fail", id=member.id, group=member.group.id, tokens=tokens, error=str(error))
        self._leave(member)
        self._take_out_of_line(member)
        if member.ghost is not None:
            del stage.pool.ghosts[member.id]
        elif member.state not in (State.DONE, State.GONE):
            member.state = State.GONE
            if member.trajectory.parent is not None:
                member.group.plan.keep -= 1  # it was kept one more for this copy
            self.check(member.group)

    # ---- the audit --------------------------------------------------------------------------------------------

    def _haunt(self, member: Member, reason: str, at_boundary: bool) -> None:
        """A ghost goes on with its sequence. Pre: the member is as it was before it was stopped or cancelled."""
        stage, ghost = self.stage, ghost_of(member, reason)
        stage.members[member.id] = stage.pool.ghosts[member.id] = ghost
        stage.busy.discard(member)
        if member.state is State.RUNNING:
            stage.fleet.slots.hand_over(member, ghost)
            stage.busy.add(ghost)
            if at_boundary:
                self._at_boundary(ghost)
        elif member in stage.resting:
            stage.resting[stage.resting.index(member)] = ghost
        elif member in stage.parked:
            stage.parked[stage.parked.index(member)] = ghost
        else:
            stage.queue.remove({member})
            stage.queue.put(ghost)
        member.engine = member.parking = None

    def _end_audit(self, ghost: Member) -> None:
        stage, reason, trajectory = self.stage, ghost.ghost, ghost.trajectory
        assert reason is not None
        was_off = reason in stage.audit.off
        under_way = sum(other.ghost == reason for other in stage.pool.ghosts.values()) - 1
        verdicts = stage.audit.hear(reason, trajectory.reward > 0, under_way)
        tokens = ghost.length
        extra = tokens - ghost.ghost_begin
        stage.record("audit", id=ghost.id, reason=reason, tokens=tokens, extra=extra, reward=trajectory.reward)
        if reason in stage.audit.off and not was_off:
            counts = {"false_kills": verdicts.rewarded, "audited": verdicts.audited}
            stage.record("off", reason=reason, **counts, low=verdicts.low(under_way))
        del stage.pool.ghosts[ghost.id]

    # ---- the group --------------------------------------------------------------------------------------------

    def check(self, group: LiveGroup) -> None:
        """Is it whole? Then its rewards are settled, and it is ready or dropped."""
        stage = self.stage
        if group.id not in stage.pool.live or not group.is_whole:
            return
        for member in group.members:
            if member.state not in (State.DONE, State.GONE):
                self.cancel(member)
        self._settle(group)
        whole = Group(group.id, group.plan.prompt, [member.trajectory for member in group.done])
        if sum(not trajectory.masked for trajectory in whole.trajectories) < 2:
            self.drop(group, "fewer than two members")
        elif not stage.mechanisms.keeps(whole, stage.view):
            self.drop(group, "not kept")
            stage.view.dropped.append(whole)
        else:
            stage.pool.remove(group)
            stage.pool.ready.append(whole)

    def give_up(self, group: LiveGroup) -> None:
        """The step did not wait for it. Pre: its members are done or gone."""
        self._settle(group)
        self.drop(group, "not waited for")

    def _settle(self, group: LiveGroup) -> None:
        settle_rewards(group)
        self.stage.history.add(records_of(group, self.stage.view.step, self.stage.config.max_tokens))

    def drop(self, group: LiveGroup, why: str) -> None:
        tokens = sum(member.trajectory.made for member in group.done)
        self.stage.record("drop", group=group.id, why=why, tokens=tokens)
        self.stage.pool.remove(group)
