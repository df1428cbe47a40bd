"""Gradient-guided token pruning: which tokens go, and what becomes of the gradient."""

import math

import numpy as np
import pytest
import torch
from tests.helpers.models import FAMILIES, random_decoder
from tests.unit.learn.helpers import (
    DenseAttention,
    assert_close,
    gradient,
    gradient_of_update,
    learn_config,
    uneven_batch,
)

from untail.config import LearnConfig, PruneConfig
from untail.errors import ConfigError
from untail.learn.prune import prune
from untail.learn.sample import samples_of
from untail.learn.trainer import Trainer

VOCAB = 199


def make_trainer(how: str | None, family="llama", share=0.4, cosine_every=1, **fields) -> Trainer:
    table = None if how is None else {"share": share, "how": how, "cosine_every": cosine_every}
    decoder = random_decoder(family, dtype=torch.float64)
    return Trainer(decoder, learn_config(prune=table, micro_batch_tokens=70, **fields))


def plain_choice(batch, trainer, share: float) -> set[tuple[str, int]]:
    """The pruned tokens of groups that teach, by sorting all scores in a list."""
    scored = []
    for members in batch.groups:
        samples = samples_of(members, trainer.rules)
        if any(sample.advantage_N.any() for sample in samples):
            for sample in samples:
                for t, ours in enumerate(sample.trajectory.from_model):
                    if ours:
                        score = abs(sample.advantage_N[t]) * (1 - math.exp(sample.trajectory.policy_logprob[t]))
                        scored.append((score, len(scored), (sample.trajectory.id, t)))
    return {token for _, _, token in sorted(scored)[: int(share * len(scored))]}


def plain_gradient(trainer: Trainer, batch, pruned: set, detach: bool) -> dict[str, torch.Tensor]:
    """Of the masked loss, one sequence after the other. With `detach`, positions that predict pruned tokens are cut out
    of the graph where attention reads them and where they are carried on."""
    decoder = trainer.policy.decoder
    total, tokens = 0.0, sum(sum(t.from_model) for t in batch.trajectories)
    for members in batch.groups:
        for sample in samples_of(members, trainer.rules):
            t, prompt = sample.trajectory, len(sample.trajectory.prompt.tokens)
            ids = torch.tensor([*t.prompt.tokens, *t.tokens])
            constant = [at >= prompt and (t.id, at - prompt + 1) in pruned for at in range(len(ids))]
            hidden = plain_hidden(decoder, ids, torch.tensor(constant) & detach)
            logprobs = decoder.logits(hidden).log_softmax(-1)[range(prompt - 1, len(ids) - 1), t.tokens]
            for position, ours in enumerate(t.from_model):
                if ours and (t.id, position) not in pruned:
                    ratio = (logprobs[position] - logprobs[position].detach()).exp()
                    total = total - ratio * sample.advantage_N[position] / tokens
    total.backward()
    return gradient(decoder)


def plain_hidden(decoder, ids, constant):
    """The decoder's loop, with the graph cut at constant positions after every layer and at their keys and values."""
    keep = (~constant).to(torch.float64)
    stop = lambda x: x * keep.view(-1, *[1] * (x.ndim - 1)) + (x * (1 - keep).view(-1, *[1] * (x.ndim - 1))).detach()
    cos, sin = decoder.rope_table[torch.arange(len(ids))].unbind(1)
    hidden = stop(torch.nn.functional.embedding(ids, decoder.embed))
    for number in range(decoder.shape.layers):
        q, k, v = decoder.qkv(number, hidden, cos, sin)
        attended = DenseAttention()(number, q, stop(k), stop(v))
        hidden = stop(decoder.after_attention(number, hidden, attended))
    return decoder.rms(hidden, decoder.norm)


@pytest.mark.parametrize("how", ["exact", "detach"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_gradient_against_a_plain_loop(how, family, monkeypatch):
    trainer, batch = make_trainer(how, family), uneven_batch(VOCAB)
    ours = gradient_of_update(trainer, batch, monkeypatch)
    pruned = plain_choice(batch, trainer, 0.4)
    assert_close(ours, plain_gradient(trainer, batch, pruned, how == "detach"), 1e-8)


def test_detach_is_another_gradient_that_points_the_same_way(monkeypatch):
    exact, detach = (
        gradient_of_update(make_trainer(how), uneven_batch(VOCAB), monkeypatch) for how in ("exact", "detach")
    )
    flat = lambda tensors: torch.cat([tensor.flatten() for tensor in tensors.values()])
    cosine = torch.nn.functional.cosine_similarity(flat(exact), flat(detach), dim=0).item()
    assert 0.5 < cosine < 0.9999


def test_the_cosine_is_reported_now_and_then(monkeypatch):
    """Against the two gradients themselves; looking changes nothing."""
    exact, detach = (
        gradient_of_update(make_trainer(how), uneven_batch(VOCAB), monkeypatch) for how in ("exact", "detach")
    )
    flat = lambda tensors: torch.cat([tensor.flatten() for tensor in tensors.values()])
    trainer = make_trainer("detach", cosine_every=2)
    figures = [trainer.update(uneven_batch(VOCAB)) for _ in range(3)]
    assert ["prune_cosine" in figure for figure in figures] == [True, False, True]
    expected = torch.cosine_similarity(flat(exact), flat(detach), dim=0).item()
    assert figures[0]["prune_cosine"] == pytest.approx(expected, abs=1e-6)
    never = make_trainer("detach", cosine_every=0).update(uneven_batch(VOCAB))
    assert "prune_cosine" not in never
    assert never["grad_norm"] == pytest.approx(figures[0]["grad_norm"], abs=1e-12)
    assert "prune_cosine" not in make_trainer("exact").update(uneven_batch(VOCAB))


@pytest.mark.parametrize("how", ["exact", "detach"])
def test_the_loss_of_the_kept_is_the_same_either_way_and_less_is_computed(how):
    whole, pruned = (make_trainer(name).update(uneven_batch(VOCAB)) for name in (None, how))
    assert pruned["loss_tokens"] == whole["loss_tokens"] - int(0.4 * whole["loss_tokens"])
    assert pruned["computed_tokens"] <= whole["computed_tokens"]
    assert pruned["loss"] == pytest.approx(make_trainer("exact").update(uneven_batch(VOCAB))["loss"], abs=1e-12)


def test_nothing_pruned_is_the_whole_gradient(monkeypatch):
    ours, whole = (
        gradient_of_update(make_trainer(how, share=share), uneven_batch(VOCAB), monkeypatch)
        for how, share in (("detach", 0.0), (None, 0.4))
    )
    assert_close(ours, whole, 1e-12)


def test_recompute_gives_the_same_gradient(monkeypatch):
    plain, recomputed = (
        gradient_of_update(make_trainer("detach", recompute=on), uneven_batch(VOCAB), monkeypatch)
        for on in (False, True)
    )
    assert_close(recomputed, plain, 1e-10)


def test_positions_before_the_prompts_end_stay_alive():
    """A pruned first token is predicted by the prompt, which others read."""
    trainer, batch = make_trainer("detach"), uneven_batch(VOCAB)
    samples = samples_of(batch.groups[0], trainer.rules)
    assert prune(samples, PruneConfig(share=0.9, how="detach")) == int(0.9 * 45)
    (micro,) = trainer._minibatches([samples], 0)[0].micros
    prompt = len(batch.groups[0].prompt.tokens)
    assert sorted(micro.positions_T[: micro.live].tolist())[:prompt] == list(range(prompt))
    assert micro.predictor_R.max() < micro.live


def test_of_nothing_and_of_unknown_logprobs():
    assert prune([], PruneConfig()) == 0
    trainer, batch = make_trainer("exact"), uneven_batch(VOCAB)
    samples = samples_of(batch.groups[0], trainer.rules)
    blind = samples[1]
    blind.trajectory.policy_logprob = []
    prune(samples, PruneConfig(share=0.3))
    assert np.count_nonzero(blind.weight_N) == len(blind.weight_N), "what is not known is not pruned first"


@pytest.mark.parametrize("share", [1.0, -0.1, math.nan])
def test_a_bad_share_is_refused(share):
    with pytest.raises(ValueError, match="share"):
        PruneConfig(share=share)


def test_a_bad_way_is_named():
    from untail.config import parse

    with pytest.raises(ConfigError, match=r"learn.prune.how = 'detached' is not valid"):
        parse(LearnConfig, {"prune": {"how": "detached"}}, "learn")
