"""A backend that does what a script says: for tests of what drives it.

Every sequence gets a token every `latency` seconds by the event loop's time, whatever else runs; those that get one at
the same time get it in the order of their names. Token number i of a response is i, counted from 1 with an
environment's replies, and the last of a turn is 0: a token that was lost or made twice shows. Operations are checked as
strictly as the protocol allows, and every call is written down.
"""

import asyncio
import heapq
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from untail.backends.base import Capabilities, Load, LoopClock
from untail.errors import RequestError, SequenceStateError
from untail.types import Chunk, Forked, SequenceSpec


@dataclass(frozen=True)
class Script:
    """What becomes of one trajectory if it may run to its end."""

    length: int = 4  # tokens of its first turn, the last included
    later: int = 4  # and of every later one
    reward: float = 1.0
    fails_at: int | None = None  # its engine raises after so many tokens
    score_s: float = 0.0  # how long its scorer takes
    score_fails: bool = False  # its scorer raises


Scripts = Callable[[int, int], Script]
"""By the number of the prompt (its first token) and of the member in its group."""


def script_of(scripts: Scripts, tokens: tuple[int, ...], name: str) -> Script:
    return scripts(tokens[0], int(name.rpartition("/")[2]))


class Ticker:
    """One timer for all sequences: between timers of the same time the event loop chooses as it likes."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, str, int, asyncio.Future[None]]] = []  # a heap
        self._serials = count()
        self._timer: asyncio.TimerHandle | None = None

    def after(self, seconds: float, name: str) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        heapq.heappush(self._waiting, (loop.time() + seconds, name, next(self._serials), future))
        self._set_timer()
        return future

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_at(self._waiting[0][0], self._tick)

    def _tick(self) -> None:
        due = self._waiting[0][0]
        while self._waiting and self._waiting[0][0] == due:
            *_, future = heapq.heappop(self._waiting)
            if not future.done():  # somebody interrupted it
                future.set_result(None)
        self._set_timer()


@dataclass(eq=False)
class Sequence:
    spec: SequenceSpec
    script: Script
    made: int
    budget: int
    turn_end: int  # `made` when its turn is over
    rests: bool = False  # at a boundary, or held after a turn
    turn_over: bool = False
    order: str | None = None  # cut, abort or release
    token: asyncio.Future[None] | None = None  # on its way
    woken: asyncio.Event = field(default_factory=asyncio.Event)  # at a boundary


class Scripted:
    def __init__(
        self,
        scripts: Scripts,
        latency: float = 1.0,
        entropy: str = "exact",
        ticker: Ticker | None = None,
        fork: str = "cow",
        by_stream: bool = False,
    ):
        """`by_stream`: those that get a token at the same time get it in the order of their random streams, which a
        copy keeps when it comes back from a checkpoint under another name."""
        self.by_stream = by_stream
        self.capabilities = Capabilities(entropy=entropy, fork=fork, hidden=False, draft=False)
        self.clock = LoopClock()
        self.scripts = scripts
        self.latency = latency
        self.ticker = ticker or Ticker()
        self.version = 0
        self.kv_used = 0.0
        self.computed = self.sampled = 0
        self.calls: list[tuple[Any, ...]] = []
        self.alive: dict[str, Sequence] = {}
        self.forks = count(100)
        self.unread: set[str] = set()  # children whose stream nobody has asked for
        self.most = 0  # that ran at once

    def called(self, kind: str) -> list[Any]:
        """The first argument of every call of this kind."""
        return [call[1] for call in self.calls if call[0] == kind]

    def calls_of(self, kind: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] == kind]

    @property
    def running(self) -> int:
        return sum(not sequence.rests for sequence in self.alive.values())

    async def generate(self, spec: SequenceSpec) -> AsyncGenerator[Chunk, None]:
        self.calls.append(("generate", spec))
        if spec.id in self.alive:
            raise RequestError(f"sequence {spec.id!r} exists already")
        if spec.budget < 1 or spec.chunk < 1 or not 0 <= spec.done < len(spec.tokens):
            raise RequestError(f"{spec} cannot be served")
        script = script_of(self.scripts, spec.tokens, spec.id)
        sequence = Sequence(spec, script, spec.done, spec.budget, _turn_end(spec, script))
        self.alive[spec.id] = sequence
        self.computed += len(spec.tokens)
        self.most = max(self.most, self.running)
        async with aclosing(self._read(sequence)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def stream(self, name: str) -> AsyncGenerator[Chunk, None]:
        """Of the child of a fork."""
        self.unread.remove(name)
        async with aclosing(self._read(self.alive[name])) as chunks:
            async for chunk in chunks:
                yield chunk

    async def fork(self, name: str, streams: list[int], temperatures: list[float] | None = None) -> Forked:
        """The children follow the scripts of members 100, 101 and so on, over the whole backend."""
        self.calls.append(("fork", name, list(streams), temperatures))
        parent = self._at_boundary(name)
        children = []
        for stream in streams:
            child = f"{name}/{next(self.forks)}"
            spec = replace(parent.spec, id=child, stream=stream)
            script = script_of(self.scripts, spec.tokens, child)
            self.alive[child] = Sequence(spec, script, parent.made, 0, _turn_end(spec, script), rests=True)
            children.append(child)
        self.unread.update(children)
        return Forked(parent.made, children)

    async def _read(self, sequence: Sequence) -> AsyncGenerator[Chunk, None]:
        try:
            await self._at_rest(sequence)
            while sequence.order != "release":
                chunk = await self._chunk(sequence)
                sequence.turn_over = chunk.end == "stop"
                sequence.rests = chunk.end == "boundary" or (sequence.turn_over and sequence.spec.hold)
                is_over = chunk.end is not None and not sequence.rests
                yield chunk
                if is_over:
                    return
                await self._at_rest(sequence)
        finally:
            del self.alive[sequence.spec.id]

    async def _at_rest(self, sequence: Sequence) -> None:
        while sequence.rests and sequence.order is None:
            sequence.woken.clear()
            await sequence.woken.wait()

    async def extend(self, name: str, budget: int) -> None:
        self.calls.append(("extend", name, budget))
        if budget < 1:
            raise RequestError(f"{name!r} cannot go on for {budget} tokens")
        sequence = self._at_boundary(name)
        if sequence.turn_over:
            raise SequenceStateError(f"{name!r} ended its turn")
        self._go_on(sequence, budget)

    async def append(self, name: str, tokens: list[int], budget: int | None = None) -> None:
        self.calls.append(("append", name, list(tokens)))
        sequence = self._at_boundary(name)
        if not tokens or not (sequence.turn_over and budget):
            raise RequestError(f"{name!r} takes no reply of {tokens} for {budget} tokens")
        sequence.made += len(tokens)
        sequence.turn_end = sequence.made + sequence.script.later
        self.computed += len(tokens)
        self._go_on(sequence, budget)

    def _go_on(self, sequence: Sequence, budget: int) -> None:
        sequence.rests, sequence.turn_over, sequence.budget = False, False, budget
        self.most = max(self.most, self.running)
        sequence.woken.set()

    async def release(self, name: str) -> None:
        self.calls.append(("release", name))
        self._order(self._at_boundary(name), "release")

    async def cut(self, names: list[str]) -> None:
        self.calls.append(("cut", list(names)))
        for name in names:
            if name in self.alive and not self.alive[name].rests:
                self._order(self.alive[name], "cut")

    async def abort(self, names: list[str]) -> None:
        self.calls.append(("abort", list(names)))
        for name in names:
            if name in self.unread:
                del self.alive[name]
                self.unread.remove(name)
            elif name in self.alive:
                self._order(self.alive[name], "abort")

    def load(self) -> Load:
        return Load(self.kv_used, float(self.sampled), self.computed, self.sampled, 0, 0)

    def step_seconds(self, batch: int) -> float:
        return self.latency

    async def load_weights(self, source: Any, version: int) -> None:
        self.calls.append(("load_weights", version))
        assert version > self.version
        self.version = version

    async def close(self) -> None:
        self.calls.append(("close", None))

    async def _chunk(self, sequence: Sequence) -> Chunk:
        chunk = Chunk()
        while chunk.end is None and len(chunk.tokens) < sequence.spec.chunk:
            if sequence.script.fails_at is not None and sequence.made >= sequence.script.fails_at:
                self.sampled -= len(chunk.tokens)  # nobody will see them
                raise MemoryError(f"no room for {sequence.spec.id}")
            if sequence.order is None:
                order = str(sequence.spec.stream) if self.by_stream else sequence.spec.id
                sequence.token = self.ticker.after(self.latency, order)
                await sequence.token
            if sequence.order is None:
                self._sample(sequence, chunk)
            else:
                chunk.end = "boundary" if sequence.order == "cut" else "abort"
                sequence.order = None
        return chunk

    def _sample(self, sequence: Sequence, chunk: Chunk) -> None:
        sequence.made += 1
        sequence.budget -= 1
        self.sampled += 1
        self.computed += 1
        is_last = sequence.made >= sequence.turn_end
        chunk.tokens.append(0 if is_last else sequence.made)
        chunk.policy_logprob.append(-0.5)
        chunk.behaviour_logprob.append(-0.5)
        chunk.entropy.append(0.5)
        chunk.p_eos.append(1.0 if is_last else 0.0)
        chunk.version.append(self.version)
        chunk.mixed_kv.append(False)
        chunk.lossy.append(False)
        chunk.end = "stop" if is_last else "boundary" if sequence.budget == 0 else None

    def _at_boundary(self, name: str) -> Sequence:
        if name not in self.alive or not self.alive[name].rests:
            raise SequenceStateError(f"sequence {name!r} is unknown or not at a boundary")
        return self.alive[name]

    def _order(self, sequence: Sequence, order: str) -> None:
        if sequence.order != "abort":
            sequence.order = order
        if sequence.token is not None and not sequence.token.done():
            sequence.token.set_result(None)
        sequence.woken.set()


def _turn_end(spec: SequenceSpec, script: Script) -> int:
    return spec.turn_begin + (script.later if spec.turn_begin else script.length)
