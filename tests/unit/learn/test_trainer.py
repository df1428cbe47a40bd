"""The update: what is skipped, what is counted, which passes are made, how a resumed trainer goes on."""

import math

import pytest
import torch
from tests.helpers.models import random_decoder
from tests.unit.learn.helpers import (
    assert_close,
    gradient_of_update,
    group,
    learn_config,
    plain_logprobs,
    plain_loss,
    uneven_batch,
)

from untail.config import LearnConfig
from untail.errors import ConfigError
from untail.learn.policy import Policy
from untail.learn.trainer import Trainer
from untail.types import Batch

VOCAB = 199


@pytest.fixture
def decoder():
    return random_decoder("llama")


def weights(decoder) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in decoder.named_parameters()}


def same(ours, theirs) -> bool:
    return all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.fixture
def passes(monkeypatch):
    """Counts the log-prob passes."""
    seen, real = [], Policy.logprobs
    monkeypatch.setattr(Policy, "logprobs", lambda self, micro: seen.append(micro) or real(self, micro))
    return seen


def test_the_first_update_has_ratio_one_and_makes_no_extra_pass(decoder, passes):
    figures = Trainer(decoder, learn_config()).update(uneven_batch(VOCAB))
    assert passes == []
    assert figures["ratio_mean"] == 1.0
    assert figures["ratio_max_deviation"] == 0.0
    assert figures["clip_share"] == figures["approx_kl"] == 0.0
    assert figures["optimizer_steps"] == 1
    assert figures["skipped_updates"] == 0
    assert figures["zero_variance_groups"] == 1
    assert figures["loss_tokens"] == 45 + (71 - 3 * 3) + 11
    assert figures["lr"] == pytest.approx(1e-4)
    assert figures["grad_norm"] > 0
    assert all(math.isfinite(value) for value in figures.values())


def test_the_parameters_change_in_place(decoder):
    before, addresses = weights(decoder), [parameter.data_ptr() for parameter in decoder.parameters()]
    Trainer(decoder, learn_config()).update(uneven_batch(VOCAB))
    assert [parameter.data_ptr() for parameter in decoder.parameters()] == addresses
    assert not any(torch.equal(parameter, before[name]) for name, parameter in decoder.named_parameters())
    assert all(parameter.grad is None for parameter in decoder.parameters())


@pytest.mark.parametrize("updates", [1, 3])
@pytest.mark.parametrize("rewards", [[0.7] * 4, [0.0] * 4])
def test_all_rewards_equal_is_no_update_and_no_compute(decoder, monkeypatch, rewards, updates):
    before, trainer = weights(decoder), Trainer(decoder, learn_config(updates=updates))
    monkeypatch.setattr(decoder, "forward", lambda *args: pytest.fail("a forward pass was made"))
    figures = trainer.update(Batch(1, [group(name, [3, 9, 5, 5], rewards, VOCAB) for name in "ab"]))
    assert figures["zero_variance_groups"] == 2
    assert figures["optimizer_steps"] == figures["skipped_updates"] == figures["loss_tokens"] == 0
    assert same(before, weights(decoder))


@pytest.mark.parametrize("groups", [[], [group("one", [7], [1.0], VOCAB)], [group("none", [], [], VOCAB)]])
def test_batches_that_teach_nothing(decoder, groups):
    before = weights(decoder)
    figures = Trainer(decoder, learn_config()).update(Batch(1, groups))
    assert figures["optimizer_steps"] == 0
    assert figures["zero_variance_groups"] == len(groups)
    assert same(before, weights(decoder))


def test_a_response_without_tokens_is_no_trouble(decoder):
    figures = Trainer(decoder, learn_config(loss="sequence")).update(Batch(1, [group("g", [0, 4], [0.0, 1.0], VOCAB)]))
    assert figures["optimizer_steps"] == 1
    assert figures["loss_tokens"] == 4


def test_groups_that_teach_nothing_cost_nothing_but_count_in_the_mean(decoder, monkeypatch):
    """Leaving them out of the compute is not another estimator: the gradient is scaled as if they were there."""
    trainer, batch = Trainer(decoder, learn_config(loss="sequence")), uneven_batch(VOCAB)
    everything = gradient_of_update(trainer, batch, monkeypatch)
    learning = Batch(1, [members for members in batch.groups if members.prompt.id != "b"])
    without = gradient_of_update(trainer, learning, monkeypatch)
    assert_close(everything, {name: tensor * 10 / 13 for name, tensor in without.items()}, 1e-6)


def test_a_gradient_that_is_not_finite_is_skipped_and_counted(decoder):
    trainer, before = Trainer(decoder, learn_config()), weights(decoder)
    bad = Batch(1, [group("g", [3, 4], [math.nan, 1.0], VOCAB)])
    figures = trainer.update(bad)
    assert figures["skipped_updates"] == 1
    assert figures["optimizer_steps"] == 0
    assert all(math.isfinite(value) for value in figures.values()), "figures go into JSON"
    assert same(before, weights(decoder))
    assert trainer.update(uneven_batch(VOCAB))["optimizer_steps"] == 1
    assert all(parameter.isfinite().all() for parameter in decoder.parameters())


def near(decoder, batch, apart: float = 0.0):
    """As if the policy had sampled the batch, but for `apart` nats a token."""
    for trajectory in batch.trajectories:
        logprobs = plain_logprobs(decoder, trajectory, 1.0).detach()
        trajectory.policy_logprob = logprobs.tolist()
        trajectory.behaviour_logprob = (logprobs - apart).tolist()
    return batch


@pytest.mark.parametrize("importance", ["on_policy", "pois", "segment", "pois_segment", "tis"])
@pytest.mark.parametrize(("apart", "dropped"), [(0.0, 0), (1.05, 0), (1.15, 1), (math.inf, 1)])
def test_a_minibatch_that_the_policy_drifted_from_is_dropped_and_counted(decoder, importance, apart, dropped):
    """exp(1.05) < 3 < exp(1.15)"""
    before, trainer = weights(decoder), Trainer(decoder, LearnConfig(importance=importance))
    figures = trainer.update(near(decoder, uneven_batch(VOCAB), apart))
    assert figures["dropped_minibatches"] == dropped
    assert figures["optimizer_steps"] == 1 - dropped
    assert figures["skipped_updates"] == 0
    assert same(before, weights(decoder)) is bool(dropped)
    assert all(parameter.grad is None for parameter in decoder.parameters())
    assert all(math.isfinite(value) for value in figures.values()), "figures go into JSON"


def test_a_dropped_minibatch_leaves_the_others_alone(decoder):
    batch = near(decoder, Batch(1, [group(name, [9, 7], [1.0, 0.0], VOCAB) for name in "ab"]))
    for trajectory in batch.groups[0].trajectories:
        trajectory.behaviour_logprob = [logprob - 2 for logprob in trajectory.behaviour_logprob]
    figures = Trainer(decoder, LearnConfig(updates=2)).update(batch)
    assert (figures["optimizer_steps"], figures["dropped_minibatches"]) == (1, 1)
    assert figures["drift_mean"] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("importance", ["on_policy", "pois"])
def test_a_backend_without_log_probs_can_be_learned_from(decoder, importance):
    batch = uneven_batch(VOCAB)
    for trajectory in batch.trajectories:
        trajectory.policy_logprob, trajectory.behaviour_logprob = [], []
    figures = Trainer(decoder, LearnConfig(importance=importance, updates=2)).update(batch)
    assert figures["optimizer_steps"] == 2
    assert not {"mismatch_mean", "mismatch_max", "drift_mean", "drift_max"} & figures.keys()
    assert all(parameter.isfinite().all() for parameter in decoder.parameters())


@pytest.mark.parametrize("importance", ["segment", "tis"])
def test_tokens_that_could_not_have_been_sampled_do_not_reach_the_weights(decoder, importance):
    batch = near(decoder, uneven_batch(VOCAB))
    for trajectory in batch.trajectories:
        trajectory.behaviour_logprob[0] = -math.inf
    figures = Trainer(decoder, learn_config(importance=importance)).update(batch)
    assert figures["optimizer_steps"] == 1
    assert all(parameter.isfinite().all() for parameter in decoder.parameters())


def test_all_trajectories_masked_is_no_update(decoder):
    batch, before = uneven_batch(VOCAB), weights(decoder)
    for trajectory in batch.trajectories:
        trajectory.masked = True
    figures = Trainer(decoder, learn_config()).update(batch)
    assert (figures["optimizer_steps"], figures["loss_tokens"]) == (0, 0)
    assert same(before, weights(decoder))


def test_all_tokens_masked_is_no_update(decoder):
    batch, before = uneven_batch(VOCAB), weights(decoder)
    written = sum(sum(trajectory.from_model) for trajectory in batch.trajectories)
    figures = Trainer(decoder, learn_config(masks={"low_entropy": {"entropy": 2.0}})).update(batch)
    assert (figures["optimizer_steps"], figures["loss_tokens"], figures["masked_tokens"]) == (0, 0, written)
    assert same(before, weights(decoder))


@pytest.mark.parametrize("credit", ["once", "progressive", "none", "weights"])
def test_a_copy_whose_parent_was_dropped_is_learned_from(decoder, credit):
    batch = near(decoder, Batch(1, [group("g", [9, 7, 8], [1.0, 0.0, 1.0], VOCAB)]))
    batch.trajectories[1].parent, batch.trajectories[1].forked_at = "gone", 4
    figures = Trainer(decoder, LearnConfig(credit=credit)).update(batch)
    assert figures["optimizer_steps"] == 1
    assert all(parameter.isfinite().all() for parameter in decoder.parameters())


def test_the_clip_is_that_of_the_advantage_unless_the_recipe_sets_it(decoder):
    clip = lambda **fields: (lambda loss: (loss.clip_low, loss.clip_high))(
        Trainer(decoder, LearnConfig(**fields))._loss
    )
    assert clip() == (0.2, 0.2)
    assert clip(advantage="dapo") == (0.2, 0.28)
    assert clip(advantage="dapo", clip_low=0.1) == (0.1, 0.28)


def test_several_updates_take_their_old_logprobs_before_the_first(decoder, passes):
    """The later minibatches' ratio is against the policy at the start, so it has moved by then."""
    batch = Batch(1, [group(name, [20, 30, 8, 8], [1.0, 0.0, 0.0, 1.0], VOCAB) for name in "abcd"])
    figures = Trainer(decoder, learn_config(updates=2, lr=1e-2, warmup_steps=0)).update(batch)
    assert len(passes) == 1
    assert figures["optimizer_steps"] == 2
    assert figures["ratio_max_deviation"] > 0
    assert figures["approx_kl"] > 0
    assert figures["clip_share"] > 0


def test_minibatches_share_out_the_groups_that_teach(decoder):
    live = [group(name, [6, 6], [1.0, 0.0], VOCAB) for name in "abc"]
    idle = [group(name, [6, 6], [1.0, 1.0], VOCAB) for name in "defgh"]
    figures = Trainer(decoder, learn_config(updates=4)).update(Batch(1, idle[:4] + live + idle[4:]))
    assert figures["optimizer_steps"] == 3, "the fourth minibatch has nothing to learn from"
    assert figures["zero_variance_groups"] == 5
    assert figures["loss_tokens"] == 36


def test_the_reference_is_the_policy_at_the_start(decoder, passes):
    trainer = Trainer(decoder, learn_config(kl=0.1, lr=1e-2, warmup_steps=0))
    start = weights(decoder)
    assert trainer.update(uneven_batch(VOCAB))["reference_kl"] == pytest.approx(0, abs=1e-6)
    assert trainer.update(uneven_batch(VOCAB))["reference_kl"] > 1e-3
    assert len(passes) == 2
    assert trainer.reference is not None
    assert same(start, weights(trainer.reference.decoder))


def test_old_and_reference_logprobs_in_the_loss(monkeypatch):
    """Clipping and KL away from ratio 1, in float64, against the plain loop: the policy has moved since both."""
    decoder = random_decoder("llama", dtype=torch.float64)
    config = learn_config(kl=0.2, clip_low=0.05, clip_high=0.3, micro_batch_tokens=60)
    trainer, batch = Trainer(decoder, config, temperature=0.8), uneven_batch(VOCAB)
    before = {t.id: plain_logprobs(decoder, t, 0.8).detach() for t in batch.trajectories}
    monkeypatch.setattr(trainer, "_fill_logprobs", lambda minibatches: fill_and_move(trainer, minibatches))
    figures = trainer.update(batch)
    expected = plain_loss(decoder, batch, config, 0.8, old=before, reference=before)
    assert 0 < figures["clip_share"] < 1
    assert figures["loss"] == pytest.approx(expected.item(), abs=1e-8)


def fill_and_move(trainer, minibatches):
    """Takes all log-probs, then nudges the policy; the optimizer's own step is made to do nothing."""
    for micro in (micro for minibatch in minibatches for micro in minibatch.micros):
        micro.columns.prox_R = trainer.policy.logprobs(micro)
        micro.columns.reference_R = trainer.reference.logprobs(micro)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in trainer.policy.decoder.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    trainer._optimizer.step = lambda: (torch.zeros(()), True)


def test_recompute_gives_the_same_gradient(decoder, monkeypatch):
    plain, recomputed = (
        gradient_of_update(Trainer(decoder, learn_config(recompute=on)), uneven_batch(VOCAB), monkeypatch)
        for on in (False, True)
    )
    assert_close(recomputed, plain, 1e-6)


@pytest.mark.parametrize("rows", [1, 10, 4096])
def test_logit_rows_change_nothing(decoder, monkeypatch, rows):
    chunked, whole = (
        gradient_of_update(Trainer(decoder, learn_config(logit_rows=size)), uneven_batch(VOCAB), monkeypatch)
        for size in (rows, 1024)
    )
    assert_close(chunked, whole, 1e-5)


def test_a_resumed_trainer_goes_on_the_same():
    config = learn_config(lr=1e-3, kl=0.1, updates=2)
    straight, resumed = random_decoder("qwen2"), random_decoder("qwen2")
    first = Trainer(straight, config)
    for _ in range(2):
        first.update(uneven_batch(VOCAB))
    tensors, numbers = first.state_dict()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    second = Trainer(resumed, config)
    second.load_state_dict(tensors, numbers)
    assert same(weights(straight), weights(resumed))
    timeless = lambda figures: {name: value for name, value in figures.items() if not name.endswith("_s")}
    for _ in range(2):
        assert timeless(first.update(uneven_batch(VOCAB))) == timeless(second.update(uneven_batch(VOCAB)))
    assert same(weights(straight), weights(resumed))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_low_precision_train_through_their_masters(dtype):
    decoder = random_decoder("llama", dtype=dtype)
    trainer = Trainer(decoder, learn_config(lr=1e-4, warmup_steps=0))
    figures = [trainer.update(uneven_batch(VOCAB)) for _ in range(2)]
    assert [f["optimizer_steps"] for f in figures] == [1, 1]
    masters = trainer.state_dict()[0]
    for name, parameter in decoder.named_parameters():
        assert parameter.dtype == dtype
        assert torch.equal(parameter, masters[f"weight.{name}"].to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_learns_what_float32_learns(dtype):
    """In fp16, gradients would vanish if they were gathered of the mean: here it is over ten million tokens."""
    exact, low = random_decoder("llama"), random_decoder("llama", dtype=dtype)
    config = learn_config(lr=1e-3, warmup_steps=0, loss="constant", loss_length=10_000_000, max_grad_norm=1e9)
    figures = [Trainer(decoder, config).update(uneven_batch(VOCAB)) for decoder in (exact, low)]
    assert figures[1]["skipped_updates"] == 0
    assert figures[1]["loss"] == pytest.approx(figures[0]["loss"], rel=0.02)
    assert figures[1]["grad_norm"] == pytest.approx(figures[0]["grad_norm"], rel=0.02)


def test_the_gradient_points_uphill(decoder):
    """After a step, what was rewarded above its group is likelier than it was, and the rest is less likely."""
    batch = Batch(1, [group("g", [6, 6], [1.0, 0.0], VOCAB)])
    good, bad = batch.trajectories
    before = [plain_logprobs(decoder, t, 1.0).sum().item() for t in (good, bad)]
    Trainer(decoder, learn_config(lr=1e-3, warmup_steps=0)).update(batch)
    after = [plain_logprobs(decoder, t, 1.0).sum().item() for t in (good, bad)]
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_a_bad_advantage_is_named(decoder):
    with pytest.raises(ConfigError, match="unknown advantage 'pppo'"):
        Trainer(decoder, learn_config(advantage={"name": "pppo"}))


@pytest.mark.parametrize(
    ("dtype", "fields", "of_a_weight"),
    [
        (torch.float32, {}, 4 + 8 + 4),
        (torch.bfloat16, {}, 2 + 4 + 8 + 4),
        (torch.bfloat16, {"kl": 0.1}, 2 + 4 + 8 + 4 + 2),
    ],
    ids=["weights, moments, gradients", "and masters", "and a reference"],
)
def test_what_it_holds_is_told_by_the_tensors(dtype, fields, of_a_weight):
    decoder = random_decoder("llama", dtype=dtype)
    trainer = Trainer(decoder, learn_config(**fields))
    assert trainer.bytes == of_a_weight * sum(parameter.numel() for parameter in decoder.parameters())


def test_what_a_critic_of_its_own_holds_counts():
    bytes_with = lambda kind: (
        Trainer(random_decoder("llama"), learn_config(advantage="ppo", critic={"kind": kind})).bytes
    )
    assert bytes_with("model") > 1.9 * bytes_with("head")
