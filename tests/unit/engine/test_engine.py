"""How sequences end, rest, go on and are evicted: the engine's verbs one by one."""

import pytest
from tests.helpers.running import GREEDY, finish, spec

from untail.config import EngineConfig
from untail.engine.engine import Engine
from untail.errors import RequestError
from untail.types import Chunk, SamplingParams

PROMPT = [1, 2, 3, 4, 5]


def greedy(decoder, budget=20) -> list[int]:
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, budget))
    return finish(engine)["x"].tokens


def test_a_stop_id_ends_a_sequence_and_is_its_last_token(decoder):
    expected = greedy(decoder)
    stop = expected[7]
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 20, sampling=SamplingParams(temperature=0.0, stop_ids=(stop,))))
    result = finish(engine)["x"]
    assert result.end == "stop"
    assert result.tokens == expected[: expected.index(stop) + 1]
    assert not engine.names()
    assert engine.pool.free == engine.pool.total


def test_a_stop_string_is_found_across_tokens_and_only_in_the_response(decoder):
    expected = greedy(decoder)
    decode = lambda tokens: "".join(f"<{token}>" for token in tokens)
    string = decode(expected[4:6])[2:-2]
    engine = Engine(decoder, EngineConfig(kv_blocks=64), decode)
    sampling = SamplingParams(temperature=0.0, stop_strings=("never", string, decode(PROMPT[:2])))
    engine.add(spec("x", PROMPT, 20, sampling=sampling))
    result = finish(engine)["x"]
    assert result.end == "stop"
    assert result.tokens == expected[:6]


def test_a_stop_string_belongs_to_its_turn(decoder):
    """Neither the last turn's end nor the environment's reply stops the next turn."""
    decode = lambda tokens: "".join(f"<{token}>" for token in tokens)
    expected = greedy(decoder)
    engine = Engine(decoder, EngineConfig(kv_blocks=64), decode)
    string = decode([expected[2]])
    sampling = SamplingParams(temperature=0.0, stop_strings=(string,))
    engine.add(spec("x", PROMPT, 20, sampling=sampling, hold=True))
    assert finish(engine)["x"].end == "stop"
    engine.append("x", [expected[2], 9])
    second = finish(engine)["x"]
    assert len(second.tokens) > 1 or decode(second.tokens) == string


def test_fork_names_are_never_taken(decoder):
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 20))
    engine.add(spec("x/1", PROMPT, 20))
    engine.step()
    forked, chunk = engine.fork("x", [1, 2])
    assert forked.children == ["x/2", "x/3"]
    assert (forked.position, len(chunk.tokens)) == (1, 1)
    engine.check_integrity()
    assert len(finish(engine)["x"].tokens) == 19


def test_a_context_beyond_the_model_is_refused(decoder):
    with pytest.raises(RequestError, match=r"engine\.context = 1000, but the model's own limit is 512"):
        Engine(decoder, EngineConfig(kv_blocks=64, context=1000))


def test_a_full_context_is_an_end(decoder):
    engine = Engine(decoder, EngineConfig(kv_blocks=64, context=32))
    engine.add(spec("x", PROMPT, 100))
    result = finish(engine)["x"]
    assert (result.end, len(result.tokens)) == ("length", 32 - len(PROMPT))
    assert not engine.names()


def test_abort_returns_what_was_not_delivered_yet(decoder):
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 50))
    for _ in range(10):
        engine.step()
    rest = engine.abort("x")
    assert (rest.end, rest.tokens) == ("abort", greedy(decoder, 10))
    assert engine.pool.free == engine.pool.total


def test_cut_ends_a_budget_and_extend_goes_on(decoder):
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 50))
    for _ in range(10):
        engine.step()
    first = engine.cut("x")
    assert (first.end, len(first.tokens)) == ("boundary", 10)
    assert not engine.has_work
    engine.check_integrity()
    engine.extend("x", 10)
    second = finish(engine)["x"]
    assert (second.end, len(second.tokens)) == ("boundary", 10)
    assert first.tokens + second.tokens == greedy(decoder, 20)
    assert engine.counts.computed == len(PROMPT) + 19, "something was computed twice"


def test_cut_of_what_has_not_begun(decoder):
    """It rests without a token; when it goes on it is still new, and a pause keeps it out."""
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 50))
    assert engine.cut("x") == Chunk(end="boundary")
    engine.check_integrity()
    engine.admit_new(False)
    engine.extend("x", 20)
    assert not engine.has_work
    engine.admit_new(True)
    assert finish(engine)["x"].tokens == greedy(decoder, 20)


def test_cut_in_the_middle_of_a_prompt(decoder):
    engine = Engine(decoder, EngineConfig(kv_blocks=64, max_batch_tokens=2))
    engine.add(spec("x", PROMPT, 50))
    engine.step()
    assert engine.cut("x") == Chunk(end="boundary")
    engine.extend("x", 20)
    assert finish(engine)["x"].tokens == greedy(decoder, 20)


def test_cut_of_what_was_preempted(decoder):
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 50))
    for _ in range(7):
        engine.step()
    engine.scheduler._preempt(engine.scheduler.running[0])
    first = engine.cut("x")
    assert (first.end, len(first.tokens)) == ("boundary", 7)
    engine.check_integrity()
    engine.extend("x", 13)
    assert first.tokens + finish(engine)["x"].tokens == greedy(decoder, 20)


def test_what_is_done_already_counts_as_response(decoder):
    expected = greedy(decoder)
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT + expected[:8], 12, done=8))
    for _ in range(3):
        engine.step()
    forked, chunk = engine.fork("x", [7])
    assert (forked.position, chunk.tokens) == (11, expected[8:11])
    results = finish(engine)
    assert results["x"].tokens == results[forked.children[0]].tokens == expected[11:]


def test_a_stop_string_reaches_back_into_what_is_done(decoder):
    expected = greedy(decoder)
    decode = lambda tokens: "".join(f"<{token}>" for token in tokens)
    sampling = SamplingParams(temperature=0.0, stop_strings=(decode(expected[4:6])[2:-2],))
    engine = Engine(decoder, EngineConfig(kv_blocks=64), decode)
    engine.add(spec("x", PROMPT + expected[:5], 15, sampling=sampling, done=5))
    result = finish(engine)["x"]
    assert (result.end, result.tokens) == ("stop", expected[5:6])


def test_a_stop_string_in_what_is_done_ended_an_earlier_turn(decoder):
    """Turns and replies that came before are no reason to stop the present turn."""
    decode = lambda tokens: "".join(f"<{token}>" for token in tokens)
    earlier = [150, 151, 9, 9]
    sampling = SamplingParams(temperature=0.0, stop_strings=(decode(earlier[:2]),))
    engine = Engine(decoder, EngineConfig(kv_blocks=64), decode)
    engine.add(spec("moved", PROMPT + earlier, 10, sampling=sampling, done=4))
    engine.add(spec("plain", PROMPT + earlier, 10))
    results = finish(engine)
    assert results["moved"].tokens == results["plain"].tokens


def test_a_step_says_how_large_it_was(decoder):
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 20))
    engine.step()
    assert (engine.last_step, engine.last_step.decodes_only) == ((1, 5), False)
    engine.step()
    assert (engine.last_step, engine.last_step.decodes_only) == ((1, 1), True)
    engine.add(spec("y", PROMPT, 20))
    engine.step()
    assert (engine.last_step, engine.last_step.decodes_only) == ((2, 6), False)


def test_append_at_a_boundary_waits_for_budget(decoder):
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 5))
    finish(engine)
    engine.append("x", [9, 8, 7])
    assert not engine.has_work
    engine.extend("x", 5)
    assert len(finish(engine)["x"].tokens) == 5
    assert engine.counts.computed == len(PROMPT) + 5 + 3 + 5 - 1, "something was computed twice"


def test_a_fork_takes_no_block_until_somebody_writes(decoder):
    """A group forked many ways costs at most one block a child."""
    engine = Engine(decoder, EngineConfig(kv_blocks=256, max_seqs=64))
    engine.add(spec("x", list(range(40)), 64))
    for _ in range(3):
        engine.step()
    before = engine.pool.free
    forked, _ = engine.fork("x", list(range(32)))
    assert engine.pool.free == before
    engine.step()
    assert before - engine.pool.free <= len(forked.children)
    engine.check_integrity()


def test_siblings_that_start_together_share_their_prompt(decoder):
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    prompt = list(range(50))
    for number in range(8):
        engine.add(spec(str(number), prompt, 8, stream=number, sampling=SamplingParams()))
    finish(engine)
    assert engine.counts.prefix_hits == 7 * 48
    assert engine.counts.computed == 50 + 7 * 2 + 8 * 7


def test_prefix_cache_can_be_off(decoder):
    engine = Engine(decoder, EngineConfig(kv_blocks=64, prefix_cache=False))
    for number in range(4):
        engine.add(spec(str(number), list(range(50)), 2))
    finish(engine)
    assert engine.counts.prefix_hits == 0


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_fork_at_another_temperature_keeps_the_policy(decoder, temperature):
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 30, sampling=SamplingParams()))
    for _ in range(5):
        engine.step()
    forked, _ = engine.fork("x", [7], [temperature])
    result = finish(engine)[forked.children[0]]
    assert result.policy_logprob != result.behaviour_logprob


def test_greedy_behaviour_is_certain(decoder):
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 10, sampling=GREEDY))
    result = finish(engine)["x"]
    assert result.behaviour_logprob == [0.0] * 10
    assert all(logprob < 0 for logprob in result.policy_logprob)


def test_what_was_begun_elsewhere_goes_before_new_work(decoder):
    """After a resume the engine takes up its work in the order in which it would have gone on."""
    engine = Engine(decoder, EngineConfig(kv_blocks=64, max_seqs=1))
    engine.add(spec("new", PROMPT, 4))
    engine.add(spec("begun", [*PROMPT, 6, 7], 4, done=2))
    assert list(finish(engine)) == ["begun", "new"]


def test_a_prompt_that_was_cut_half_way_is_still_new_and_gives_up_its_blocks(decoder):
    engine = Engine(decoder, EngineConfig(kv_blocks=5, max_seqs=1, max_batch_tokens=16, prefix_cache=False))
    engine.add(spec("half", range(40), 8))
    engine.step()
    assert engine.cut("half").tokens == []
    engine.add(spec("begun", range(60), 8, done=2))
    engine.extend("half", 8)
    results = finish(engine)
    assert list(results) == ["begun", "half"]
    assert engine.counts.recomputed_after_eviction == 16
    alone = Engine(decoder, EngineConfig(kv_blocks=5))
    alone.add(spec("half", range(40), 8))
    assert finish(alone)["half"].tokens == results["half"].tokens


def test_what_is_computed_again_is_counted_under_what_took_it(decoder):
    """An update takes 45 tokens; 16 of them are back when the pool has no room: those alone are lost to that."""
    engine = Engine(decoder, EngineConfig(kv_blocks=64, max_batch_tokens=64, prefix_cache=False))
    engine.add(spec("x", range(40), 20))
    for _ in range(6):
        engine.step()
    engine.load_weights(None, 1)
    engine.scheduler.max_batch_tokens = 16
    engine.step()
    engine.scheduler._preempt(engine.scheduler.running[0])
    assert len(finish(engine)["x"].tokens) == 20
    counts = engine.counts
    assert (counts.recomputed_after_eviction, counts.recomputed_after_update) == (16, 45)
    assert counts.computed == 40 + 20 - 1 + 16 + 45
