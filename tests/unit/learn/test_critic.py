"""The critic: values and its loss against plain loops, what it learns from, what it does with bad numbers."""

import math

import numpy as np
import pytest
import torch
from tests.helpers.models import random_decoder
from tests.unit.learn.helpers import (
    DenseAttention,
    assert_close,
    gradient_of_update,
    group,
    learn_config,
    plain_logprobs,
    uneven_batch,
)

from untail.config import CriticConfig, LearnConfig
from untail.errors import ConfigError
from untail.learn.bridge import Stretch
from untail.learn.critic import Critic
from untail.learn.optimizer import Optimizer
from untail.learn.trainer import Trainer
from untail.types import Batch

VOCAB = 199
KINDS = ["head", "model"]


def ppo(kind="head", decoder=None, advantage=None, **learn) -> Trainer:
    critic = CriticConfig(kind=kind, **learn.pop("critic", {}))
    config = learn_config(advantage={"name": "ppo", **(advantage or {})}, critic=critic, **learn)
    return Trainer(decoder or random_decoder("llama", dtype=torch.float64), config)


def shake(critic: Critic) -> None:
    """A head that says something: it is born with value 0 everywhere."""
    with torch.no_grad():
        critic.head.outer.normal_(generator=torch.Generator().manual_seed(1))
        critic.head.outer_bias.fill_(0.3)


def plain_values(critic: Critic, decoder, trajectory) -> torch.Tensor:
    """Of every response token and of the state after the last, from one unpacked pass."""
    prompt, head = list(trajectory.prompt.tokens), critic.head
    ids = torch.tensor(prompt + trajectory.tokens)
    values = []
    for hidden in decoder(ids, torch.arange(len(ids)), DenseAttention())[len(prompt) - 1 :]:
        inner = torch.tanh((head.inner * hidden).sum(1) + head.inner_bias)
        values.append((inner * head.outer).sum() + head.outer_bias[0])
    return torch.stack(values)


def test_values_against_a_plain_loop():
    trainer, batch = ppo(micro_batch_tokens=60), uneven_batch(VOCAB)
    critic = trainer.values.critic
    shake(critic)
    stretches = [Stretch(t, 0, len(t.tokens)) for t in batch.trajectories]
    reading = critic.read(stretches)
    for t in batch.trajectories:
        expected = plain_values(critic, trainer.policy.decoder, t).detach().numpy()[:-1] * np.array(t.from_model)
        assert reading.value_N[t.id] == pytest.approx(expected, abs=1e-8)


def test_a_value_past_the_last_token():
    trainer, (trajectory,) = ppo(), group("g", [7], [1.0], VOCAB).trajectories
    critic = trainer.values.critic
    shake(critic)
    value_N = critic.read([Stretch(trajectory, 3, 7, (7,))]).value_N[trajectory.id]
    expected = plain_values(critic, trainer.policy.decoder, trajectory).detach().numpy()
    assert value_N[3:] == pytest.approx(expected[3:], abs=1e-8)
    assert len(trajectory.tokens) == 7


def plain_value_loss(critic, decoder, batch, returns, olds, clip):
    total, tokens = 0.0, sum(sum(t.from_model) for t in batch.trajectories)
    for t in batch.trajectories:
        values = plain_values(critic, decoder, t)
        for position, ours in enumerate(t.from_model):
            if ours:
                value, old, goal = values[position], olds[t.id][position], returns[t.id][position]
                clipped = value.clamp(old - clip, old + clip)
                total = total + max((value - goal) ** 2, (clipped - goal) ** 2) / 2 / tokens
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_the_clipped_value_loss(kind):
    """Against the plain loop, and along a random direction by finite differences, with clipping at work."""
    trainer, batch = ppo(kind, critic={"clip": 0.1, "epochs": 1}, micro_batch_tokens=60), uneven_batch(VOCAB)
    critic = trainer.values.critic
    shake(critic)
    random = np.random.default_rng(3)
    reading = critic.read([Stretch(t, 0, len(t.tokens)) for t in batch.trajectories])
    olds = {t.id: reading.value_N[t.id] + 0.2 * random.normal(size=len(t.tokens)) for t in batch.trajectories}
    returns = {t.id: random.normal(size=len(t.tokens)) for t in batch.trajectories}
    taught = {t.id: np.array(t.from_model) for t in batch.trajectories}
    reading.value_N.update(olds)
    parameters, seen = critic.optimizer._parameters, {}

    def record():
        seen.update({name: p.grad.clone() for name, p in parameters.items() if p.grad is not None})
        for parameter in parameters.values():
            parameter.grad = None
        return torch.zeros(()), True

    critic.optimizer.step = record
    trunk = critic._reader.decoder
    plain = lambda: plain_value_loss(critic, trunk, batch, returns, olds, 0.1)
    loss = critic.learn(reading, returns, taught)["value_loss"]
    assert loss == pytest.approx(plain().item(), abs=1e-8)
    own = dict(zip(seen, torch.autograd.grad(plain(), [parameters[name] for name in seen]), strict=True))
    assert_close(seen, own, 1e-8)
    assert ("trunk.embed" in seen) == (kind == "model")
    direction = {name: torch.from_numpy(random.normal(size=p.shape)) for name, p in parameters.items() if name in seen}
    slopes = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            for name, d in direction.items():
                parameters[name] += step * d
            slopes.append(plain().item())
            for name, d in direction.items():
                parameters[name] -= step * d
    expected = sum((seen[name] * d).sum().item() for name, d in direction.items())
    assert (slopes[0] - slopes[1]) / 2e-6 == pytest.approx(expected, rel=1e-4)


def plain_ppo_loss(decoder, batch, values, gamma, lam):
    """The first update's loss, token by token: ratio 1, whitened advantages, mean over all tokens."""
    advantages = {}
    for t in batch.trajectories:
        own, later, ahead = [i for i, ours in enumerate(t.from_model) if ours], 0.0, t.reward
        for i in reversed(own):
            later = ahead - values[t.id][i] + gamma * lam * later
            advantages[t.id, i], ahead = later, gamma * values[t.id][i]
    every = np.array(list(advantages.values()))
    total = 0.0
    for t in batch.trajectories:
        logprobs = plain_logprobs(decoder, t, 1.0)
        for i, ours in enumerate(t.from_model):
            if ours:
                advantage = (advantages[t.id, i] - every.mean()) / (every.std() + 1e-8)
                total = total - (logprobs[i] - logprobs[i].detach()).exp() * advantage / len(every)
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_the_policy_gradient_against_a_plain_loop(kind, monkeypatch):
    trainer, batch = ppo(kind, advantage={"gamma": 0.97, "lam": 0.9}, micro_batch_tokens=70), uneven_batch(VOCAB)
    decoder, critic = trainer.policy.decoder, trainer.values.critic
    shake(critic)
    values = {t.id: plain_values(critic, decoder, t).detach().numpy() for t in batch.trajectories}
    ours = gradient_of_update(trainer, batch, monkeypatch)
    plain_ppo_loss(decoder, batch, values, 0.97, 0.9).backward()
    theirs = {name: p.grad for name, p in decoder.named_parameters()}
    assert_close(ours, theirs, 1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_what_responses_are_worth(kind):
    trainer = ppo(kind, random_decoder("llama"), lr=1e-9, critic={"lr": 3e-3})
    batch = Batch(1, [group(name, [12, 9], [reward, reward], VOCAB) for name, reward in (("a", 1.0), ("b", 0.0))])
    figures = [trainer.update(batch) for _ in range(25)]
    assert figures[0]["explained_variance"] == 0.0
    assert figures[-1]["explained_variance"] > 0.9
    assert figures[-1]["value_error"] < figures[0]["value_error"] / 3
    assert figures[-1]["value_loss"] < figures[0]["value_loss"] / 5
    assert figures[0]["zero_variance_groups"] == 0, "PPO learns from groups whose rewards are equal"


def test_the_head_leaves_the_trunk_alone(monkeypatch):
    """Nothing but the head moves when the policy's own step is left out."""
    trainer, batch = ppo(), uneven_batch(VOCAB)
    before = {name: p.detach().clone() for name, p in trainer.policy.decoder.named_parameters()}
    gradient_of_update(trainer, batch, monkeypatch)
    assert all(torch.equal(p, before[name]) for name, p in trainer.policy.decoder.named_parameters())
    assert trainer.values.critic.head.outer.any()


def test_it_learns_from_the_stopped_and_the_masked(monkeypatch):
    """A stopped trajectory has its penalty; a masked one is out of the policy's loss but not of the critic's."""
    batch = Batch(1, [group("g", [6, 5, 4], [1.0, -1.0, -1.0], VOCAB)])
    _, stopped, masked = batch.trajectories
    stopped.stopped, masked.stopped, masked.masked = "loop", "loop", True
    trainer, seen = ppo(), {}
    critic = trainer.values.critic
    real = critic.learn
    monkeypatch.setattr(critic, "learn", lambda *args: seen.update(taught=args[2], returns=args[1]) or real(*args))
    figures = trainer.update(batch)
    assert figures["loss_tokens"] == 6 + 5
    assert {name: int(mask.sum()) for name, mask in seen["taught"].items()} == {"g.0": 6, "g.1": 5, "g.2": 4}
    assert seen["returns"]["g.2"][-1] == pytest.approx(-1.0)


def test_a_value_that_is_not_finite_counts_as_zero():
    trainer, batch = ppo(), uneven_batch(VOCAB)
    with torch.no_grad():
        trainer.values.critic.head.outer_bias.fill_(math.inf)
    figures = trainer.update(batch)
    assert figures["values_not_finite"] == sum(sum(t.from_model) for t in batch.trajectories)
    assert figures["critic_skipped"] == 4, "its own gradient is not finite either"
    assert figures["optimizer_steps"] == 1
    assert all(math.isfinite(value) for value in figures.values()), "figures go into JSON"
    assert all(p.isfinite().all() for p in trainer.policy.decoder.parameters())


def test_a_reward_that_is_not_finite_moves_nothing():
    trainer = ppo()
    figures = trainer.update(Batch(1, [group("g", [3, 4], [math.nan, 1.0], VOCAB)]))
    assert figures["skipped_updates"] == 1
    assert figures["critic_skipped"] == 4
    assert all(math.isfinite(value) for value in figures.values()), "figures go into JSON"
    assert not trainer.values.critic.head.outer.any()
    assert trainer.update(uneven_batch(VOCAB))["optimizer_steps"] == 1


@pytest.mark.parametrize("groups", [[], [group("none", [], [], VOCAB)], [group("empty", [0, 0], [1.0, 0.0], VOCAB)]])
def test_batches_without_tokens(groups):
    figures = ppo().update(Batch(1, groups))
    assert figures["optimizer_steps"] == figures["critic_skipped"] == 0


def test_a_group_of_one_teaches():
    trainer = ppo()
    shake(trainer.values.critic)
    assert trainer.update(Batch(1, [group("one", [7], [1.0], VOCAB)]))["optimizer_steps"] == 1


def test_whitened_advantages_that_are_all_equal_teach_nothing():
    """A critic that says 0 everywhere, and one reward."""
    assert ppo().update(Batch(1, [group("one", [7], [1.0], VOCAB)]))["optimizer_steps"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_trainer_goes_on_the_same(kind):
    make = lambda: ppo(kind, random_decoder("qwen2"), lr=1e-3, updates=2)
    first, second = make(), make()
    for _ in range(2):
        first.update(uneven_batch(VOCAB))
    tensors, numbers = first.state_dict()
    second.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, numbers)
    timeless = lambda figures: {name: value for name, value in figures.items() if not name.endswith("_s")}
    for _ in range(2):
        assert timeless(first.update(uneven_batch(VOCAB))) == timeless(second.update(uneven_batch(VOCAB)))
    ours, theirs = first.state_dict()[0], second.state_dict()[0]
    assert any(name.startswith("critic.") for name in ours)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("field", ["critic", "bridge"])
def test_a_critic_that_nobody_asks_is_refused(field):
    with pytest.raises(ConfigError, match=f"learn.{field} is set, but learn.advantage = 'grpo' asks no critic"):
        Trainer(random_decoder("llama"), LearnConfig(**{field: {}}))


def test_bf16_weights_have_a_critic_in_float32():
    trainer = ppo("model", random_decoder("llama", dtype=torch.bfloat16))
    assert trainer.update(uneven_batch(VOCAB))["critic_skipped"] == 0
    assert trainer.values.critic.head.inner.dtype == torch.float32


@pytest.mark.parametrize("kind", ["model", "head"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_critic_in_half_precision_learns_what_one_in_float32_does(monkeypatch, kind, dtype):
    """Though attention's gradients go through fp16, where those of a mean over many tokens would vanish."""
    norms = []
    step = Optimizer.step
    monkeypatch.setattr(Optimizer, "step", lambda self: (found := step(self), norms.append(float(found[0])))[0])
    for kept in (torch.float32, dtype):
        figures = ppo(kind, random_decoder("llama", dtype=kept)).update(uneven_batch(VOCAB))
        assert (figures["critic_skipped"], figures["skipped_updates"]) == (0, 0)
    assert norms[len(norms) // 2 :] == pytest.approx(norms[: len(norms) // 2], rel=0.05)
