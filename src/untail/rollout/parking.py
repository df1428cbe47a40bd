"""Members whose turn is over and whose environment is to reply.

Invariant: a parked member holds no slot; its sequence stays on its engine, the first to lose its KV if that runs out.
When its reply is there it waits for a slot like other work that has begun. When a step closes, what is parked is
unfinished like what runs: cancelled, or left for the next step. An environment that is at work then goes on, and is
heard in the next step; a latency stands still between two steps. A run that is resumed asks anew where no answer had
come.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from untail.envs import Answer
from untail.rollout.live import Member, Parking, State
from untail.rollout.turns import Turns
from untail.types import Trajectory

if TYPE_CHECKING:
    from untail.rollout.lives import Lives


class ParkingLot:
    def __init__(self, lives: Lives):
        self.lives = lives
        self.stage = lives.stage
        self._at_work: dict[str, asyncio.Task[None]] = {}  # environments, by member
        self._sleeping: dict[str, asyncio.Task[None]] = {}  # latencies, by member

    @property
    def turns(self) -> Turns:
        """Pre: there is an environment."""
        assert self.stage.turns is not None
        return self.stage.turns

    async def close(self) -> None:
        tasks = [*self._at_work.values(), *self._sleeping.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def takes(self, member: Member) -> bool:
        """Its turn is over, and its environment may want another."""
        return self.stage.turns is not None and self.turns.may_go_on(member.trajectory, member.left)

    def park(self, member: Member) -> None:
        """Pre: `takes`, and it holds a slot."""
        stage = self.stage
        self.lives.end_segment(member, "turn")
        stage.fleet.rest(member, State.PARKED)
        member.goes_to = None  # it would wait elsewhere just as well
        member.parking = Parking(since=stage.clock.now())
        stage.busy.discard(member)
        stage.parked.append(member)
        stage.record("park", id=member.id, tokens=member.length, turn=member.trajectory.turns)
        self._ask(member)

    def hear(self, member: Member, answer: Answer) -> None:
        """The environment has answered, or the latency of its answer is over."""
        parking = _parking(member)
        parking.tick(self.stage.clock.now())
        if parking.answer is None:
            self._at_work.pop(member.id, None)
            parking.answer, parking.left_s = self.turns.wait_s(answer, parking.waited_s)
            if parking.left_s > 0:
                if not self.stage.closing:
                    self._sleep(member, parking)
                return
        self._go_on(member, parking.answer)

    def pause(self) -> None:
        """The step is over: nobody's time goes on."""
        for member in self.stage.parked:
            parking = _parking(member)
            parking.tick(self.stage.clock.now())
            sleep = self._sleeping.get(member.id)
            if sleep is not None and not sleep.done():  # of one that is, the inbox has the answer already
                sleep.cancel()
                del self._sleeping[member.id]

    def go_on(self) -> None:
        """A step begins. Whoever has not been asked by this process is asked now."""
        for member in self.stage.parked:
            parking = _parking(member)
            parking.since = self.stage.clock.now()
            if parking.answer is None:
                if member.id not in self._at_work:
                    self._ask(member)
            elif member.id not in self._sleeping:
                self._sleep(member, parking)

    def leave(self, member: Member) -> None:
        """Nobody waits for its reply any longer; it may not be parked at all."""
        if member.parking is not None:
            member.parking = None
            self.stage.parked.remove(member)
            for tasks in (self._at_work, self._sleeping):
                if member.id in tasks:
                    tasks.pop(member.id).cancel()

    def figures(self, member: Member) -> dict[str, Any]:
        """For its `end` event."""
        if self.stage.turns is None:
            return {}
        trajectory = member.trajectory
        return {"turns": trajectory.turns, "tool_s": member.tool_s, "tool_failure": trajectory.tool_failure}

    def _ask(self, member: Member) -> None:
        async def ask(name: str, trajectory: Trajectory) -> None:
            try:
                item: Answer | Exception = await self.turns.ask(trajectory)
            except Exception as error:
                item = error
            self.stage.inbox.put_nowait((name, item))

        self._at_work[member.id] = asyncio.create_task(ask(member.id, member.trajectory))

    def _sleep(self, member: Member, parking: Parking) -> None:
        async def sleep(name: str, seconds: float, answer: Answer | None) -> None:
            assert answer is not None
            await self.stage.clock.sleep(seconds)
            self.stage.inbox.put_nowait((name, answer))

        self._sleeping[member.id] = asyncio.create_task(sleep(member.id, parking.left_s, parking.answer))

    def _go_on(self, member: Member, answer: Answer) -> None:
        """With the reply, or to its end."""
        stage, trajectory, seconds = self.stage, member.trajectory, round(_parking(member).waited_s, 6)
        self.leave(member)
        member.tool_s += seconds
        tokens = self.turns.tokens_of(trajectory, answer)
        if not isinstance(tokens, list):
            trajectory.tool_failure = tokens
            stage.busy.add(member)
            self.lives.end(member)
            return
        turn, length = trajectory.turns, len(tokens)
        trajectory.take_reply(tokens, stage.view.step - 1)
        self.lives.end_segment(member, "reply")
        stage.record("reply", id=member.id, tokens=member.length, reply=length, turn=turn, seconds=seconds)
        member.reply, member.state = tokens, State.WAITING
        member.ceiling = member.length + self.turns.room(trajectory)
        member.partial, member.partial_at = None, -1  # it was about the turn before
        member.route = stage.mechanisms.route(member, stage.view)
        stage.queue.put(member)


def _parking(member: Member) -> Parking:
    assert member.parking is not None
    return member.parking
