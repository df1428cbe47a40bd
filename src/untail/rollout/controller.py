"""The rollout: drives one or more engines through the decision points until a step's groups are there.

Invariant: it knows no mechanism by name, and takes time from the backends' clock alone. Between two steps nothing
runs: what is unfinished rests at a boundary with its tokens, log-probs and versions, or is parked for its
environment's reply, and goes on where it stopped.
Every token that an engine makes is accounted for once (see lives.py), in the step's events.
"""

import asyncio
import math
from collections.abc import Set
from itertools import chain, filterfalse
from typing import Any

from untail.backends.base import Backend
from untail.config import RolloutConfig
from untail.errors import ConfigError
from untail.history.store import History
from untail.rollout.admission import Admission
from untail.rollout.certain import Certain, Give
from untail.rollout.live import Member, State
from untail.rollout.lives import Lives
from untail.rollout.mechanisms import Mechanisms
from untail.rollout.stage import Emit, ScoreIt, ScorePart, Stage
from untail.rollout.turns import Turns
from untail.types import Group, Prompt, SamplingParams, Trajectory

MOST_ROUNDS = 10  # of new groups in a step: a recipe that throws everything away must come to an end


class Controller:
    def __init__(
        self,
        backends: list[Backend],
        slots_each: int,
        prompts: list[Prompt],
        score: ScoreIt,
        config: RolloutConfig,
        mechanisms: Mechanisms,
        history: History,
        vocab: int,
        stop_ids: tuple[int, ...] = (),
        seed: int = 0,
        partial: ScorePart | None = None,
        turns: Turns | None = None,
        wants_past: bool = False,
    ):
        """`slots_each` sequences run on each backend at once; `partial` is for tasks that have partial scores; `turns`:
        with whom they converse; `wants_past`: somebody drafts from earlier responses."""
        self.stage = Stage(
            backends, slots_each, prompts, score, config, mechanisms, history, vocab, seed, partial, turns, wants_past
        )
        self.admission = Admission(self.stage)
        self.lives = Lives(self.stage)
        self._sampling = SamplingParams(
            config.temperature,
            stop_ids=stop_ids,
            stop_strings=turns.environment.stop_strings if turns else (),
            policy_temperature=config.temperature,
        )
        self._alarm: tuple[float, asyncio.Task[None]] | None = None
        self._runners: Set[str] | None = None  # groups that alone are waited for; None: everybody runs
        self._moves_every = min((place.every for place in mechanisms.places), default=math.inf)
        self._next_moves = math.inf

    async def roll_out(
        self, step: int, emit: Emit, version: int | None = None, give: Give | None = None, early: bool = True
    ) -> list[Group]:
        """The groups that step `step` is to train, with engines whose weights are of `version` or newer; unset: of
        step - 1, which the step trains. `emit` hears every event, `give` gets each of these groups, `early` as soon as
        it is certain that it is one of them."""
        self.stage.pool.version = step - 1 if version is None else version
        certain = Certain(self.stage, give, early)
        self._begin(step, emit)
        try:
            if not self._closes():
                self._new_round()
            while not self._is_over():
                certain.look()
                self._fill()
                await self._hear()
            batch = await self._close()
            certain.hand_on(batch)
            return batch
        finally:
            self.stage.is_on = False

    def underway(self) -> list[Group]:
        """Between two steps: the groups that wait for a later update, with what their members have so far."""
        pool = self.stage.pool
        live = [
            Group(group.id, group.plan.prompt, [m.trajectory for m in group.members if m.state is not State.GONE])
            for group in pool.live.values()
        ]
        return [*live, *pool.ready]

    async def lend(self, engine: int) -> None:
        """Somebody else needs its device: whoever runs there goes on elsewhere. Post: it runs nobody, and gets nobody
        until it is back."""
        stage = self.stage
        self.lives.losses.close(engine)
        there = [member for member in stage.members.values() if member.engine == engine]
        for member in there:
            if member.slot is None:
                stage.fleet.forget(member, at_boundary=True)
        stage.fleet.cut(member for member in there if member.state is State.RUNNING)
        while any(member.engine == engine for member in stage.busy):
            await asyncio.sleep(0.002)

    def engine_is_lost(self, engine: int, why: str) -> None:
        """Whoever rests there goes on elsewhere; whoever runs there hears it from the engine."""
        self.lives.losses.engine(engine, why)
        self.stage.inbox.put_nowait(None)

    def engine_is_back(self, engine: int) -> None:
        """It was lost, or lent, and takes members again."""
        self.stage.fleet.is_back(engine)
        self.stage.announce("back", engine=engine)
        self.stage.inbox.put_nowait(None)

    def give_up(self, error: Exception) -> None:
        """No engine is left, and none will come back."""
        self.stage.fatal = error
        self.stage.inbox.put_nowait(None)

    async def close(self) -> None:
        """Let go of everything, wherever it is."""
        self._set_alarm(math.inf)
        await self.lives.close()
        await self.stage.fleet.close()

    def _begin(self, step: int, emit: Emit) -> None:
        stage, view = self.stage, self.stage.view
        stage.emit, stage.closing, stage.failure = emit, False, None
        self._runners = None
        view.begin(step)
        if self._moves_every < math.inf:
            self._next_moves = stage.clock.now()  # the weights have just changed
        stage.queue.hurry(stage.pool.overdue(step))
        stage.meter.begin()
        view.kv_used = stage.meter.kv_used()
        parked = [member.id for member in stage.parked if member.ghost is None]
        stage.record("step", version=step - 1, carried=stage.pool.carried, **({"parked": parked} if parked else {}))
        stage.is_on = True
        stage.record_announced()
        self.lives.parking.go_on()

    def _new_round(self) -> bool:
        """What rests goes on, and new groups fill up what is under way; False if there was neither."""
        stage = self.stage
        resting, stage.resting = stage.resting, []
        for member in resting:
            stage.queue.put(member)
        goes_on = any(member.ghost is None for member in resting)
        missing = stage.mechanisms.starts(stage.view)
        if missing <= 0 or stage.view.rounds == MOST_ROUNDS or self._runners is not None:
            return goes_on
        if stage.failure is not None and not stage.view.ended and not goes_on:
            raise stage.failure  # whatever is started fails: another round would too
        stage.view.rounds += 1
        return bool(self.admission.admit(missing)) or goes_on

    def _closes(self) -> bool:
        """A mechanism says so, and no group would be too stale for the next update."""
        stage = self.stage
        if stage.mechanisms.closes_at(stage.view) > stage.clock.now():
            return False
        return stage.mechanisms.rest != "defer" or not stage.pool.has_overdue(stage.view.step)

    def _is_over(self) -> bool:
        stage = self.stage
        self._runners = stage.mechanisms.waits_for(stage.view)
        # The audit's ghosts are nobody's business: a step does not wait for them.
        members = chain(stage.busy, stage.queue, stage.parked)
        is_idle = all(member.ghost or self._is_in_the_way(member) for member in members)
        return self._closes() or (is_idle and not self._new_round())

    # ---- free slots -------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Give free slots to what waits, then to new groups as far as a mechanism wants them."""
        stage = self.stage
        if self._runners is not None:
            self._clear_the_way()
        self._serve_queue()
        while self._runners is None and stage.mechanisms.refills and stage.fleet.slots.free and not stage.queue:
            if not self.admission.admit(self._refill()):
                break
            self._serve_queue()

    def _clear_the_way(self) -> None:
        """What the step does not wait for comes to rest."""
        running = (member for member in self.stage.busy if member.state is State.RUNNING)
        self.stage.fleet.cut(sorted(filter(self._is_in_the_way, running), key=lambda member: member.serial))

    def _is_in_the_way(self, member: Member) -> bool:
        return self._runners is not None and (member.ghost is not None or member.group.id not in self._runners)

    def _refill(self) -> int:
        """New groups. Where nothing can be left for the next step, only a batch's worth may be started."""
        stage, pool, view = self.stage, self.stage.pool, self.stage.view
        so_far_all_fail = stage.failure is not None and not view.ended  # what runs will tell
        if so_far_all_fail or view.started >= MOST_ROUNDS * view.wanted * view.group:
            return 0
        may_be_left = stage.mechanisms.rest == "defer" and pool.max_staleness > 0
        most = math.inf if may_be_left else view.wanted - len(pool.live) - len(pool.ready)
        return int(min(stage.mechanisms.refill(view), most))

    def _serve_queue(self) -> None:
        stage, served = self.stage, set()
        for member in filterfalse(self._is_in_the_way, stage.queue):
            if not stage.fleet.slots.free:
                break
            engine = self._engine_for(member)
            if engine is not None:
                self._go(member, engine)
                served.add(member)
        stage.queue.remove(served)

    def _engine_for(self, member: Member) -> int | None:
        """Where its KV is, or where it is to go, or anywhere; None if there is no slot for it now."""
        stage, slots = self.stage, self.stage.fleet.slots
        home = member.engine if member.engine is not None else member.goes_to
        if not member.started:
            member.route = stage.mechanisms.route(member, stage.view)
        if not slots.admits(member.route):
            return None
        if home is None:
            if not stage.mechanisms.places:
                return slots.emptiest()
            return stage.mechanisms.place(member, slots.free_engines(), stage.view)
        return home if slots.has_free(home) else None

    def _go(self, member: Member, engine: int) -> None:
        stage = self.stage
        stride = stage.mechanisms.stride(member, stage.view)
        chunk = stage.config.watch_every if stage.mechanisms.looks else None
        stage.fleet.go(member, engine, stride.tokens, self._sampling, chunk)
        stage.busy.add(member)
        member.goes_to = None
        place: dict[str, Any] = {"engine": engine, "slot": member.slot, "lane": member.route.lane}
        if member.started:
            stage.record("resume", id=member.id, tokens=member.length, **place)
        else:
            member.started = True
            stage.record("start", id=member.id, group=member.group.id, prompt=member.trajectory.prompt.id, **place)

    # ---- what happens -----------------------------------------------------------------------------------------

    async def _hear(self) -> None:
        """Wait until something happens, then deal with all that has."""
        stage = self.stage
        times = (stage.mechanisms.closes_at(stage.view), self._next_moves)
        self._set_alarm(min((time for time in times if time > stage.clock.now()), default=math.inf))
        items = [await stage.inbox.get()]
        while not stage.inbox.empty():
            items.append(stage.inbox.get_nowait())
        if stage.fatal is not None:
            raise stage.fatal
        speakers = [stage.members[item[0]] for item in items if item is not None and item[0] in stage.members]
        stage.view.kv_used = stage.meter.kv_used({m.engine for m in speakers if m.engine is not None})
        for item in items:
            if item is not None and item[0] in stage.members:
                self.lives.hear(stage.members[item[0]], item[1])
        if stage.clock.now() >= self._next_moves and not stage.closing:
            self._move()

    def _set_alarm(self, time: float) -> None:
        if self._alarm is not None and self._alarm[0] != time:
            self._alarm[1].cancel()
            self._alarm = None
        if self._alarm is None and time < math.inf:
            self._alarm = (time, asyncio.create_task(self._ring(time)))

    async def _ring(self, time: float) -> None:
        await self.stage.clock.sleep(time - self.stage.clock.now())
        self._alarm = None  # should it ring a rounding error early, it is set once more
        self.stage.inbox.put_nowait(None)

    def _move(self) -> None:
        stage = self.stage
        self._next_moves = stage.clock.now() + self._moves_every
        for move in stage.mechanisms.moves(stage.view):
            may_go = move.member.state is State.RUNNING and not move.member.cutting
            if may_go and stage.fleet.slots.is_open(move.engine):
                move.member.goes_to = move.engine
                stage.fleet.cut([move.member])

    # ---- the end of a step ------------------------------------------------------------------------------------

    async def _close(self) -> list[Group]:
        stage = self.stage
        stage.closing = True
        rest = stage.mechanisms.rest
        if rest != "defer":
            self._cancel_the_rest(whole=rest == "cancel")
        await self._bring_to_rest()
        if rest == "close":
            for group in list(stage.pool.live.values()):
                self.lives.check(group)
        batch = stage.pool.take_batch(stage.view.step, stage.batch_size)
        stage.mechanisms.after_step(batch, stage.view)
        if rest == "cancel":
            for group in list(stage.pool.live.values()):
                self.lives.give_up(group)
        if not batch:
            raise stage.failure or ConfigError(
                "no group of this step can be trained: every one was stopped, masked or not kept; loosen or leave out "
                f"one of its mechanisms ({', '.join(stage.mechanisms.by_name) or 'none'})"
            )
        for whole in batch:
            members = [_use(trajectory) for trajectory in whole.trajectories]
            stage.record("train", group=whole.id, prompt=whole.prompt.id, members=members)
        stage.record("rolled_out", carried=stage.pool.carried, **stage.meter.read())
        return batch

    def _cancel_the_rest(self, whole: bool) -> None:
        """Members that are not finished; with `whole`, their siblings whose reward is on its way as well."""
        for group in list(self.stage.pool.live.values()):
            unfinished = group.open
            if unfinished and whole:
                unfinished = [m for m in group.members if m.state not in (State.DONE, State.GONE)]
            for member in unfinished:
                self.lives.cancel(member)

    async def _bring_to_rest(self) -> None:
        """Post: nothing runs, and every reward that was on its way is here."""
        stage = self.stage
        while stage.busy:
            running = (member for member in stage.busy if member.state is State.RUNNING)
            stage.fleet.cut(sorted(running, key=lambda member: member.serial))
            await self._hear()
        self._set_alarm(math.inf)
        self.lives.parking.pause()
        begun = [member for member in stage.queue if member.started]
        stage.queue.remove(set(begun))
        stage.resting += begun


def _use(trajectory: Trajectory) -> dict[str, Any]:
    use = "masked" if trajectory.masked else "stopped" if trajectory.stopped else "trained"
    return {
        "id": trajectory.id,
        "tokens": trajectory.length,
        "made": trajectory.made,
        "reward": trajectory.reward,
        "use": use,
        "versions": [trajectory.version[0], trajectory.version[-1]],
    }
