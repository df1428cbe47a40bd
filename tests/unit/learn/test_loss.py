"""The clipped loss and its figures against a loop over Python floats."""

import math

import pytest
import torch

from untail.learn.loss import PolicyLoss, k3
from untail.learn.pack import LossColumns
from untail.learn.tally import Tally

ROWS = 40


def make_columns(**without) -> LossColumns:
    generator = torch.Generator().manual_seed(3)
    random = lambda scale: scale * torch.randn(ROWS, generator=generator, dtype=torch.float64)
    names = ("engine_logprob_R", "advantage_R", "weight_R", "old_R", "reference_R")
    columns = {name: random(scale) for name, scale in zip(names, (1, 2, 1, 0.3, 1), strict=True)}
    return LossColumns(target_R=torch.zeros(ROWS, dtype=torch.long), **(columns | without))


def logprobs() -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return (0.3 * torch.randn(ROWS, generator=generator, dtype=torch.float64)).requires_grad_()


def plain_terms(loss: PolicyLoss, logprob: list[float], columns: LossColumns) -> list[float]:
    terms = []
    for t, now in enumerate(logprob):
        old = now if columns.old_R is None else columns.old_R[t].item()
        ratio, advantage = math.exp(now - old), columns.advantage_R[t].item()
        clipped = min(max(ratio, 1 - loss.clip_low), 1 + loss.clip_high)
        term = -min(ratio * advantage, clipped * advantage)
        if columns.reference_R is not None:
            apart = columns.reference_R[t].item() - now
            term += loss.kl * (math.exp(apart) - apart - 1)
        terms.append(columns.weight_R[t].item() * term)
    return terms


@pytest.mark.parametrize("without", [{}, {"reference_R": None}, {"old_R": None, "reference_R": None}], ids=str)
@pytest.mark.parametrize(("clip_low", "clip_high"), [(0.2, 0.2), (0.1, 0.4)])
def test_value_and_gradient(without, clip_low, clip_high):
    loss, columns, logprob = PolicyLoss(clip_low, clip_high, kl=0.3), make_columns(**without), logprobs()
    value = loss(logprob, torch.zeros(ROWS), columns, Tally())
    assert value.item() == pytest.approx(sum(plain_terms(loss, logprob.tolist(), columns)), abs=1e-12)
    if columns.old_R is not None:
        call = lambda x: loss(x, torch.zeros(ROWS), columns, Tally())
        assert torch.autograd.gradcheck(call, (logprob,))


def test_without_old_logprobs_the_gradient_is_that_of_the_log_prob():
    """ratio = 1 and d ratio = d log pi, so each row's slope is -weight * advantage."""
    columns, logprob = make_columns(old_R=None, reference_R=None), logprobs()
    PolicyLoss(0.2, 0.2, 0.0)(logprob, torch.zeros(ROWS), columns, Tally()).backward()
    torch.testing.assert_close(logprob.grad, -columns.weight_R * columns.advantage_R, atol=1e-15, rtol=0)


@pytest.mark.parametrize(("advantage", "log_ratio", "moves"), [(1, 0.5, False), (1, -0.5, True), (-1, 0.5, True)])
def test_a_clipped_token_does_not_move(advantage, log_ratio, moves):
    one = lambda value: torch.tensor([float(value)])
    columns = LossColumns(torch.zeros(1, dtype=torch.long), one(0), one(advantage), one(1), old_R=one(0))
    logprob = one(log_ratio).requires_grad_()
    PolicyLoss(0.2, 0.2, 0.0)(logprob, one(0), columns, Tally()).backward()
    assert bool(logprob.grad) is moves


def test_figures():
    columns, logprob, tally = make_columns(), logprobs(), Tally()
    entropy = torch.linspace(0, 1, ROWS, dtype=torch.float64)
    for rows in (slice(0, 7), slice(7, ROWS)):
        PolicyLoss(0.1, 0.3, kl=0.3)(logprob[rows], entropy[rows], columns.rows(rows), tally)
    ratios = [math.exp(now - old) for now, old in zip(logprob.tolist(), columns.old_R.tolist(), strict=True)]
    clipped = sum(r > 1.3 if a > 0 else r < 0.9 for r, a in zip(ratios, columns.advantage_R.tolist(), strict=True))
    mismatch = (columns.engine_logprob_R - columns.old_R).abs()
    expected = {
        "ratio_mean": sum(ratios) / ROWS,
        "ratio_max_deviation": max(abs(ratio - 1) for ratio in ratios),
        "clip_share": clipped / ROWS,
        "approx_kl": sum(ratio - 1 - math.log(ratio) for ratio in ratios) / ROWS,
        "reference_kl": k3(columns.reference_R - logprob).mean().item(),
        "entropy": 0.5,
        "mismatch_mean": mismatch.mean().item(),
        "mismatch_max": mismatch.max().item(),
    }
    assert tally.figures() == pytest.approx(expected, abs=1e-8)


def test_figures_that_are_not_finite_are_left_out():
    tally = Tally()
    tally.mean(good=torch.ones(3), bad=torch.tensor([1.0, torch.nan]))
    tally.peak(worse=torch.tensor([torch.inf]))
    assert tally.figures() == {"good": 1.0}


def test_k3_is_not_negative_and_unbiased():
    """Over all tokens of a small vocabulary, the expectation under p is KL(p || q)."""
    p, q = (torch.randn(5, dtype=torch.float64).log_softmax(0) for _ in range(2))
    assert (k3(q - p) >= 0).all()
    assert (p.exp() * k3(q - p)).sum().item() == pytest.approx((p.exp() * (p - q)).sum().item(), abs=1e-12)
