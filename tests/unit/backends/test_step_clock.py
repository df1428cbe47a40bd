"""Deterministic time: it depends on the work alone, whatever the world outside takes."""

import asyncio
import random
from contextlib import suppress

import pytest
from tests.helpers.models import random_decoder
from tests.helpers.running import spec

from untail.backends.native import NativeBackend
from untail.backends.step_clock import LATENCY, StepClock
from untail.config import EngineConfig
from untail.engine.engine import Engine
from untail.engine.models.names import split_out
from untail.types import Chunk, SamplingParams

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


@pytest.fixture
async def backend():
    backend = NativeBackend(Engine(random_decoder("llama"), EngineConfig(kv_blocks=64, max_seqs=4)), deterministic=True)
    yield backend
    backend.engine.check_integrity()
    await backend.close()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def within(seconds: float, awaitable):
    """Real time, so that a test that would hang fails."""
    async with asyncio.timeout(seconds):
        return await awaitable


async def test_steps_move_time_and_wake_who_is_due():
    clock, woken = StepClock(0.5), []

    async def sleep(seconds: float, name: str) -> None:
        await clock.sleep(seconds)
        woken.append((clock.now(), name))

    tasks = [asyncio.create_task(sleep(*pair)) for pair in ((1.0, "b"), (0.2, "a"), (1.0, "c"), (0.0, "now"))]
    await settle()
    assert woken == [(0.0, "now")]
    for _ in range(3):
        clock.step()
        await settle()
    assert woken == [(0.0, "now"), (0.5, "a"), (1.0, "b"), (1.0, "c")]
    await asyncio.gather(*tasks)


async def test_skip_goes_to_the_earliest_sleeper():
    clock = StepClock()
    assert not clock.skip()
    tasks = [asyncio.create_task(clock.sleep(seconds)) for seconds in (7.3, 2.1, float("inf"))]
    await settle()
    assert clock.skip()
    assert clock.now() == 2.1
    assert clock.skip()
    assert clock.now() == 7.3
    assert not clock.skip(), "who sleeps for ever is nobody to jump to"
    tasks[2].cancel()


async def test_a_cancelled_sleeper_moves_nothing():
    clock = StepClock()
    task = asyncio.create_task(clock.sleep(5))
    await settle()
    task.cancel()
    assert not clock.skip(), "already before the task has noticed"
    with suppress(asyncio.CancelledError):
        await task
    assert not clock.skip()
    assert clock.now() == 0


class Scorers:
    """Tasks that enter `frozen()` in their order, end their outside work when told, and say when they go on."""

    def __init__(self, clock: StepClock, count: int):
        self.clock = clock
        self.work = [asyncio.get_running_loop().create_future() for _ in range(count)]
        self.gone_on: list[int] = []
        self.tasks = [asyncio.create_task(self.score(number)) for number in range(count)]

    async def score(self, number: int) -> None:
        try:
            async with self.clock.frozen():
                await self.work[number]
        finally:
            self.gone_on.append(number)

    async def finish(self, *numbers: int) -> None:
        for number in numbers:
            self.work[number].set_result(None)
            await settle()


async def test_those_inside_leave_together_in_the_order_in_which_they_entered():
    clock = StepClock()
    scorers = Scorers(clock, 4)
    await settle()
    assert clock.is_frozen
    await scorers.finish(2, 3, 0)
    assert not await clock.thaw()
    await scorers.finish(1)
    assert scorers.gone_on == [], "the driver says when"
    assert await clock.thaw()
    assert scorers.gone_on == [0, 1, 2, 3]
    assert not clock.is_frozen


async def test_each_leaves_in_a_turn_of_its_own():
    """What one does before it waits again, and what that wakes, comes before the next."""
    clock, heard = StepClock(), []
    inbox: asyncio.Queue[int] = asyncio.Queue()

    async def score(number: int) -> None:
        async with clock.frozen():
            pass
        inbox.put_nowait(number)
        heard.append(("left", number))

    async def hear() -> None:
        while True:
            heard.append(("heard", await inbox.get()))

    hearing = asyncio.create_task(hear())
    scoring = [asyncio.create_task(score(number)) for number in range(3)]
    await settle()
    await clock.thaw()
    await asyncio.gather(*scoring)
    assert heard[:5] == [("left", 0), ("heard", 0), ("left", 1), ("heard", 1), ("left", 2)]
    hearing.cancel()


async def test_who_enters_while_others_leave_holds_nobody_back():
    clock, left = StepClock(), []
    release = asyncio.Event()

    async def score(name: str) -> None:
        async with clock.frozen():
            pass
        left.append(name)
        if name == "a":
            async with clock.frozen():
                await release.wait()

    tasks = [asyncio.create_task(score(name)) for name in "ab"]
    await settle()
    await clock.thaw()
    assert left == ["a", "b"]
    assert not await clock.thaw()
    release.set()
    await settle()
    await clock.thaw()
    await asyncio.gather(*tasks)


async def test_a_failure_inside_has_its_place():
    clock = StepClock()
    scorers = Scorers(clock, 3)
    await settle()
    scorers.work[1].set_exception(ValueError("no score"))
    await scorers.finish(2, 0)
    assert scorers.gone_on == []
    await clock.thaw()
    assert scorers.gone_on == [0, 1, 2]
    with pytest.raises(ValueError, match="no score"):
        await scorers.tasks[1]


@pytest.mark.parametrize("finished", [False, True])
async def test_who_is_cancelled_inside_releases_the_others(backend, finished):
    """At its outside work, or when it waits for the others."""
    scorers = Scorers(backend.clock, 3)
    await settle()
    await scorers.finish(2)
    if finished:
        await scorers.finish(1)
    scorers.tasks[1].cancel()
    await scorers.finish(0)
    await within(5, asyncio.wait(scorers.tasks))
    assert scorers.gone_on == [1, 0, 2]
    assert scorers.tasks[1].cancelled()
    await within(5, backend.clock.sleep(1))


async def test_stop_lets_everybody_leave():
    clock = StepClock()
    scorers = Scorers(clock, 3)
    await settle()
    await scorers.finish(2, 0)
    clock.stop(RuntimeError("over"))
    await scorers.finish(1)
    assert scorers.gone_on == [0, 2, 1]


async def test_the_clock_counts_steps(backend):
    async for chunk in backend.generate(spec("x", PROMPT, 20, chunk=5)):
        if chunk.end:
            break
    assert backend.clock.now() == pytest.approx(20 * LATENCY)
    assert backend.load().busy_s == pytest.approx(20 * LATENCY)
    assert backend.step_seconds(3) == LATENCY


async def test_an_idle_backend_jumps(backend):
    """Also before anything was ever asked of it."""
    await within(5, backend.clock.sleep(1000))
    assert backend.clock.now() == 1000


async def test_a_sleeper_waits_for_steps_where_there_is_work(backend):
    async def read() -> None:
        async for chunk in backend.generate(spec("x", PROMPT, 60)):
            if chunk.end:
                break

    reading = asyncio.create_task(read())
    await backend.clock.sleep(0.3)
    assert backend.engine.counts.steps == 30
    await reading


async def test_nothing_moves_while_frozen(backend):
    chunks = backend.generate(spec("x", PROMPT, 60, chunk=5))
    await anext(chunks)
    sleeper = asyncio.create_task(backend.clock.sleep(0.001))
    async with backend.clock.frozen():
        now, steps = backend.clock.now(), backend.engine.counts.steps
        await asyncio.sleep(0.05)
        assert (backend.clock.now(), backend.engine.counts.steps) == (now, steps)
    await within(5, sleeper)
    assert backend.clock.now() > now
    await chunks.aclose()


async def test_nothing_moves_while_paused(backend):
    await backend.pause("keep")
    sleeper = asyncio.create_task(backend.clock.sleep(1))
    await asyncio.sleep(0.05)
    assert backend.clock.now() == 0
    await backend.resume()
    await within(5, sleeper)


async def test_control_does_not_wait_for_who_is_frozen():
    backend = NativeBackend(Engine(random_decoder("llama"), EngineConfig(kv_blocks=64)), deterministic=True)
    chunks = backend.generate(spec("x", PROMPT, 5))
    await anext(chunks)
    scorers = Scorers(backend.clock, 2)
    await settle()
    await scorers.finish(1)
    await within(5, backend.extend("x", 5))
    await within(5, backend.pause("keep"))
    await within(5, backend.load_weights(dict(split_out(random_decoder("llama", 1))), 1))
    await within(5, backend.sleep(1))
    await within(5, backend.wake())
    await within(5, backend.pause("abort"))
    assert [chunk.end async for chunk in chunks] == ["abort"]
    assert scorers.gone_on == []
    await within(5, backend.close())
    await scorers.finish(0)
    assert scorers.gone_on == [1, 0]


async def test_who_is_frozen_leaves_while_paused(backend):
    await backend.pause("keep")
    scorers = Scorers(backend.clock, 2)
    await settle()
    await scorers.finish(1, 0)
    await within(5, asyncio.wait(scorers.tasks))
    assert scorers.gone_on == [0, 1]


async def test_pause_wait_waits_for_who_is_frozen(backend):
    chunks = backend.generate(spec("x", PROMPT, 20, chunk=5))
    await anext(chunks)
    scorers = Scorers(backend.clock, 1)
    await settle()
    pausing = asyncio.create_task(backend.pause("wait"))
    await asyncio.sleep(0.05)
    assert not pausing.done()
    await scorers.finish(0)
    await within(5, pausing)
    assert backend.engine.counts.steps == 20
    await chunks.aclose()


async def test_closing_tells_sleepers():
    backend = NativeBackend(Engine(random_decoder("llama"), EngineConfig(kv_blocks=64)), deterministic=True)
    await backend.pause("keep")
    sleeper = asyncio.create_task(backend.clock.sleep(1))
    await settle()
    await within(5, backend.close())
    with pytest.raises(RuntimeError, match="the backend is closed"):
        await within(5, sleeper)
    with pytest.raises(RuntimeError, match="this clock has stopped"):
        await within(5, backend.clock.sleep(1))


class Workload:
    """Two segments each of ten sequences in four slots, with scoring (real time), tools (the clock's), forks, cuts and
    aborts between. Everything that a stream yields is logged, and who goes on after its score."""

    def __init__(self, delay):
        engine = Engine(random_decoder("llama"), EngineConfig(kv_blocks=24, max_seqs=4, prefix_cache=False))
        self.backend = NativeBackend(engine, deterministic=True)
        self.delay = delay
        self.log: list[tuple[float, str, list[int], str | None]] = []
        self.scored: list[tuple[int, str]] = []  # and how long the log was then
        self.children: list[asyncio.Task[None]] = []

    async def run(self) -> tuple[list, list]:
        async with asyncio.timeout(60):
            await asyncio.gather(*(self.sequence(number) for number in range(10)))
            await asyncio.gather(*self.children)
        self.backend.engine.check_integrity()
        await self.backend.close()
        return self.log, self.scored

    def take(self, name: str, chunk: Chunk) -> None:
        self.log.append((self.backend.clock.now(), name, chunk.tokens, chunk.end))

    async def score(self, name: str) -> None:
        async with self.backend.clock.frozen():
            await self.delay()
        self.scored.append((len(self.log), name))

    async def sequence(self, number: int) -> None:
        name, segments = f"s{number}", 0
        async for chunk in self.backend.generate(
            spec(name, PROMPT, 8 + number % 2, stream=number, sampling=SamplingParams(), chunk=4)
        ):
            self.take(name, chunk)
            if chunk.end is None and number % 5 == 3:
                await self.backend.cut([name])
            elif chunk.end == "boundary":
                await self.score(name)
                segments += 1
                await self.go_on(name, number, segments)

    async def go_on(self, name: str, number: int, segments: int) -> None:
        if segments == 3:
            await self.backend.release(name)
            return
        if number % 2:
            await self.backend.clock.sleep(0.05)  # several fall asleep when their scores come, and wake together
        if number % 4 == 0 and segments == 1:
            forked = await self.backend.fork(name, [number + 100])
            self.children += [asyncio.create_task(self.child(child)) for child in forked.children]
        await self.backend.extend(name, 8)

    async def child(self, name: str) -> None:
        await self.score(name)
        await self.backend.extend(name, 6)
        async for chunk in self.backend.stream(name):
            self.take(name, chunk)
            if chunk.end == "boundary":
                await self.backend.abort([name])


async def test_two_runs_are_the_same_whatever_the_world_outside_takes():
    chance = random.Random(3)

    async def at_once() -> None:
        pass

    async def after_a_while() -> None:
        await asyncio.sleep(chance.choice((0, chance.random() * 0.02)))

    log, scored = await Workload(at_once).run()
    assert len(log) > 60
    assert {"boundary", "abort", None} == {end for _, _, _, end in log}
    assert len(scored) > 30
    for _ in range(3):
        log_again, scored_again = await Workload(after_a_while).run()
        assert scored_again == scored
        assert log_again == log


@pytest.mark.parametrize("delays", [(0, 0, 0), (0.03, 0, 0.015), (0.015, 0.03, 0)])
async def test_sleepers_who_wake_together_are_served_in_the_order_of_the_work(backend, delays):
    """They fell asleep after their scores, which come in the order of the outside world."""
    chunks: list[str] = []

    async def sequence(number: int) -> None:
        name = f"s{number}"
        async for _ in backend.generate(spec(name, PROMPT, 4)):
            chunks.append(name)
            if chunks.count(name) == 2:
                await backend.release(name)
                continue
            async with backend.clock.frozen():
                await asyncio.sleep(delays[number])
            await backend.clock.sleep(0.05)
            await backend.extend(name, 4)

    await within(5, asyncio.gather(*map(sequence, range(3))))
    assert chunks == ["s0", "s1", "s2"] * 2
