"""The backend contract: what the controller may rely on, whichever engine is behind it."""

import asyncio
from contextlib import aclosing

import pytest
from tests.helpers.models import random_decoder
from tests.helpers.running import finish, join, spec
from tests.helpers.torch_kernels import TorchKernels

from untail.backends.native import NativeBackend
from untail.config import EngineConfig
from untail.engine import runner
from untail.engine.engine import Engine, StepFailed
from untail.engine.models.names import split_out
from untail.errors import RequestError
from untail.types import Chunk, SamplingParams

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]
EVERYTHING_STOPS = SamplingParams(stop_ids=tuple(range(199)))


@pytest.fixture(params=["free", "deterministic", "ahead"])
async def backend(request, monkeypatch):
    """Deterministic or not; ahead: sequences run ahead of the host, as they do on a GPU."""
    if request.param == "ahead":
        monkeypatch.setattr(runner, "kernels_for", TorchKernels)
    engine = Engine(random_decoder("llama"), EngineConfig(kv_blocks=512, max_seqs=64))
    backend = NativeBackend(engine, deterministic=request.param == "deterministic")
    yield backend
    backend.engine.check_integrity()
    await backend.close()


async def collect(chunks) -> Chunk:
    whole = Chunk()
    async for chunk in chunks:
        assert chunk.tokens or chunk.end
        join(whole, chunk)
        if chunk.end == "boundary":
            break
    return whole


def alone(name: str, **more) -> Chunk:
    engine = Engine(random_decoder("llama"), EngineConfig(kv_blocks=64))
    engine.add(spec(name, PROMPT, **more))
    return finish(engine)[name]


async def test_hundreds_of_streams_from_one_loop(backend):
    """Each gets its own tokens, in chunks of the size it asked for."""
    sampling = SamplingParams()
    specs = [spec(str(n), PROMPT, 20 + n % 30, stream=n, sampling=sampling, chunk=1 + n % 9) for n in range(300)]
    results = await asyncio.gather(*(collect(backend.generate(s)) for s in specs))
    for s, result in zip(specs, results, strict=True):
        assert len(result.tokens) == s.budget
    for n in (0, 77, 299):
        assert results[n].tokens == alone(str(n), budget=20 + n % 30, stream=n, sampling=sampling).tokens


async def test_chunks_have_the_size_asked_for(backend):
    sizes = []
    async for chunk in backend.generate(spec("x", PROMPT, 20, chunk=8)):
        sizes.append((len(chunk.tokens), chunk.end))
        if chunk.end:
            break
    assert sizes == [(8, None), (8, None), (4, "boundary")]


async def test_an_end_soon_after_a_full_chunk_is_heard(backend):
    """Several steps may come back at once: a full chunk, and then the end."""
    sampling = SamplingParams(stop_ids=(7, 70, 130, 190))
    specs = [spec(str(n), PROMPT, 60, stream=n, sampling=sampling, chunk=3) for n in range(60)]
    results = await asyncio.gather(*(collect(backend.generate(s)) for s in specs))
    assert {result.end for result in results} == {"stop", "boundary"}
    for result in results:
        assert (result.tokens[-1] in sampling.stop_ids) == (result.end == "stop")


async def test_a_boundary_waits_for_extend(backend):
    whole = Chunk()
    async for chunk in backend.generate(spec("x", PROMPT, 10)):
        join(whole, chunk)
        if len(whole.tokens) == 30:
            await backend.release("x")
        elif chunk.end == "boundary":
            await backend.extend("x", 10)
    assert whole.tokens == alone("x", budget=30).tokens
    assert not backend.engine.names()


async def test_append_is_context(backend):
    """What is generated after a reply equals what a prompt with that history gives."""
    whole = Chunk()
    async for chunk in backend.generate(spec("x", PROMPT, 40, sampling=EVERYTHING_STOPS, hold=True)):
        join(whole, chunk)
        if len(whole.tokens) == 1:
            assert chunk.end == "stop"
            await backend.append("x", [11, 12, 13])
        else:
            await backend.release("x")
    prompt = [*PROMPT, whole.tokens[0], 11, 12, 13]
    again = await collect(backend.generate(spec("y", prompt, 40, sampling=EVERYTHING_STOPS)))
    assert again.tokens == whole.tokens[1:]
    assert again.policy_logprob == pytest.approx(whole.policy_logprob[1:], abs=1e-4)


async def test_append_may_set_the_budget_anew(backend):
    """Whatever was left of the old one; the stream is at a boundary when the new one is used up."""
    tokens, ends = [], []
    async for chunk in backend.generate(spec("x", PROMPT, 40, sampling=EVERYTHING_STOPS, hold=True, chunk=40)):
        tokens += chunk.tokens
        ends.append(chunk.end)
        if len(tokens) == 1:
            await backend.append("x", [11, 12], 1)
        elif len(tokens) == 2:
            await backend.append("x", [13], 3)
        elif len(tokens) == 3:
            await backend.release("x")
    assert ends == ["stop", "stop", "stop"]
    first = SamplingParams(stop_ids=())
    sizes = []
    async for chunk in backend.generate(spec("y", PROMPT, 4, sampling=first, hold=True, chunk=40)):
        sizes.append((len(chunk.tokens), chunk.end))
        await (backend.append("y", [11, 12], 7) if len(sizes) == 1 else backend.release("y"))
    assert sizes == [(4, "boundary"), (7, "boundary")]


async def test_fork_gives_each_child_a_stream(backend):
    tasks = []
    first = Chunk()
    async for chunk in backend.generate(spec("x", PROMPT, 64, chunk=16)):
        join(first, chunk)
        if len(first.tokens) == 16:
            forked = await backend.fork("x", [7, 8], [0.0, 1.0])
            tasks = [asyncio.create_task(collect(backend.stream(child))) for child in forked.children]
        if chunk.end == "boundary":
            break
    same, other = await asyncio.gather(*tasks)
    assert 16 <= forked.position < 64
    assert first.tokens[forked.position :] == same.tokens
    assert len(other.tokens) == len(same.tokens)


async def test_abort_closes_the_stream(backend):
    chunks = [chunk async for chunk in abort_after(backend, spec("x", PROMPT, 400, chunk=4), 3)]
    assert chunks[-1].end == "abort"
    assert not backend.engine.names()


async def test_abort_leaves_alone_what_has_ended_meanwhile(backend):
    running = asyncio.create_task(collect(backend.generate(spec("x", PROMPT, 400))))
    while "x" not in backend.engine.names():
        await asyncio.sleep(0)
    await backend.abort(["gone", "x", "x"])
    assert (await running).end == "abort"


@pytest.mark.parametrize("how", ["release", "abort"])
async def test_a_name_that_is_set_free_is_the_next_ones_at_once(backend, how):
    """Both orders in one turn of the engine: what closes the first stream does not close the second."""
    chunks = backend.generate(spec("x", PROMPT, 10))
    assert (await collect(chunks)).end == "boundary"
    over = asyncio.create_task(backend.release("x") if how == "release" else backend.abort(["x"]))
    again = asyncio.create_task(collect(backend.generate(spec("x", PROMPT, 30))))
    async with asyncio.timeout(20):
        rest = [chunk.end async for chunk in chunks]
        await over
        assert rest == ([] if how == "release" else ["abort"])
        assert (await again).tokens == alone("x", budget=30).tokens


async def test_who_was_aborted_before_reading_does_not_read_the_next_ones_stream(backend):
    """Three orders in one turn of the engine."""
    first = asyncio.create_task(collect(backend.generate(spec("x", PROMPT, 10))))
    over = asyncio.create_task(backend.abort(["x"]))
    second = asyncio.create_task(collect(backend.generate(spec("x", PROMPT, 30))))
    async with asyncio.timeout(20):
        assert (await first).end == "abort"
        await over
        assert (await second).tokens == alone("x", budget=30).tokens


async def test_cut_brings_a_boundary_and_extend_goes_on(backend):
    whole, ends = Chunk(), []
    async with aclosing(backend.generate(spec("x", PROMPT, 400, chunk=8))) as chunks:
        async for chunk in chunks:
            join(whole, chunk)
            ends.append(chunk.end)
            if chunk.end is None:
                await backend.cut(["x"])
            elif len(whole.tokens) < 40:
                await backend.extend("x", 400)
            else:
                break
    assert set(ends) == {None, "boundary"}
    assert whole.tokens == alone("x", budget=len(whole.tokens)).tokens


async def test_cut_before_anything_is_computed(backend):
    await backend.pause("keep")
    task = asyncio.create_task(anext(aiter(backend.generate(spec("x", PROMPT, 400)))))
    while "x" not in backend.engine.names():
        await asyncio.sleep(0)
    await backend.cut(["x"])
    assert await task == Chunk(end="boundary")


async def test_cut_leaves_alone_what_ended_or_rests(backend):
    chunks = backend.generate(spec("x", PROMPT, 5))
    first = await anext(chunks)
    assert first.end == "boundary"
    await backend.cut(["gone", "x"])
    await backend.extend("x", 5)
    second = await anext(chunks)
    assert (len(second.tokens), second.end) == (5, "boundary")
    assert first.tokens + second.tokens == alone("x", budget=10).tokens
    await backend.release("x")
    assert [chunk async for chunk in chunks] == []


async def test_a_trajectory_begun_elsewhere_goes_on(backend):
    sampling = SamplingParams()
    whole = alone("x", budget=30, sampling=sampling).tokens
    moved = spec("y", [*PROMPT, *whole[:12]], 18, sampling=sampling, done=12)
    assert (await collect(backend.generate(moved))).tokens == whole[12:]


async def test_load_says_how_it_stands(backend):
    before = backend.load()
    assert (before.kv_used, before.busy_s, before.computed, before.sampled) == (0, 0, 0, 0)
    chunks = backend.generate(spec("x", PROMPT, 20))
    assert (await anext(chunks)).end == "boundary"
    resting = backend.load()
    assert resting.kv_used == 2 / 512, "what rests holds its blocks"
    assert resting.busy_s > 0
    assert (resting.computed, resting.sampled) == (len(PROMPT) + 19, 20)
    assert (resting.recomputed, resting.preemptions) == (0, 0)
    await backend.release("x")
    assert backend.load().kv_used == 0
    await chunks.aclose()


async def test_step_seconds_are_known_after_some_steps(backend):
    assert backend.step_seconds(1) in (1.0, 0.01)
    await collect(backend.generate(spec("x", PROMPT, 20)))
    assert 0 < backend.step_seconds(1) == backend.step_seconds(100) < 1


async def abort_after(backend, request, count):
    async for chunk in backend.generate(request):
        count -= 1
        yield chunk
        if count == 0:
            await backend.abort([request.id])


async def test_a_consumer_that_leaves_aborts_its_sequence(backend):
    async with aclosing(backend.generate(spec("x", PROMPT, 400, chunk=4))) as chunks:
        async for _ in chunks:
            break
    await collect(backend.generate(spec("y", PROMPT, 4)))
    assert backend.engine.names() == [] or backend.engine.names() == ["y"]


async def test_a_cancelled_consumer_aborts_its_sequence(backend):
    task = asyncio.create_task(collect(backend.generate(spec("x", PROMPT, 400))))
    while "x" not in backend.engine.names():
        await asyncio.sleep(0)
    task.cancel()
    await collect(backend.generate(spec("y", PROMPT, 4)))
    assert "x" not in backend.engine.names()


async def test_pause_keep_changes_nothing(backend):
    task = asyncio.create_task(collect(backend.generate(spec("x", PROMPT, 60, chunk=4))))
    while backend.engine.counts.steps < 10:
        await asyncio.sleep(0)
    await backend.pause("keep")
    steps = backend.engine.counts.steps
    for _ in range(50):
        await asyncio.sleep(0)
    assert backend.engine.counts.steps == steps < 60
    await backend.resume()
    assert (await task).tokens == alone("x", budget=60).tokens


async def test_pause_wait_lets_what_runs_end_and_starts_nothing(backend):
    running = asyncio.create_task(collect(backend.generate(spec("x", PROMPT, 60))))
    while backend.engine.counts.steps < 5:
        await asyncio.sleep(0)
    pausing = asyncio.create_task(backend.pause("wait"))
    await asyncio.sleep(0)
    late = asyncio.create_task(collect(backend.generate(spec("late", PROMPT, 5))))
    await pausing
    assert len((await running).tokens) == 60
    assert not late.done()
    await backend.resume()
    assert len((await late).tokens) == 5


async def test_pause_abort_ends_everything(backend):
    task = asyncio.create_task(collect(backend.generate(spec("x", PROMPT, 400))))
    while backend.engine.counts.steps < 5:
        await asyncio.sleep(0)
    await backend.pause("abort")
    assert (await task).end == "abort"
    assert not backend.engine.names()


async def test_sleep_and_wake_keep_sequences(backend):
    task = asyncio.create_task(collect(backend.generate(spec("x", PROMPT, 60))))
    while backend.engine.counts.steps < 10:
        await asyncio.sleep(0)
    await backend.sleep(1)
    assert backend.engine.runner.kv is None
    await backend.wake()
    assert (await task).tokens == alone("x", budget=60).tokens


async def test_weights_change_between_steps(backend):
    task = asyncio.create_task(collect(backend.generate(spec("x", PROMPT, 60))))
    while backend.engine.counts.steps < 10:
        await asyncio.sleep(0)
    await backend.load_weights(dict(split_out(random_decoder("llama", 1))), 4)
    versions = (await task).version
    assert versions == sorted(versions)
    assert set(versions) == {0, 4}


async def test_an_error_reaches_its_owner_only(backend):
    good = asyncio.create_task(collect(backend.generate(spec("good", PROMPT, 40))))
    with pytest.raises(RequestError, match="budget = 0"):
        await collect(backend.generate(spec("bad", PROMPT, 0)))
    with pytest.raises(RequestError, match="exists already"):
        await asyncio.gather(*(collect(backend.generate(spec("same", PROMPT, 90))) for _ in range(2)))
    assert len((await good).tokens) == 40


async def test_a_step_that_fails_costs_its_own_sequences(backend, monkeypatch):
    resting = Chunk()
    chunks = backend.generate(spec("resting", PROMPT, 5))
    join(resting, await anext(chunks))
    run = backend.engine.runner.run

    def fail(plan):
        raise MemoryError("no room")

    monkeypatch.setattr(backend.engine.runner, "run", fail)
    with pytest.raises(StepFailed, match="MemoryError: no room"):
        await collect(backend.generate(spec("x", PROMPT, 5)))
    monkeypatch.setattr(backend.engine.runner, "run", run)
    await backend.extend("resting", 5)
    join(resting, await anext(chunks))
    assert resting.tokens == alone("resting", budget=10).tokens
    await backend.release("resting")
    assert [chunk async for chunk in chunks] == []


async def test_a_fault_in_the_engine_leaves_nobody_waiting(monkeypatch):
    backend = NativeBackend(Engine(random_decoder("llama"), EngineConfig(kv_blocks=64)))

    def break_down(result):
        raise AssertionError("a bug")

    monkeypatch.setattr(backend.engine, "_deliver", break_down)
    with pytest.raises(AssertionError, match="a bug"):
        await collect(backend.generate(spec("x", PROMPT, 5)))
    with pytest.raises(RuntimeError, match="takes no more work"):
        await collect(backend.generate(spec("y", PROMPT, 5)))
    await backend.close()


async def test_pause_abort_does_not_mind_sequences_that_end_meanwhile(backend):
    sampling = SamplingParams(stop_ids=tuple(range(0, 199, 4)))
    specs = [spec(str(n), PROMPT, 400, stream=n, sampling=sampling) for n in range(40)]
    tasks = [asyncio.create_task(collect(backend.generate(s))) for s in specs]
    while backend.engine.counts.steps < 2:
        await asyncio.sleep(0)
    await backend.pause("abort")
    assert {result.end for result in await asyncio.gather(*tasks)} <= {"stop", "abort"}
    assert not backend.engine.names()


async def test_a_cancelled_abort_still_closes_the_stream(backend):
    consumer = asyncio.create_task(collect(backend.generate(spec("x", PROMPT, 400))))
    while "x" not in backend.engine.names():
        await asyncio.sleep(0)
    aborting = asyncio.create_task(backend.abort(["x"]))
    while "x" in backend.engine.names():
        await asyncio.sleep(0)
    aborting.cancel()
    assert (await consumer).end == "abort"


async def test_a_cancelled_fork_leaves_no_orphans(backend):
    consumer = asyncio.create_task(collect(backend.generate(spec("x", PROMPT, 100))))
    while "x" not in backend.engine.names():
        await asyncio.sleep(0)
    forking = asyncio.create_task(backend.fork("x", [1, 2]))
    while len(backend.engine.names()) < 3:
        await asyncio.sleep(0)
    forking.cancel()
    await consumer
    await collect(backend.generate(spec("y", PROMPT, 4)))
    assert set(backend.engine.names()) <= {"x", "y"}


async def test_a_cancelled_request_for_a_taken_id_does_not_harm_its_owner(backend):
    owner = asyncio.create_task(collect(backend.generate(spec("x", PROMPT, 60))))
    while "x" not in backend.engine.names():
        await asyncio.sleep(0)
    second = asyncio.create_task(collect(backend.generate(spec("x", PROMPT, 60))))
    await asyncio.sleep(0)
    second.cancel()
    assert len((await owner).tokens) == 60


async def test_a_cancelled_pause_lets_new_work_in_again(backend):
    long = asyncio.create_task(collect(backend.generate(spec("x", PROMPT, 300))))
    while backend.engine.counts.steps < 3:
        await asyncio.sleep(0)
    pausing = asyncio.create_task(backend.pause("wait"))
    while backend.engine.scheduler.admits_new:
        await asyncio.sleep(0)
    pausing.cancel()
    assert len((await collect(backend.generate(spec("y", PROMPT, 4)))).tokens) == 4
    await long


async def test_after_close_nothing_hangs():
    backend = NativeBackend(Engine(random_decoder("llama"), EngineConfig(kv_blocks=64)))
    await collect(backend.generate(spec("x", PROMPT, 4)))
    await backend.close()
    await backend.close()
    with pytest.raises(RuntimeError, match="the backend is closed"):
        await collect(backend.generate(spec("y", PROMPT, 5)))
