"""The model with layers left out: drafts that are verified, and a lone survivor's tokens that are not."""

import pytest
import torch
from tests.helpers.drafting import always
from tests.helpers.equality import DenseCausal
from tests.helpers.running import finish, spec

from untail.config import DraftConfig, EngineConfig, load_recipe
from untail.draft import build as drafting
from untail.draft.layer_skip import LayerSkip
from untail.engine.engine import Engine
from untail.errors import ConfigError
from untail.resolve import resolved
from untail.types import SamplingParams

SAMPLED = SamplingParams(1.0)


def skipping(**fields) -> LayerSkip:
    return LayerSkip(LayerSkip.Config(**fields))


def make_useless(decoder, layer: int):
    """A copy of the decoder whose layer adds nothing."""
    twin = type(decoder)(decoder.shape)
    twin.load_state_dict(decoder.state_dict())
    with torch.no_grad():
        twin.layers[layer].out.zero_()
        twin.layers[layer].down.zero_()
    return twin


def test_without_layers_that_do_nothing_every_draft_is_right(decoder):
    """Drawn with the target's own random numbers, at temperature 1."""
    twin = make_useless(decoder, decoder.shape.layers - 1)
    engine = Engine(twin, EngineConfig(kv_blocks=64), speculation=always("layer_skip", skipping(layers=0.67), depth=5))
    for number in range(3):
        engine.add(spec(str(number), [1, 2, 3 + number], 40, stream=number, sampling=SAMPLED))
    finish(engine)
    assert engine.counts.drafted > 0
    assert engine.counts.accepted >= 0.98 * engine.counts.drafted


@pytest.mark.parametrize(("keep", "layers"), [("first", [0, 1]), ("spread", [0, 1])])
def test_which_layers(decoder, keep, layers):
    drafter = skipping(layers=0.67, keep=keep)
    drafter.attach(Engine(decoder, EngineConfig(kv_blocks=8)).runner)
    assert list(drafter._skimmer.layers) == layers


def test_a_share_that_keeps_all_layers_is_refused(decoder):
    with pytest.raises(ConfigError, match=r"layers = 0.99 keeps all 3 layers"):
        Engine(decoder, EngineConfig(kv_blocks=8), speculation=always("layer_skip", skipping(layers=0.99)))


def degraded(decoder, after: int, others: int = 0, budget: int = 60, late: int | None = None):
    """One sequence, and others that are shorter; `late` comes while it is alone."""
    engine = Engine(
        decoder, EngineConfig(kv_blocks=64), speculation=always("layer_skip", skipping(verified=False, after=after))
    )
    engine.add(spec("long", [1, 2, 3], budget, sampling=SAMPLED, chunk=7))
    for number in range(others):
        engine.add(spec(f"short{number}", [4, 5 + number], 10, stream=number, sampling=SAMPLED))

    def come(step, so_far):
        if step == late:
            engine.add(spec("late", [9, 9], 6, sampling=SAMPLED))

    return engine, finish(engine, come)


def test_a_lone_survivor_goes_on_unverified_and_says_so(decoder):
    engine, results = degraded(decoder, after=20, others=2)
    plain = Engine(decoder, EngineConfig(kv_blocks=64))
    plain.add(spec("long", [1, 2, 3], 60, sampling=SAMPLED))
    expected = finish(plain)["long"]
    long = results["long"]
    assert long.tokens[:20] == expected.tokens[:20]
    assert long.lossy == [False] * 20 + [True] * 40
    assert engine.speculation.figures()["layer_skip"]["unverified"] == 40
    assert not any(results["short0"].lossy)


def test_its_log_probs_are_the_skipping_models(decoder):
    """Those that its first layers alone give to the whole sequence at once: what comes before it is the same there."""
    _, results = degraded(decoder, after=10)
    long = results["long"]
    tokens = [1, 2, 3, *long.tokens]
    with torch.inference_mode():
        hidden_TD = decoder(torch.tensor(tokens), torch.arange(len(tokens)), DenseCausal(), layers=[0, 1])
        logprobs = decoder.logits(hidden_TD).log_softmax(-1)
    for place in range(10, 60):
        assert long.lossy[place]
        expected = logprobs[3 + place - 1, long.tokens[place]].item()
        assert long.behaviour_logprob[place] == pytest.approx(expected, abs=1e-4)


def test_the_full_model_catches_up_when_another_comes(decoder):
    _, results = degraded(decoder, after=10, late=30)
    long = results["long"]
    assert any(long.lossy), "it was alone at first"
    assert (len(long.tokens), len(results["late"].tokens)) == (60, 6)
    changes = [place for place in range(1, 60) if long.lossy[place] != long.lossy[place - 1]]
    assert len(changes) == 3, "it went on unverified, was verified while another was there, and then again not"


def test_a_fork_of_an_unverified_sequence_computes_its_own(decoder):
    engine = Engine(
        decoder, EngineConfig(kv_blocks=64), speculation=always("layer_skip", skipping(verified=False, after=4))
    )
    engine.add(spec("long", [1, 2, 3], 40, sampling=SAMPLED))
    for _ in range(20):
        engine.step()
    assert engine._sequences["long"].shallow > engine._sequences["long"].computed
    forked, _ = engine.fork("long", [5, 6])
    engine.check_integrity()
    results = finish(engine)
    assert set(forked.children) <= set(results)


def test_unverified_tokens_need_a_rule_that_knows_what_was_sampled_from():
    assert drafting.lossy(drafting.resolved(DraftConfig(drafters={"layer_skip": {"verified": False}})))
    assert not drafting.lossy(drafting.resolved(DraftConfig(drafters={"layer_skip": {}})))
    resolved(load_recipe("layer-skip", {}, []))
    with pytest.raises(ConfigError, match=r"draft.drafters.layer_skip samples tokens from something else"):
        resolved(load_recipe("layer-skip", {}, ["learn.importance=pois"]))
