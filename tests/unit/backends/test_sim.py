"""The simulator: exact times on cases that can be worked out by hand, and counts that always add up.

Unless a test says otherwise a step takes 1 s plus 0.1 s per sequence, the prompt is one token (nothing to prefill), and
the drawn length of a trajectory is its stream.
"""

import asyncio
import random
from contextlib import aclosing
from dataclasses import fields

import pytest

from untail.backends.laws import Draw, Law, make_law, sim_prompts
from untail.backends.sim import SimBackend, SimConfig
from untail.backends.sim_device import BOUNDARY_S
from untail.backends.sim_sequence import PART
from untail.backends.virtual_loop import run_virtual
from untail.errors import RequestError, SequenceStateError, WeightsError
from untail.types import Chunk, SequenceSpec, stream_key

BOUNDARY = BOUNDARY_S["native"]
FOREVER = 10**6


class StreamIsLength(Law):
    """A turn after a reply has its own stream; 5 tokens are enough for it."""

    def draw(self, prompt, stream):
        return Draw(stream if stream <= FOREVER else 5, 1.0, 0.5)


def tau(batch: int) -> float:
    return 1.0 + 0.1 * batch


def sim(**fields) -> SimBackend:
    settings = {"step_ms_base": 1000.0, "step_ms_per_seq": 100.0, "prefill_tokens_per_s": 100.0, **fields}
    return SimBackend(StreamIsLength(), SimConfig(**settings))


def spec(name: str, length: int, budget: int = 1000, prompt: int = 1, **more) -> SequenceSpec:
    more.setdefault("chunk", 1000)
    return SequenceSpec(name, (0,) * prompt, budget, length, **more)


def now() -> float:
    return asyncio.get_running_loop().time()


def places(chunk: Chunk) -> list[int]:
    return [token % PART for token in chunk.tokens]


def join(into: Chunk, chunk: Chunk) -> None:
    for field in fields(Chunk):
        value = getattr(chunk, field.name)
        if isinstance(value, list):
            assert len(value) == len(chunk.tokens)
            getattr(into, field.name).extend(value)
    into.end = chunk.end


async def collect(chunks) -> tuple[Chunk, float]:
    """All up to an end of any kind, and when that was."""
    whole = Chunk()
    async with aclosing(chunks):
        async for chunk in chunks:
            assert chunk.tokens or chunk.end
            join(whole, chunk)
            if chunk.end:
                break
    return whole, now()


def start(backend: SimBackend, request: SequenceSpec) -> asyncio.Task:
    return asyncio.create_task(collect(backend.generate(request)))


def check(backend: SimBackend) -> None:
    """Every sequence is in one place, and the KV is that of the resident ones."""
    engine = backend.engine
    places = [*engine.running.values(), *engine.returning.values(), *engine.new.values(), *engine.resting.values()]
    assert sorted(s.id for s in places) == sorted(engine.sequences)
    assert len(engine.running) <= engine.config.slots
    for sequence in engine.running.values():
        engine._settle(sequence)
    assert engine.kv == sum(s.computed for s in places) <= engine.config.kv_tokens
    assert all(0 <= s.computed < s.context and s.budget >= 0 for s in places)


def virtual(test):
    """Run a coroutine test in virtual time."""

    def run():
        run_virtual(test())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@virtual
async def test_two_lengths_share_the_engine_until_the_first_ends():
    backend = sim()
    short, long = await asyncio.gather(start(backend, spec("a", 3)), start(backend, spec("b", 10)))
    assert short[1] == pytest.approx(3 * tau(2))
    assert long[1] == pytest.approx(3 * tau(2) + 7 * tau(1))
    assert (short[0].end, long[0].end) == ("stop", "stop")
    assert places(short[0]) == [1, 2, 0]
    assert set(short[0].tokens) & set(long[0].tokens) == {0}, "siblings repeat one another"
    assert backend.load().busy_s == pytest.approx(long[1])
    assert backend.load().sampled == backend.load().computed == 13


@virtual
async def test_many_lengths_finish_by_the_formula():
    """T = sum over j of (L_j - L_(j-1)) tau(alive at j)."""
    lengths = sorted(random.Random(3).sample(range(1, 500), 20))
    backend = sim()
    ends = await asyncio.gather(*(start(backend, spec(str(n), n)) for n in lengths))
    expected, before = 0.0, 0
    for alive, (length, (whole, at)) in zip(range(20, 0, -1), zip(lengths, ends, strict=True), strict=True):
        expected, before = expected + (length - before) * tau(alive), length
        assert at == pytest.approx(expected)
        assert len(whole.tokens) == length


async def interrupted(seed: int, chunk: int) -> tuple:
    """Sequences that come, go and are disturbed at any time; what becomes of each, when, and the counts."""
    rng, tasks = random.Random(seed), []
    backend = sim(slots=rng.randint(3, 6), kv_tokens=120, kv_after_update=rng.choice(["keep", "recompute"]))
    for number in range(40):
        await asyncio.sleep(rng.uniform(0, 6))
        length, budget, prompt, other = rng.randint(1, 60), rng.randint(1, 80), rng.randint(1, 30), rng.randint(0, 39)
        match rng.choice(["start"] * 5 + ["abort", "cut", "load", "pause"]):
            case "start":
                tasks.append(start(backend, spec(str(number), length, budget, prompt, chunk=chunk)))
            case "abort":
                await backend.abort([str(other)])
            case "cut":
                await backend.cut([str(other)])
            case "load":
                await backend.load_weights(None, number + 1)
            case "pause":
                await backend.pause("keep")
                await asyncio.sleep(other / 10)
                await backend.resume()
    ends = [(whole.version, whole.end, round(at, 6)) for whole, at in await asyncio.gather(*tasks)]
    load = backend.load()
    counts = (load.computed, load.sampled, load.recomputed, load.preemptions)
    return ends, counts, round(load.busy_s, 6)


@pytest.mark.parametrize("seed", range(5))
def test_counting_steps_equals_taking_them_one_by_one(seed):
    """With chunks of one token every step is an event."""
    one_by_one = run_virtual(interrupted(seed, 1))
    assert one_by_one[1][3] > 0
    for chunk in (7, 1000):
        assert run_virtual(interrupted(seed, chunk)) == one_by_one


@virtual
async def test_chunks_have_the_size_asked_for():
    sizes = []
    backend = sim()
    async for chunk in backend.generate(spec("x", 25, chunk=8)):
        sizes.append((len(chunk.tokens), chunk.end, round(now(), 6)))
    assert sizes == [(8, None, 8.8), (8, None, 17.6), (8, None, 26.4), (1, "stop", 27.5)]
    assert not backend.engine.sequences


@virtual
async def test_what_a_token_carries():
    whole, _ = await collect(sim().generate(spec("x", 3)))
    assert whole.policy_logprob == whole.behaviour_logprob == [-0.5] * 3
    assert whole.entropy == [0.5] * 3
    assert whole.p_eos == pytest.approx([0.0, 0.0, 0.6065], abs=1e-4)
    assert whole.version == [0] * 3
    assert whole.mixed_kv == [False] * 3


@virtual
async def test_one_that_comes_in_mid_step_waits_for_its_end():
    """a alone: steps end at 1.1, 2.2. b comes at 1.5 and joins at 2.2; then both take 1.2 a step."""
    backend = sim()
    a = start(backend, spec("a", 5))
    await asyncio.sleep(1.5)
    b = start(backend, spec("b", 2))
    assert (await b)[1] == pytest.approx(2 * tau(1) + 2 * tau(2))
    assert (await a)[1] == pytest.approx(2 * tau(1) + 2 * tau(2) + tau(1))


@virtual
async def test_one_that_comes_between_two_steps_is_in_the_next():
    backend = sim()
    a = start(backend, spec("a", 5))
    await asyncio.sleep(2 * tau(1))
    assert (await start(backend, spec("b", 1)))[1] == pytest.approx(2 * tau(1) + tau(2))
    assert (await a)[1] == pytest.approx(4 * tau(1) + tau(2))


@virtual
async def test_one_that_leaves_in_mid_step_does_not_shorten_it():
    """Both: steps end at 1.2, 2.4. b is aborted at 2.0 with 1 token; a's second comes at 2.4, its third at 3.5."""
    backend = sim()
    a, b = start(backend, spec("a", 4)), start(backend, spec("b", 100))
    await asyncio.sleep(2.0)
    await backend.abort(["b"])
    whole, at = await b
    assert (len(whole.tokens), whole.end, at) == (1, "abort", 2.0)
    assert (await a)[1] == pytest.approx(2 * tau(2) + 2 * tau(1))
    assert backend.load().sampled == 5


@virtual
async def test_the_device_ends_a_step_that_everybody_has_left():
    backend = sim()
    a = start(backend, spec("a", 4))
    await asyncio.sleep(0.5)
    await backend.abort(["a"])
    assert (await a)[0].tokens == []
    assert (await collect(backend.generate(spec("b", 1))))[1] == pytest.approx(2 * tau(1))


@virtual
async def test_prefill_delays_everybody():
    """The last of the prompt's 51 tokens goes with the first step, so 50 are computed ahead at 100 per second."""
    backend = sim()
    a = start(backend, spec("a", 4))
    await asyncio.sleep(tau(1))
    b = start(backend, spec("b", 1, prompt=51))
    assert (await b)[1] == pytest.approx(tau(1) + 0.5 + tau(2))
    assert (await a)[1] == pytest.approx(tau(1) + 0.5 + tau(2) + 2 * tau(1))
    load = backend.load()
    assert load.computed == 50 + 5
    assert load.busy_s == pytest.approx(now())


@virtual
async def test_the_rest_waits_for_a_slot_in_order():
    backend = sim(slots=2)
    ends = await asyncio.gather(*(start(backend, spec(n, length)) for n, length in [("a", 2), ("b", 4), ("c", 3)]))
    assert [at for _, at in ends] == pytest.approx([2 * tau(2), 4 * tau(2), 4 * tau(2) + tau(1)])


@virtual
async def test_a_boundary_waits_for_extend_and_costs_its_share():
    backend, whole, resting = sim(), Chunk(), 0.0
    async for chunk in backend.generate(spec("x", 25, budget=10)):
        join(whole, chunk)
        if chunk.end == "boundary":
            await asyncio.sleep(3.0)
            resting += 3.0 + BOUNDARY
            await backend.extend("x", 10)
    assert places(whole) == [*range(1, 25), 0]
    assert now() == pytest.approx(25 * tau(1) + resting)
    assert resting == pytest.approx(6.0 + 2 * BOUNDARY)
    assert backend.load().busy_s == pytest.approx(25 * tau(1) + 2 * BOUNDARY)
    assert backend.load().computed == 25


@virtual
async def test_vllms_boundaries_cost_more():
    backend = sim(imitates="vllm")
    async for chunk in backend.generate(spec("x", 20, budget=10)):
        if chunk.end == "boundary":
            await backend.extend("x", 10)
    assert now() == pytest.approx(20 * tau(1) + BOUNDARY_S["vllm"])


@virtual
async def test_a_stop_at_the_end_of_the_budget_is_a_stop():
    assert (await collect(sim().generate(spec("x", 10, budget=10))))[0].end == "stop"


@virtual
async def test_cut_yields_what_there_is():
    backend = sim()
    a, b = start(backend, spec("a", 50, budget=10)), start(backend, spec("b", 6))
    await asyncio.sleep(3 * tau(2) + 0.5)
    await backend.cut(["a", "gone", "a"])
    chunk, at = await a
    assert (places(chunk), chunk.end, at) == ([1, 2, 3], "boundary", pytest.approx(3 * tau(2) + 0.5))
    assert (await b)[1] == pytest.approx(4 * tau(2) + 2 * tau(1))


@virtual
async def test_after_a_cut_it_goes_on_with_what_it_is_given():
    backend, seen = sim(), []
    async for chunk in backend.generate(spec("x", 12, budget=100, chunk=5)):
        seen.append((len(chunk.tokens), chunk.end))
        if len(seen) == 1:
            await backend.cut(["x"])
        elif chunk.end == "boundary":
            await backend.extend("x", 4)
    assert seen == [(5, None), (0, "boundary"), (4, "boundary"), (3, "stop")]


@virtual
async def test_one_that_waits_can_be_cut_and_aborted():
    backend = sim(slots=1)
    a, b, c = (start(backend, spec(name, 5)) for name in "abc")
    await asyncio.sleep(0)
    await backend.cut(["b"])
    await backend.abort(["c"])
    assert ((await b)[0].end, (await c)[0].end) == ("boundary", "abort")
    assert (await a)[1] == pytest.approx(5 * tau(1))


@virtual
async def test_a_trajectory_that_moves_goes_on_where_it_was():
    """12 tokens here, the other 18 there: prompt and response are computed there anew, which nobody calls a loss."""
    first, second = sim(), sim()
    task = start(first, spec("x", 30, prompt=4))
    await asyncio.sleep(3 / 100 + 12 * tau(1))
    await first.cut(["x"])
    chunk, began = await task
    assert len(chunk.tokens) == 12
    request = SequenceSpec("x", (0,) * 4 + tuple(chunk.tokens), 100, 30, done=12)
    rest, at = await collect(second.generate(request))
    assert (len(rest.tokens), rest.end) == (18, "stop")
    assert at - began == pytest.approx(15 / 100 + 18 * tau(1))
    assert second.load().computed == 15 + 18
    assert second.load().recomputed == 0


@virtual
async def test_a_reply_is_context_and_the_next_turn_is_drawn_anew():
    backend, seen = sim(), []
    async for chunk in backend.generate(spec("x", 3, budget=20, hold=True)):
        seen.append((len(chunk.tokens), chunk.end, round(now(), 6)))
        if len(seen) == 1:
            with pytest.raises(SequenceStateError, match="ended its turn"):
                await backend.extend("x", 5)
            await backend.append("x", [7] * 10)
        else:
            await backend.release("x")
    assert seen == [(3, "stop", 3.3), (5, "stop", round(3.3 + 0.1 + BOUNDARY + 5.5, 6))]
    assert backend.load().computed == 8 + 10
    assert backend.load().kv_used == 0


@virtual
async def test_a_reply_without_budget_waits_for_extend():
    backend, seen = sim(), []
    async for chunk in backend.generate(spec("x", 8, budget=3)):
        seen.append((len(chunk.tokens), chunk.end))
        if len(seen) == 1:
            await backend.append("x", [7, 7])
            await asyncio.sleep(100)
            await backend.extend("x", 20)
    assert seen == [(3, "boundary"), (5, "stop")]


@virtual
async def test_children_go_on_where_the_parent_stands():
    backend = sim()
    parent = start(backend, spec("x", 20, prompt=3))
    await asyncio.sleep(2 / 100 + 6 * tau(1))
    forked = await backend.fork("x", [15, 4])
    assert forked.position == 6
    children = [asyncio.create_task(collect(backend.stream(child))) for child in forked.children]
    longer, over = await asyncio.gather(*children)
    began = 2 / 100 + 6 * tau(1)
    assert (len(over[0].tokens), over[0].end, over[1]) == (1, "stop", pytest.approx(began + tau(3)))
    assert (len(longer[0].tokens), longer[1]) == (9, pytest.approx(began + tau(3) + 8 * tau(2)))
    assert len((await parent)[0].tokens) == 20
    assert backend.load().computed == 2 + backend.load().sampled == 2 + 20 + 9 + 1
    with pytest.raises(SequenceStateError, match="has no stream here"):
        await anext(backend.stream(forked.children[0]))


@virtual
async def test_a_fork_in_mid_chunk_gives_the_parent_what_it_has():
    backend, sizes = sim(), []

    async def read():
        async for chunk in backend.generate(spec("x", 20, chunk=8)):
            sizes.append(len(chunk.tokens))

    task = asyncio.create_task(read())
    await asyncio.sleep(5 * tau(1))
    forked = await backend.fork("x", [30])
    await backend.abort(forked.children)
    await task
    assert sizes == [5, 8, 7]


@virtual
async def test_a_child_of_one_at_its_boundary_rests_too():
    backend = sim()
    chunks = backend.generate(spec("x", 20, budget=5))
    assert (await anext(chunks)).end == "boundary"
    forked = await backend.fork("x", [9])
    await backend.release("x")
    await backend.extend(forked.children[0], 100)
    whole, at = await collect(backend.stream(forked.children[0]))
    assert (len(whole.tokens), at) == (4, pytest.approx(9 * tau(1) + BOUNDARY))


@virtual
async def test_release_closes_the_stream():
    backend = sim()
    chunks = backend.generate(spec("x", 20, budget=5))
    await anext(chunks)
    await backend.release("x")
    assert [chunk async for chunk in chunks] == []
    check(backend)


@virtual
async def test_a_consumer_that_leaves_aborts_its_sequence():
    backend = sim()
    async with aclosing(backend.generate(spec("x", 100, chunk=4))) as chunks:
        await anext(chunks)
    assert not backend.engine.sequences
    task = start(backend, spec("y", 100))
    await asyncio.sleep(3)
    task.cancel()
    await asyncio.wait([task])
    assert not backend.engine.sequences
    assert backend.load().kv_used == 0
    check(backend)


@virtual
async def test_the_youngest_is_preempted_when_kv_runs_out():
    """30 tokens of room, 3 prompts of 5. After 6 steps a, b, c have 4 + 6 = 10 each: full. c gives its KV up, waits for
    a to end (b then holds 14) and computes its 4 + 6 again."""
    backend = sim(kv_tokens=30)
    lengths = {"a": 10, "b": 12, "c": 12}
    a, b, c = (start(backend, spec(name, length, budget=20, prompt=5)) for name, length in lengths.items())
    await asyncio.sleep(3 * 4 / 100 + 6 * tau(3) + 0.01)
    check(backend)
    assert list(backend.engine.running) == ["a", "b"]
    load = backend.load()
    assert (load.preemptions, load.recomputed, load.kv_used) == (1, 0, pytest.approx(20 / 30))
    ends = [(await task)[1] for task in (a, b, c)]
    a_ends = 3 * 4 / 100 + 6 * tau(3) + 4 * tau(2)
    b_ends = a_ends + 10 / 100 + 2 * tau(2)
    assert ends == pytest.approx([a_ends, b_ends, b_ends + 4 * tau(1)])
    load = backend.load()
    assert (load.preemptions, load.recomputed) == (1, 10)
    assert load.computed == 3 * 4 + 10 + (10 + 12 + 12)
    assert len((await c)[0].tokens) == 12


@virtual
async def test_what_rests_gives_its_kv_up_first():
    backend = sim(kv_tokens=40)
    chunks = backend.generate(spec("resting", 30, budget=10, prompt=6))
    await anext(chunks)  # it holds 15
    whole, _ = await collect(backend.generate(spec("x", 30, budget=30)))
    assert len(whole.tokens) == 30
    load = backend.load()
    assert (load.preemptions, load.recomputed, load.kv_used) == (1, 0, 0)
    began = now()
    await backend.extend("resting", 5)
    assert (await anext(chunks)).end == "boundary"
    assert now() - began == pytest.approx(15 / 100 + BOUNDARY + 5 * tau(1))
    assert backend.load().recomputed == 15
    await backend.release("resting")


@virtual
async def test_weights_land_at_a_whole_step_and_kv_is_computed_again():
    """The step under way is lost to the update: 3 tokens, 0.2 s into the 4th; then 3 + 3 tokens of KV again."""
    backend = sim()
    task = start(backend, spec("x", 10, prompt=4))
    await asyncio.sleep(3 / 100 + 3 * tau(1) + 0.2)
    await backend.load_weights(None, 4)
    whole, at = await task
    assert whole.version == [0] * 3 + [4] * 7
    assert whole.mixed_kv == [False] * 10
    assert at == pytest.approx(3 / 100 + 4 * tau(1) + 6 / 100 + 7 * tau(1))
    load = backend.load()
    assert (load.computed, load.sampled, load.recomputed, load.preemptions) == (3 + 6 + 10, 10, 0, 0)
    with pytest.raises(WeightsError, match="version 4 is not newer than the engine's version 4"):
        await backend.load_weights(None, 4)


@virtual
async def test_kept_kv_is_marked():
    backend = sim(kv_after_update="keep")
    task = start(backend, spec("x", 10, chunk=4))
    await asyncio.sleep(3 * tau(1))
    await backend.load_weights(None, 1)
    await asyncio.sleep(2 * tau(1))
    await backend.load_weights(None, 2)
    whole, at = await task
    assert whole.version == [0] * 3 + [1] * 2 + [2] * 5
    assert whole.mixed_kv == [False] * 3 + [True] * 7
    assert at == pytest.approx(10 * tau(1))
    assert not (await collect(backend.generate(spec("y", 2))))[0].mixed_kv[0]


@virtual
async def test_a_pause_is_no_time_at_all():
    backend = sim()
    task = start(backend, spec("x", 10, prompt=11))
    await asyncio.sleep(0.05)  # half of its prefill
    for seconds in (10, 7, 100):
        await backend.pause("keep")
        load = backend.load()
        await asyncio.sleep(seconds)
        assert backend.load() == load
        await backend.resume()
        await asyncio.sleep(0.3)
    assert (await task)[1] == pytest.approx(117 + 0.1 + 10 * tau(1))


@virtual
async def test_pause_wait_lets_what_runs_end_and_starts_nothing():
    backend = sim(slots=1)
    running = start(backend, spec("x", 6))
    await asyncio.sleep(2)
    late = start(backend, spec("late", 5))
    await backend.pause("wait")
    assert now() == pytest.approx(6 * tau(1))
    assert (await running)[0].end == "stop"
    await asyncio.sleep(50)
    assert backend.load().sampled == 6
    await backend.resume()
    assert (await late)[1] == pytest.approx(50 + 11 * tau(1))


@virtual
async def test_a_cancelled_pause_lets_new_work_in_again():
    backend = sim()
    running = start(backend, spec("x", 1000))
    await asyncio.sleep(2)
    pausing = asyncio.create_task(backend.pause("wait"))
    await asyncio.sleep(0)
    late = start(backend, spec("late", 5))
    await asyncio.sleep(100)
    assert not late.done()
    pausing.cancel()
    assert len((await late)[0].tokens) == 5
    await backend.abort(["x"])
    await running


@virtual
async def test_pause_abort_ends_everything():
    backend = sim(slots=1)
    tasks = [start(backend, spec(name, 100)) for name in "ab"]
    await asyncio.sleep(5)
    await backend.pause("abort")
    assert [(len(whole.tokens), whole.end) for whole, _ in await asyncio.gather(*tasks)] == [(4, "abort"), (0, "abort")]
    check(backend)


@virtual
async def test_sleep_and_wake_keep_sequences():
    backend = sim()
    task = start(backend, spec("x", 10))
    await asyncio.sleep(4 * tau(1))
    await backend.sleep(1)
    assert backend.load().kv_used == 0
    await asyncio.sleep(20)
    await backend.wake()
    whole, at = await task
    assert len(whole.tokens) == 10
    assert at == pytest.approx(20 + 4 / 100 + 10 * tau(1))
    with pytest.raises(RequestError, match="sleep level 2"):
        await backend.sleep(2)


@virtual
async def test_after_close_nothing_hangs():
    backend = sim()
    task = start(backend, spec("x", 10))
    await asyncio.sleep(2)
    await backend.close()
    await backend.close()
    assert (await task)[0].end == "abort"
    assert backend.load().sampled == 1
    with pytest.raises(RuntimeError, match="the backend is closed"):
        await collect(backend.generate(spec("y", 5)))


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"budget": 0}, "budget = 0 must be at least 1"),
        ({"budget": 10**7}, "may grow to 10000001 tokens, but the KV pool holds 2000000"),
        ({"chunk": 0}, "chunk = 0 must be at least 1"),
        ({"prompt": 0}, "has 0 tokens and done = 0"),
        ({"done": 1}, "has 1 tokens and done = 1"),
        ({"hidden": True}, "the simulator has no hidden states"),
        ({"length": -1}, "stream = -1 must be an integer"),
    ],
)
def test_a_bad_request_is_refused(more, problem):
    with pytest.raises(RequestError, match=problem):
        run_virtual(collect(sim().generate(spec("x", **{"length": 5, **more}))))


@virtual
async def test_an_operation_in_the_wrong_state_is_refused():
    backend = sim(slots=1)
    tasks = [start(backend, spec(name, 50)) for name in "xy"]
    await asyncio.sleep(1)
    with pytest.raises(SequenceStateError, match="cannot extend sequence 'x': it is running, not at a boundary"):
        await backend.extend("x", 5)
    with pytest.raises(SequenceStateError, match="cannot append to sequence 'y': it is waiting"):
        await backend.append("y", [1])
    with pytest.raises(SequenceStateError, match="sequence 'z' is unknown"):
        await backend.release("z")
    with pytest.raises(SequenceStateError, match="sequence 'z' is unknown"):
        await backend.fork("z", [1])
    with pytest.raises(RequestError, match="fork of 'x': 0 streams"):
        await backend.fork("x", [])
    with pytest.raises(RequestError, match="'x' exists already"):
        await collect(backend.generate(spec("x", 5)))
    with pytest.raises(RequestError, match="pause mode 'now' is unknown"):
        await backend.pause("now")
    assert [len(whole.tokens) for whole, _ in await asyncio.gather(*tasks)] == [50, 50]


async def disturbed(seed: int) -> list:
    """A few hundred random operations on two small engines; every chunk's owner, size, end and time."""
    rng, law, log = random.Random(seed), make_law("short", seed), []
    config = {"slots": 4, "kv_tokens": 6000, "kv_after_update": rng.choice(["keep", "recompute"])}
    backends = [SimBackend(law, SimConfig(**config)) for _ in range(2)]
    readers = asyncio.TaskGroup()

    async def read(backend, chunks):
        async for chunk in chunks:
            log.append((backends.index(backend), len(chunk.tokens), chunk.end, chunk.version[-1:], now()))
            assert chunk.version == sorted(chunk.version)

    def some(backend):
        return rng.choice(sorted(backend.engine.sequences))

    async with readers:
        for number in range(300):
            await asyncio.sleep(rng.choice([0, 0.01, 0.4]))
            backend = rng.choice(backends)
            check(backend)
            if rng.random() < 0.3 or not backend.engine.sequences:
                tokens = sim_prompts(9, law)[number % 9].tokens
                request = SequenceSpec(f"s{number}", tokens, rng.randint(1, 600), stream_key(seed, number), hold=True)
                readers.create_task(read(backend, backend.generate(request)))
                continue
            match rng.choice(["extend", "append", "release", "fork", "cut", "abort", "load", "pause"]):
                case "extend" | "append" | "release" as name if backend.engine.resting:
                    chosen = rng.choice(sorted(backend.engine.resting))
                    arguments = {"extend": [rng.randint(1, 500)], "append": [[5] * 9], "release": []}[name]
                    if name != "extend" or not backend.engine.sequences[chosen].turn_over:
                        await getattr(backend, name)(chosen, *arguments)
                case "fork":
                    forked = await backend.fork(some(backend), [stream_key(seed, number, 1)])
                    readers.create_task(read(backend, backend.stream(forked.children[0])))
                case "cut":
                    await backend.cut([some(backend)])
                case "abort":
                    await backend.abort([some(backend)])
                case "load":
                    await backend.load_weights(None, number + 1)
                case "pause":
                    await backend.pause("keep")
                    await asyncio.sleep(0.1)
                    await backend.resume()
        await asyncio.sleep(0)  # the last request gets there
        for backend in backends:
            await backend.close()
            check(backend)
    loads = [backend.load() for backend in backends]
    for number, load in enumerate(loads):
        assert load.sampled == sum(size for owner, size, *_ in log if owner == number)
        assert load.kv_used == 0
        assert load.busy_s <= now()
    return [*log, *loads]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_done_to_it_the_counts_add_up_and_repeat(seed):
    log = run_virtual(disturbed(seed))
    assert log == run_virtual(disturbed(seed))
    assert sum(load.preemptions for load in log[-2:]) > 0 or seed


def test_a_rollout_over_several_engines_is_the_same_every_time():
    law = make_law("lognormal", 1)
    prompts = sim_prompts(8, law)

    async def roll_out() -> list:
        backends = [SimBackend(law, SimConfig(slots=8)) for _ in range(2)]
        requests = [SequenceSpec(f"{n}", prompts[n // 4].tokens, 8192, stream_key(1, n), chunk=2048) for n in range(32)]
        ends = await asyncio.gather(*(start(backends[n % 2], request) for n, request in enumerate(requests)))
        assert sum(backend.load().sampled for backend in backends) == sum(len(whole.tokens) for whole, _ in ends)
        return [(len(whole.tokens), whole.end, at) for whole, at in ends]

    ends = run_virtual(roll_out())
    assert ends == run_virtual(roll_out())
    for n, (length, end, _) in enumerate(ends):
        drawn = law.draw(prompts[n // 4], stream_key(1, n)).length
        assert (length, end) == ((drawn, "stop") if drawn <= 8192 else (8192, "boundary"))
