"""The engines, their slots, and the sequence of every member that is in one.

Invariant: a member that is RUNNING holds a slot on the engine where its sequence is. One that rests keeps its engine,
and goes on there. What a sequence yields reaches the inbox under the member's name, whoever bears it by then. A loss
counts for those who were there when it happened: by the time it is heard the engine may be back, and have others.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from untail.backends.base import Backend, EngineLost
from untail.rollout.live import Member, State
from untail.rollout.pump import Pump
from untail.rollout.slots import Slots
from untail.types import Chunk, Prompt, SamplingParams, SequenceSpec

Put = Callable[[str, Chunk | Exception], None]
Past = Callable[[Prompt], tuple[tuple[int, ...], ...]]


class Fleet:
    def __init__(
        self,
        backends: list[Backend],
        slots_each: int,
        put: Put,
        hidden: bool = False,
        hold: bool = False,
        past: Past | None = None,
    ):
        """`hidden`: sums of hidden states are wanted, from engines that have them. `hold`: sequences stay after a turn,
        for an environment's reply. `past`: what was answered to a prompt before, if drafts are made of it."""
        self.backends = backends
        self.hidden = hidden
        self.hold = hold
        self.past = past
        self.clock = backends[0].clock
        self.slots = Slots(len(backends), slots_each)
        self._put = put
        self._pumps: dict[str, Pump] = {}
        self._lives = [0] * len(backends)  # how often each engine was lost
        self._life_of: dict[str, int] = {}  # of the engine, when a member's sequence began there
        self._leaving: set[asyncio.Task[None]] = set()  # what nobody waits for, but must not be lost

    def go(self, member: Member, engine: int, stride: int, sampling: SamplingParams, chunk: int | None) -> None:
        """A slot for its next segment: its sequence goes on, or starts with what it has. Pre: the engine has one."""
        self.slots.take(member, engine)
        member.state, member.stride, member.cutting = State.RUNNING, stride, False
        member.first_stride = member.first_stride or stride
        reply, member.reply = member.reply, []
        if member.id in self._pumps:
            self._pumps[member.id].extend(stride, reply)
            return
        trajectory, backend = member.trajectory, self.backends[engine]
        if trajectory.temperature is not None:
            sampling = replace(sampling, temperature=trajectory.temperature)
        spec = SequenceSpec(
            member.id,
            (*trajectory.prompt.tokens, *trajectory.tokens),
            stride,
            trajectory.stream,
            sampling,
            chunk or member.left,
            hold=self.hold,
            hidden=self.hidden and backend.capabilities.hidden,
            done=len(trajectory.tokens),
            turn_begin=trajectory.turn_begin,
            past=self.past(trajectory.prompt) if self.past else (),
        )
        self._pumps[member.id] = Pump(backend, spec, self._teller(member.id, engine), self.hold)

    def fork(self, parent: Member, children: Sequence[Member]) -> None:
        """The children share the parent's keys and values, if it has any and its engine can; else each starts with its
        tokens when it gets a slot. Pre: the parent is at a boundary, and each child has a stream and a temperature."""
        pump = self._pumps.get(parent.id)
        if pump is None or pump.backend.capabilities.fork != "cow":
            return
        trajectories = [child.trajectory for child in children]
        streams, temperatures = [t.stream for t in trajectories], [t.temperature or 1.0 for t in trajectories]
        for child, name in zip(children, pump.fork(streams, temperatures), strict=True):
            assert parent.engine is not None
            self._pumps[child.id] = Pump(pump.backend, name, self._teller(child.id, parent.engine), self.hold)

    def go_on(self, member: Member, stride: int) -> None:
        """In the slot that it has. Pre: at a boundary."""
        member.stride = stride
        self._pumps[member.id].extend(stride, [])

    def rest(self, member: Member, state: State = State.WAITING) -> None:
        """It leaves its slot at a boundary or after a turn; its KV stays."""
        self.slots.leave(member)
        member.state = state

    def cut(self, members: Iterable[Member]) -> None:
        """They come to a boundary as soon as their engines can."""
        pumps: dict[int, list[Pump]] = {}
        for member in members:
            if not member.cutting and member.engine is not None:
                member.cutting = True
                pumps.setdefault(member.engine, []).append(self._pumps[member.id])
        for engine, cut in pumps.items():
            self._spawn(self._cut(engine, cut))

    def abort(self, member: Member) -> None:
        """Its last chunk is still to come; it holds its slot until then."""
        self._pumps[member.id].abort()

    def forget(self, member: Member, at_boundary: bool = False) -> None:
        """Its sequence is over, or nobody wants more of one that is at a boundary; it may have none."""
        if member.slot is not None:
            self.slots.leave(member)
        member.engine = None
        pump, _ = self._pumps.pop(member.id, None), self._life_of.pop(member.id, None)
        if pump is not None:
            if at_boundary:
                pump.release()
            self._spawn(pump.done())

    def lose(self, engine: int, life: int | None = None) -> bool:
        """It is gone: nobody is placed there. False if that was known, or is of an earlier life."""
        if not self.slots.is_open(engine) or life not in (None, self._lives[engine]):
            return False
        self.slots.close(engine)
        return True

    def is_back(self, engine: int) -> None:
        self._lives[engine] += 1
        self.slots.open(engine)

    def is_hit(self, member: Member, loss: EngineLost) -> bool:
        """Its sequence is one of those that were lost."""
        return member.engine == loss.engine and self._life_of.get(member.id) == loss.life

    def drop(self, member: Member) -> None:
        """Its sequence went with its engine; it starts anew with what it has, wherever it gets a slot."""
        if member.slot is not None:
            self.slots.leave(member)
        member.engine = None
        pump, _ = self._pumps.pop(member.id, None), self._life_of.pop(member.id, None)
        if pump is not None:
            self._spawn(pump.cancel())  # and nothing is aborted: an engine that is back may have given the name away

    async def close(self) -> None:
        await asyncio.gather(*(pump.close() for pump in self._pumps.values()))
        await asyncio.gather(*self._leaving, return_exceptions=True)
        self._pumps.clear()

    async def _cut(self, engine: int, pumps: list[Pump]) -> None:
        names = []
        for pump in pumps:
            with suppress(Exception):  # a child that could not be made
                names.append(await pump.name())
        try:
            await self.backends[engine].cut(names)
        except Exception as error:  # waited for, they would never come to their boundary
            for pump in pumps:
                pump.fail(error)

    def _teller(self, name: str, engine: int) -> Callable[[Chunk | Exception], None]:
        """To the inbox. A loss says which engine it was, and when: its member may be elsewhere when that is heard."""
        life = self._life_of[name] = self._lives[engine]

        def tell(item: Chunk | Exception) -> None:
            self._put(name, EngineLost(str(item), engine, life) if isinstance(item, EngineLost) else item)

        return tell

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
