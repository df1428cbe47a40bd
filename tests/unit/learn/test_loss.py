"""The clipped loss and its figures against a loop over Python floats."""

import math

import pytest
import torch

from untail.learn.importance import IMPORTANCES, Importance
from untail.learn.loss import PolicyLoss, k3
from untail.learn.pack import LossColumns
from untail.learn.tally import Tally

ROWS = 40
RULES = ["on_policy", "pois", "segment", "pois_segment", "tis"]


def rule(name: str) -> Importance:
    return IMPORTANCES.build({"name": name}, "learn.importance")


def policy_loss(low: float = 0.2, high: float = 0.2, kl: float = 0.0, name: str = "pois") -> PolicyLoss:
    return PolicyLoss(rule(name), low, high, kl)


def make_columns(**without) -> LossColumns:
    generator = torch.Generator().manual_seed(3)
    random = lambda scale: scale * torch.randn(ROWS, generator=generator, dtype=torch.float64)
    names = ("engine_logprob_R", "behaviour_R", "advantage_R", "weight_R", "prox_R", "reference_R")
    columns = {name: random(scale) for name, scale in zip(names, (0.3, 0.6, 2, 1, 0.3, 1), strict=True)}
    is_current = torch.arange(ROWS) % 3 > 0
    return LossColumns(torch.zeros(ROWS, dtype=torch.long), is_current_R=is_current, **(columns | without))


def logprobs() -> torch.Tensor:
    generator = torch.Generator().manual_seed(4)
    return (0.3 * torch.randn(ROWS, generator=generator, dtype=torch.float64)).requires_grad_()


def plain_terms(loss: PolicyLoss, name: str, logprob: list[float], columns: LossColumns) -> list[float]:
    terms = []
    for t, now in enumerate(logprob):
        prox = now if columns.prox_R is None else columns.prox_R[t].item()
        mu, engine = columns.behaviour_R[t].item(), columns.engine_logprob_R[t].item()
        old = {"on_policy": now, "pois": prox, "segment": mu, "pois_segment": engine, "tis": prox}[name]
        ratio, advantage = math.exp(now - old), columns.advantage_R[t].item()
        clipped = min(max(ratio, 1 - loss.clip_low), 1 + loss.clip_high)
        term = -min(ratio * advantage, clipped * advantage)
        if name == "tis":
            term *= min(math.exp(prox - mu), 2.0)
        if columns.reference_R is not None:
            apart = columns.reference_R[t].item() - now
            term += loss.kl * (math.exp(apart) - apart - 1)
        terms.append(columns.weight_R[t].item() * term)
    return terms


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("without", [{}, {"reference_R": None}, {"prox_R": None, "reference_R": None}], ids=str)
@pytest.mark.parametrize(("clip_low", "clip_high"), [(0.2, 0.2), (0.1, 0.4)])
def test_value_and_gradient(name, without, clip_low, clip_high):
    loss, columns, logprob = policy_loss(clip_low, clip_high, 0.3, name), make_columns(**without), logprobs()
    value = loss(logprob, torch.zeros(ROWS), columns, Tally())
    assert value.item() == pytest.approx(sum(plain_terms(loss, name, logprob.tolist(), columns)), abs=1e-12)
    if columns.prox_R is not None and name != "on_policy":  # else `old` moves with the policy, but has no slope
        call = lambda x: loss(x, torch.zeros(ROWS), columns, Tally())
        assert torch.autograd.gradcheck(call, (logprob,))


@pytest.mark.parametrize(
    ("name", "columns"), [("pois", {"prox_R": None}), ("on_policy", {}), ("tis", {"prox_R": None})]
)
def test_against_itself_the_gradient_is_that_of_the_log_prob(name, columns):
    """ratio = 1 and d ratio = d log pi, so each row's slope is -weight * advantage, times what `tis` scales by."""
    columns, logprob = make_columns(**columns, reference_R=None), logprobs()
    policy_loss(name=name)(logprob, torch.zeros(ROWS), columns, Tally()).backward()
    expected = -columns.weight_R * columns.advantage_R
    if name == "tis":
        expected = expected * (logprob.detach() - columns.behaviour_R).exp().clamp(max=2)
    torch.testing.assert_close(logprob.grad, expected, atol=1e-15, rtol=1e-15)


def one_token(advantage: float, **columns: float) -> LossColumns:
    one = lambda value: torch.tensor([float(value)])
    named = {"engine_logprob_R": 0, "behaviour_R": 0, "advantage_R": advantage, "weight_R": 1, "prox_R": 0} | columns
    tensors = {name: one(value) for name, value in named.items()}
    return LossColumns(torch.zeros(1, dtype=torch.long), is_current_R=torch.ones(1, dtype=torch.bool), **tensors)


@pytest.mark.parametrize(("advantage", "log_ratio", "moves"), [(1, 0.5, False), (1, -0.5, True), (-1, 0.5, True)])
def test_a_clipped_token_does_not_move(advantage, log_ratio, moves):
    logprob = torch.tensor([log_ratio]).requires_grad_()
    policy_loss()(logprob, torch.zeros(1), one_token(advantage), Tally()).backward()
    assert bool(logprob.grad) is moves


@pytest.mark.parametrize("name", ["segment", "tis"])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("mu", [-math.inf, -1e4, -89.0])
def test_a_ratio_that_would_overflow_has_a_finite_loss_and_slope(name, advantage, mu):
    logprob, columns = torch.tensor([-0.5], requires_grad=True), one_token(advantage, behaviour_R=mu, prox_R=-0.5)
    value = policy_loss(name=name)(logprob, torch.zeros(1), columns, Tally())
    value.backward()
    assert value.isfinite()
    assert logprob.grad.isfinite().all()
    if name == "segment":
        assert logprob.grad.item() == 0, "it has no slope"
    else:
        assert logprob.grad.item() == pytest.approx(-2 * advantage), "its weight is cut at the cap"


def test_figures():
    columns, logprob, tally = make_columns(), logprobs(), Tally()
    entropy = torch.linspace(0, 1, ROWS, dtype=torch.float64)
    for rows in (slice(0, 7), slice(7, ROWS)):
        part = Tally()
        policy_loss(0.1, 0.3, 0.3, "tis")(logprob[rows], entropy[rows], columns.rows(rows), part)
        tally.take(part)
    ratios = [math.exp(now - old) for now, old in zip(logprob.tolist(), columns.prox_R.tolist(), strict=True)]
    clipped = sum(r > 1.3 if a > 0 else r < 0.9 for r, a in zip(ratios, columns.advantage_R.tolist(), strict=True))
    current = columns.is_current_R
    mismatch = (columns.engine_logprob_R - columns.prox_R).abs()[current]
    drift = (columns.prox_R - columns.behaviour_R).abs()
    expected = {
        "ratio_mean": sum(ratios) / ROWS,
        "ratio_max_deviation": max(abs(ratio - 1) for ratio in ratios),
        "clip_share": clipped / ROWS,
        "approx_kl": sum(ratio - 1 - math.log(ratio) for ratio in ratios) / ROWS,
        "reference_kl": k3(columns.reference_R - logprob).mean().item(),
        "importance_weight": (columns.prox_R - columns.behaviour_R).exp().clamp(max=2).mean().item(),
        "entropy": 0.5,
        "mismatch_mean": mismatch.mean().item(),
        "mismatch_max": mismatch.max().item(),
        "drift_mean": drift.mean().item(),
        "drift_max": drift.max().item(),
        "stale_share": (~current).sum().item() / ROWS,
    }
    assert tally.figures() == pytest.approx(expected, abs=1e-8)


def test_where_all_tokens_are_stale_there_is_no_mismatch_to_tell():
    columns, tally = make_columns(), Tally()
    columns.is_current_R = torch.zeros(ROWS, dtype=torch.bool)
    policy_loss()(logprobs(), torch.zeros(ROWS), columns, tally)
    assert not {"mismatch_mean", "mismatch_max"} & tally.figures().keys()
    assert tally.figures()["stale_share"] == 1


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
