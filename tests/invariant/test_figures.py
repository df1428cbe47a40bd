"""Log-probs, entropy and p(eos) of every token against a float64 reference, plain and truncated."""

import pytest
import torch

from tests.helpers.equality import reference_logits
from tests.helpers.running import finish, spec
from untail.config import EngineConfig
from untail.engine.engine import Engine
from untail.types import SamplingParams

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
PARAMS = [
    SamplingParams(),
    SamplingParams(stop_ids=(5, 17)),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.3, policy_temperature=1.3),
    SamplingParams(temperature=0.8, policy_temperature=0.6, top_p=0.7),
    SamplingParams(top_k=5),
    SamplingParams(min_p=0.2),
    SamplingParams(temperature=1.2, top_k=20, top_p=0.9, min_p=0.01),
    SamplingParams(temperature=0.0),
]


def reference_behaviour(logits: torch.Tensor, p: SamplingParams) -> torch.Tensor:
    """The sampling distribution of one token, by the definitions, one token of the vocabulary at a time."""
    if p.temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).double()
    probs = (logits / p.temperature).softmax(-1)
    kept, before = [], 0.0
    for rank, token in enumerate(probs.argsort(descending=True).tolist()):
        inside_k = p.top_k == 0 or rank < p.top_k
        if inside_k and probs[token] >= p.min_p * probs.max() and (before < p.top_p or rank == 0):
            kept.append(token)
        before += probs[token].item()
    result = torch.zeros_like(probs)
    result[kept] = probs[kept] / probs[kept].sum()
    return result


@pytest.mark.parametrize("number", range(len(PARAMS)))
def test_against_float64(family_decoder, number):
    """All parameter sets run in one batch, so that rows of different kinds meet in the sampler."""
    engine = Engine(family_decoder, EngineConfig(kv_blocks=64))
    for other, params in enumerate(PARAMS):
        engine.add(spec(str(other), PROMPT, 24, stream=other, sampling=params))
    params, result = PARAMS[number], finish(engine)[str(number)]
    logits = reference_logits(family_decoder, PROMPT + result.tokens)[len(PROMPT) - 1 : -1]
    policy = (logits / params.policy_temperature).log_softmax(-1)
    entropy = -(policy.exp() * policy).sum(-1)
    for at, token in enumerate(result.tokens):
        assert result.policy_logprob[at] == pytest.approx(policy[at, token].item(), abs=1e-4)
        assert result.entropy[at] == pytest.approx(entropy[at].item(), abs=1e-4)
        stops = policy[at].exp()[list(params.stop_ids)].sum().item()
        assert result.p_eos[at] == pytest.approx(stops, abs=1e-5)
        behaviour = reference_behaviour(logits[at], params)[token].item()
        assert behaviour > 0, "a token was drawn that the truncation forbids"
        assert result.behaviour_logprob[at] == pytest.approx(torch.tensor(behaviour).log().item(), abs=1e-4)


def test_hidden_sums(family_decoder):
    from tests.helpers.equality import DenseCausal

    engine = Engine(family_decoder, EngineConfig(kv_blocks=64))
    engine.add(spec("x", PROMPT, 20, hidden=True, chunk=7))
    result = finish(engine)["x"]
    tokens = PROMPT + result.tokens
    with torch.inference_mode():
        hidden = family_decoder(torch.tensor(tokens), torch.arange(len(tokens)), DenseCausal())
    expected = hidden[len(PROMPT) - 1 : -1].sum(0)
    assert torch.allclose(result.hidden_sum, expected, atol=1e-3)
