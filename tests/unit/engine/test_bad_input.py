"""Whatever is wrong with a request: a typed error with a clear sentence, and the engine keeps serving the others."""

import math
import re

import pytest
import torch
from tests.helpers.models import random_decoder
from tests.helpers.running import finish, spec

from untail.config import EngineConfig
from untail.engine.engine import Engine
from untail.engine.models.names import split_out
from untail.errors import RequestError, SequenceStateError, UserError, WeightsError
from untail.types import SamplingParams, SequenceSpec

PROMPT = [1, 2, 3, 4, 5]


@pytest.fixture
def engine(decoder):
    engine = Engine(decoder, EngineConfig(kv_blocks=8))
    engine.add(spec("bystander", PROMPT, 20))
    return engine


def assert_refused(engine: Engine, error: type[UserError], sentence: str, action) -> None:
    with pytest.raises(error, match=re.escape(sentence)):
        action()
    engine.check_integrity()
    assert len(finish(engine)["bystander"].tokens) == 20


def sampling(**fields) -> SequenceSpec:
    return spec("x", PROMPT, 4, sampling=SamplingParams(**fields))


REQUESTS = {
    "empty prompt": (spec("x", []), "empty prompt"),
    "token out of range": (spec("x", [1, 199]), "token id 199, outside the vocabulary of 199"),
    "negative token": (spec("x", [-1]), "token id -1"),
    "prompt over the context": (spec("x", [1] * 512), "prompt of 512 tokens, but the context holds 512"),
    "budget 0": (spec("x", PROMPT, 0), "budget = 0 must be at least 1"),
    "negative done": (spec("x", PROMPT, done=-1), "done = -1 must be at least 0"),
    "done without a prompt": (spec("x", PROMPT, done=5), "done = 5 must be at least 0 and below the number"),
    "chunk 0": (spec("x", PROMPT, chunk=0), "chunk = 0 must be at least 1"),
    "pool too small": (spec("x", PROMPT, 200), "needs 13 KV blocks of 16, but the pool has 8"),
    "id taken": (spec("bystander", PROMPT), "'bystander' exists already"),
    "NaN temperature": (sampling(temperature=math.nan), "temperature = nan is not allowed"),
    "negative temperature": (sampling(temperature=-1.0), "temperature = -1.0 is not allowed"),
    "infinite temperature": (sampling(temperature=math.inf), "temperature = inf is not allowed"),
    "policy temperature 0": (sampling(policy_temperature=0.0), "policy_temperature = 0.0"),
    "top_p 0": (sampling(top_p=0.0), "top_p = 0.0"),
    "top_p over 1": (sampling(top_p=1.5), "top_p = 1.5"),
    "negative top_k": (sampling(top_k=-1), "top_k = -1"),
    "min_p 1": (sampling(min_p=1.0), "min_p = 1.0"),
    "stop id out of range": (sampling(stop_ids=(500,)), "stop_ids has the token id 500"),
    "stop string without tokenizer": (sampling(stop_strings=("x",)), "made without a tokenizer"),
    "stream too large": (spec("x", PROMPT, stream=2**63), "stream = 9223372036854775808 must be"),
    "negative stream": (spec("x", PROMPT, stream=-1), "stream = -1 must be"),
    "token that is no integer": (spec("x", [1.5]), "token id 1.5, which is no integer"),
    "temperature too small": (sampling(temperature=1e-40), "temperature = 1e-40 is not allowed"),
    "empty stop string": (sampling(stop_strings=("",)), "an empty string stops everything"),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_request(engine, case):
    request, sentence = REQUESTS[case]
    assert_refused(engine, RequestError, sentence, lambda: engine.add(request))


def test_fork_of_a_finished_sequence(engine):
    engine.add(spec("short", PROMPT, 2))
    while engine.is_alive("short") and engine._sequences["short"].budget:
        engine.step()
    engine.release("short")
    assert_refused(engine, SequenceStateError, "'short' is unknown", lambda: engine.fork("short", [1]))


def test_fork_without_streams(engine):
    assert_refused(engine, RequestError, "0 streams and 0 temperatures", lambda: engine.fork("bystander", []))


def test_fork_with_a_stream_out_of_range(engine):
    assert_refused(engine, RequestError, "stream = -5 must be", lambda: engine.fork("bystander", [1, -5]))


def test_a_huge_top_k_keeps_everything(engine):
    engine.add(spec("x", PROMPT, 4, sampling=SamplingParams(top_k=2**70)))
    assert len(finish(engine)["x"].tokens) == 4


def test_fork_with_nan_temperature(engine):
    assert_refused(engine, RequestError, "temperature = nan", lambda: engine.fork("bystander", [1, 2], [1.0, math.nan]))


def test_double_abort(engine):
    engine.add(spec("gone", PROMPT))
    engine.abort("gone")
    assert_refused(engine, SequenceStateError, "'gone' is unknown", lambda: engine.abort("gone"))


@pytest.mark.parametrize("verb", ["extend", "append to", "release"])
def test_not_at_a_boundary(engine, verb):
    engine.step()
    actions = {
        "extend": lambda: engine.extend("bystander", 5),
        "append to": lambda: engine.append("bystander", [1]),
        "release": lambda: engine.release("bystander"),
    }
    assert_refused(engine, SequenceStateError, f"cannot {verb} sequence 'bystander': it is running", actions[verb])


def test_cut_of_what_is_gone_or_rests_already(engine):
    at_boundary(engine)
    with pytest.raises(SequenceStateError, match="'gone' is unknown"):
        engine.cut("gone")
    assert_refused(engine, SequenceStateError, "cannot cut sequence 'x': it is at a bound", lambda: engine.cut("x"))


def at_boundary(engine: Engine, **more) -> None:
    engine.add(spec("x", PROMPT, 3, **more))
    for _ in range(5):
        engine.step()


def test_bad_extension_and_reply(engine):
    at_boundary(engine)
    with pytest.raises(RequestError, match="budget = 0"):
        engine.extend("x", 0)
    with pytest.raises(RequestError, match="needs 32 KV blocks"):
        engine.extend("x", 10_000)
    with pytest.raises(RequestError, match="reply is empty"):
        engine.append("x", [])
    with pytest.raises(RequestError, match="token id 1000"):
        engine.append("x", [1000])
    assert_refused(engine, RequestError, "would have 608 tokens", lambda: engine.append("x", [1] * 600))


def test_a_turn_that_is_over_is_not_extended(engine):
    everything = SamplingParams(temperature=0.0, stop_ids=tuple(range(199)))
    engine.add(spec("x", PROMPT, 3, sampling=everything, hold=True))
    engine.step()
    assert_refused(engine, SequenceStateError, "ended its turn", lambda: engine.extend("x", 5))


def test_an_update_that_does_not_fit_changes_nothing(decoder):
    decoder = random_decoder("llama")
    engine = Engine(decoder, EngineConfig(kv_blocks=8))
    before = {name: parameter.clone() for name, parameter in decoder.named_parameters()}
    good = {name: tensor + 1 for name, tensor in split_out(decoder)}
    name = "model.layers.2.mlp.up_proj.weight"
    bad = {
        f"tensor {name!r} is missing": {k: v for k, v in good.items() if k != name},
        f"tensor {name!r} has shape (2, 2)": {**good, name: torch.zeros(2, 2)},
        f"tensor {name!r} holds values that are not finite": {**good, name: good[name] / 0},
        "tensor 'model.extra' is unknown": {**good, "model.extra": torch.zeros(1)},
    }
    for sentence, tensors in bad.items():
        with pytest.raises(WeightsError, match=re.escape(sentence)):
            engine.load_weights(tensors, 1)
    with pytest.raises(WeightsError, match="version 0 is not newer"):
        engine.load_weights(good, 0)
    assert engine.version == 0
    for name, parameter in decoder.named_parameters():
        assert torch.equal(parameter, before[name]), name
    addresses = {name: parameter.data_ptr() for name, parameter in decoder.named_parameters()}
    engine.load_weights(good, 1)
    assert addresses == {name: parameter.data_ptr() for name, parameter in decoder.named_parameters()}
    assert torch.equal(decoder.norm, before["norm"] + 1)


def test_a_pool_that_holds_no_block(decoder):
    with pytest.raises(RequestError, match="does not hold one KV block"):
        Engine(decoder, EngineConfig(kv_gib=1e-9))


def test_a_pool_that_the_machine_cannot_hold(decoder):
    with pytest.raises(RequestError, match=r"which would hold \d+ blocks or \d+ tokens; lower engine\.kv_gib"):
        Engine(decoder, EngineConfig(kv_gib=1e6))


def test_the_pool_is_as_large_as_asked(decoder):
    engine = Engine(decoder, EngineConfig(kv_gib=0.01))
    taken = engine.runner.kv.numel() * engine.runner.kv.element_size()
    assert 0.01 * 2**30 - engine.runner.block_bytes(decoder) < taken <= 0.01 * 2**30
