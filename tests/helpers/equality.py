"""What "equal tokens" means in float32.

Matrix products of different shapes round differently, so two runs may part where the reference itself hangs by a
thread: the top two logits (greedy), or the drawn number and the nearest step of the cumulative distribution
(sampled), closer than `THREAD`. Each such case is counted and reported; any other difference fails.
"""

import warnings

import torch

from untail.engine.attention.base import Attention
from untail.engine.models.decoder import Decoder
from untail.engine.sampler import uniform

THREAD = 1e-4


class NearTie(UserWarning):
    """Two runs parted where the reference itself hangs by a thread."""


class DenseCausal:
    """Attention over one whole sequence, written out: the reference for everything."""

    def __call__(self, layer, q_THD, k_TKD, v_TKD):
        tokens, heads, size = q_THD.shape
        k = k_TKD.repeat_interleave(heads // k_TKD.shape[1], dim=1)
        v = v_TKD.repeat_interleave(heads // v_TKD.shape[1], dim=1)
        scores = torch.einsum("qhd,khd->hqk", q_THD, k) / size**0.5
        scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), float("-inf"))
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(tokens, -1)


@torch.inference_mode()
def reference_logits(decoder: Decoder, tokens: list[int]) -> torch.Tensor:
    """Float64 logits after each token, computed from the decoder's own weights."""
    twin = Decoder(decoder.shape, dtype=torch.float64)
    twin.load_state_dict(decoder.state_dict())
    attention: Attention = DenseCausal()
    return twin.logits(twin(torch.tensor(tokens), torch.arange(len(tokens)), attention))


def assert_same(decoder: Decoder, prompt, expected: list[int], actual: list[int], what: str, stream: int | None = None):
    """`stream` is the random stream of a sampled sequence at temperature 1; None: greedy."""
    if expected == actual:
        return
    assert len(expected) == len(actual) or expected[: min(len(expected), len(actual))] != actual[: len(expected)], (
        f"{what}: one run is a prefix of the other: {len(expected)} and {len(actual)} tokens"
    )
    at = next(i for i, pair in enumerate(zip(expected, actual, strict=False)) if pair[0] != pair[1])
    logits = reference_logits(decoder, [*prompt, *expected[:at]])[-1]
    if stream is None:
        top = logits.topk(2).values
        distance = (top[0] - top[1]).item()
    else:
        steps = logits.softmax(-1).cumsum(-1)
        drawn = uniform(torch.tensor([stream]), torch.tensor([len(prompt) + at]))
        distance = (steps - drawn).abs().min().item()
    assert distance < THREAD, f"{what}: tokens part at {at}, where the reference's distance is {distance:.3g}"
    # A warning, because pytest-xdist brings those home from its workers: they are listed at the end of the run.
    warnings.warn(NearTie(f"{what} at token {at} (distance {distance:.1e})"), stacklevel=2)
