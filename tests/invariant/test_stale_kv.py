"""After a weight update no key or value of the old weights is ever used."""

import pytest
import torch

from tests.helpers.equality import assert_same, reference_logits
from tests.helpers.models import random_decoder
from tests.helpers.running import finish, spec
from untail.config import EngineConfig
from untail.engine.engine import Engine
from untail.engine.models.names import split_out
from untail.engine.prefix import PrefixCache

PROMPT = list(range(30, 75))


def tensors(seed: int) -> dict[str, torch.Tensor]:
    return dict(split_out(random_decoder("llama", seed)))


def greedy_after_update() -> list[int]:
    engine = Engine(random_decoder("llama", 0), EngineConfig(kv_blocks=64))
    engine.add(spec("before", PROMPT, 32))
    finish(engine)
    engine.load_weights(tensors(1), 1)
    engine.add(spec("after", PROMPT, 32))
    return finish(engine)["after"].tokens


@pytest.fixture(scope="module")
def expected():
    engine = Engine(random_decoder("llama", 1), EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 32))
    return finish(engine)["x"].tokens


def test_prefix_of_old_weights_is_not_found(expected):
    assert_same(random_decoder("llama", 1), PROMPT, expected, greedy_after_update(), "after an update")


def test_the_test_above_can_fail(expected, monkeypatch):
    """Without the version at the root of every path, the stale prefix is found and the tokens differ."""
    monkeypatch.setattr(PrefixCache, "root", lambda self: 0)
    assert greedy_after_update() != expected


def test_running_sequences_are_recomputed():
    """In mid-sequence: every token after the update is the new weights' choice for the whole text so far."""
    engine = Engine(random_decoder("llama", 0), EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 40))
    result = finish(engine, lambda step, _: engine.load_weights(tensors(1), 3) if step == 20 else None)["x"]
    assert result.version == [0] * 20 + [3] * 20
    new = random_decoder("llama", 1)
    logits = reference_logits(new, PROMPT + result.tokens)[len(PROMPT) + 19 : -1]
    assert_same(new, PROMPT, logits.argmax(-1).tolist(), result.tokens[20:], "after an update in mid-sequence")


def test_kept_kv_is_marked_and_never_cached():
    engine = Engine(random_decoder("llama", 0), EngineConfig(kv_blocks=64, kv_after_update="keep"))
    engine.add(spec("x", PROMPT, 40))
    result = finish(engine, lambda step, _: engine.load_weights(tensors(1), 3) if step == 20 else None)["x"]
    assert result.mixed_kv == [False] * 20 + [True] * 20
    assert engine.counts.recomputed_after_update == 0
    hits = engine.counts.prefix_hits
    engine.add(spec("y", PROMPT + result.tokens, 4))
    finish(engine)
    assert engine.counts.prefix_hits == hits, "kept keys and values were found in the prefix cache"
