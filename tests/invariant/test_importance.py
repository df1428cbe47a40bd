"""Importance rules in the whole update: each against a plain loop, and `segment` against the weights that sampled."""

import copy
import math

import pytest
import torch

from tests.helpers.models import random_decoder
from tests.helpers.running import join, spec
from tests.unit.learn.helpers import (
    assert_close,
    gradient,
    gradient_of_update,
    learn_config,
    plain_advantages,
    plain_logprobs,
    uneven_batch,
)
from untail.config import EngineConfig, LearnConfig
from untail.engine.engine import Engine
from untail.learn.pack import pack
from untail.learn.sample import samples_of
from untail.learn.trainer import Trainer
from untail.types import Batch, Chunk, Group, Prompt, SamplingParams, Segment, Trajectory

TEMPERATURE = 0.8
RULES = ["on_policy", "pois", "segment", "pois_segment", "tis"]


def nudge(decoder, seed: int, scale: float = 0.02) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float32)


def stale_batch(decoder) -> Batch:
    """Made-up responses whose log-probs are near the policy's, as after some updates, and sampled a little hotter."""
    batch, random = uneven_batch(decoder.shape.vocab), torch.Generator().manual_seed(1)
    for trajectory in batch.trajectories:
        now = plain_logprobs(decoder, trajectory, TEMPERATURE).detach()
        policy, behaviour = (now + 0.4 * torch.randn(len(now), generator=random) for _ in range(2))
        trajectory.policy_logprob, trajectory.behaviour_logprob = policy.tolist(), behaviour.tolist()
        cut = len(trajectory.tokens) // 2
        trajectory.version = [-1] * cut + [0] * (len(trajectory.tokens) - cut)
        trajectory.segments = [Segment(0, cut, "cut"), Segment(cut, len(trajectory.tokens), "stop")]
    return batch


def plain_gradient(decoder, batch: Batch, name: str, last_segment_only: bool):
    """GRPO's first update on the batch, a loop over its tokens."""
    all_tokens = sum(sum(t.from_model) for t in batch.trajectories)
    total = torch.zeros((), dtype=torch.float64)
    for members in batch.groups:
        for t, advantage in zip(members.trajectories, plain_advantages("grpo", members.rewards), strict=True):
            now = plain_logprobs(decoder, t, TEMPERATURE)
            for position in range(t.segments[-1].begin if last_segment_only else 0, len(t.tokens)):
                if not t.from_model[position]:
                    continue
                prox, mu = now[position].item(), t.behaviour_logprob[position]
                old = {"segment": mu, "pois_segment": t.policy_logprob[position]}.get(name, prox)
                ratio = (now[position] - old).exp()
                term = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                total = total + term * (min(math.exp(prox - mu), 2) if name == "tis" else 1) / all_tokens
    total.backward()
    return gradient(decoder)


@pytest.mark.parametrize("scope", ["all", "last_segment"])
@pytest.mark.parametrize("name", RULES)
def test_the_update_equals_a_loop_over_tokens(name, scope, monkeypatch):
    if scope == "last_segment" and name != "pois_segment":
        masks, table = {"last_segment": {}}, {"name": name}
    else:
        masks, table = {}, {"name": name, **({"loss_scope": scope} if name == "pois_segment" else {})}
    decoder = random_decoder("llama", dtype=torch.float64)
    batch = stale_batch(decoder)
    trainer = Trainer(decoder, learn_config(importance=table, masks=masks, micro_batch_tokens=70), TEMPERATURE)
    ours = gradient_of_update(trainer, batch, monkeypatch)
    assert_close(ours, plain_gradient(decoder, batch, name, scope == "last_segment"), 1e-8)


@pytest.mark.parametrize("name", ["segment", "pois_segment"])
def test_the_gradient_is_the_slope_of_the_loss(name, monkeypatch):
    """By finite differences in a random direction; of the rules whose `old` does not move with the policy."""
    decoder = random_decoder("llama", dtype=torch.float64)
    batch = stale_batch(decoder)
    trainer = Trainer(decoder, learn_config(importance=name, masks={"last_segment": {}}), TEMPERATURE)
    slopes, random = gradient_of_update(trainer, batch, monkeypatch), torch.Generator().manual_seed(2)
    way = {n: torch.randn(p.shape, generator=random, dtype=p.dtype) for n, p in decoder.named_parameters()}
    monkeypatch.setattr(trainer._optimizer, "step", lambda: (gradient(decoder) and torch.zeros(()), True))

    def loss_at(distance: float) -> float:
        with torch.no_grad():
            for parameter_name, parameter in decoder.named_parameters():
                parameter += distance * way[parameter_name]
        value = trainer.update(batch)["loss"]
        with torch.no_grad():
            for parameter_name, parameter in decoder.named_parameters():
                parameter -= distance * way[parameter_name]
        return value

    step = 1e-6
    numeric = (loss_at(step) - loss_at(-step)) / (2 * step)
    assert numeric == pytest.approx(sum((slopes[n] * way[n]).sum().item() for n in way), rel=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_pseudo_on_policy_has_ratio_one_at_the_first_update_and_the_others_tell_old_tokens(name):
    decoder = random_decoder("llama")
    figures = Trainer(decoder, learn_config(importance=name), TEMPERATURE).update(stale_batch(decoder))
    is_one = figures["ratio_max_deviation"] == 0.0 and figures["ratio_mean"] == 1.0
    assert is_one is (name in ("on_policy", "pois", "tis"))
    assert figures["drift_mean"] > 0.1
    assert 0 < figures["stale_share"] < 1


def test_without_a_rule_named_it_is_pois(monkeypatch):
    decoder = random_decoder("llama")
    unset, named = (
        gradient_of_update(Trainer(decoder, learn_config(**fields), TEMPERATURE), stale_batch(decoder), monkeypatch)
        for fields in ({}, {"importance": "pois"})
    )
    assert all(torch.equal(tensor, named[name]) for name, tensor in unset.items())


def sampled_over_three_versions(decoder) -> tuple[Batch, list]:
    """Four responses in three segments, each sampled by other weights; and a copy of the weights of each version."""
    engine, snapshots = Engine(decoder, EngineConfig(kv_blocks=64)), []
    prompt = Prompt("p", "test", "", (3, 14, 15, 92))
    sampling = SamplingParams(temperature=TEMPERATURE, policy_temperature=TEMPERATURE)
    members = [Trajectory(f"p.{n}", prompt, n, reward=float(n % 2)) for n in range(4)]
    for version in range(3):
        if version:
            nudge(decoder, seed=version)
            engine.load_weights(None, version)
        snapshots.append(copy.deepcopy(decoder))
        for member in members:
            if version == 0:
                engine.add(spec(member.id, prompt.tokens, budget=9, stream=member.stream, sampling=sampling))
            else:
                engine.extend(member.id, 9)
        chunks = {member.id: Chunk() for member in members}
        while any(chunk.end is None for chunk in chunks.values()):
            for name, chunk in engine.step():
                join(chunks[name], chunk)
        for member in members:
            begin = len(member.tokens)
            member.take(chunks[member.id])
            member.segments.append(Segment(begin, len(member.tokens), "boundary"))
    return Batch(3, [Group("p", prompt, members)]), snapshots


@pytest.mark.parametrize("name", ["segment", "pois_segment"])
def test_each_token_is_held_against_the_weights_that_sampled_it(name):
    decoder = random_decoder("llama")
    batch, snapshots = sampled_over_three_versions(decoder)
    trainer = Trainer(decoder, LearnConfig(importance=name), TEMPERATURE)
    samples = samples_of(batch.groups[0], trainer.rules)
    for number, sample in enumerate(samples):
        sample.advantage_N[:] = number  # packing changes the order: the column tells whose each row is
    (micro,) = pack(samples, 10_000, torch.device("cpu"), torch.float32, batch.version)
    prox = trainer.policy.logprobs(micro)
    old = trainer.rules.importance.old(prox, prox, micro.columns)
    apart = 0.0
    for number, trajectory in enumerate(batch.trajectories):
        assert sorted(set(trajectory.version)) == [0, 1, 2]
        with torch.no_grad():
            by_version = [plain_logprobs(snapshot, trajectory, TEMPERATURE) for snapshot in snapshots]
        own = torch.stack([by_version[version][t] for t, version in enumerate(trajectory.version)])
        torch.testing.assert_close(old[micro.columns.advantage_R == number], own, atol=1e-4, rtol=0)
        apart = max(apart, (own - by_version[-1]).abs().max().item())
    assert apart > 0.05, "the weights were too alike for the test to say anything"


def test_the_mismatch_is_of_tokens_of_the_present_weights_alone():
    """Stale tokens are far from the trainer's log-probs, and that is drift: engine and trainer agree all the same."""
    decoder = random_decoder("llama")
    batch, _ = sampled_over_three_versions(decoder)
    figures = Trainer(decoder, LearnConfig(), TEMPERATURE).update(batch)
    assert figures["mismatch_max"] < 1e-4
    assert figures["drift_max"] > 0.05
    assert figures["stale_share"] == pytest.approx(2 / 3)


def test_a_copy_at_another_temperature_is_held_against_what_it_was_sampled_from():
    decoder = random_decoder("llama")
    batch, _ = sampled_over_three_versions(decoder)
    for trajectory in batch.trajectories:
        trajectory.behaviour_logprob = [logprob - 0.05 for logprob in trajectory.policy_logprob]
    for credit, shift in (("once", 0.05), ("weights", 0.0)):
        rules = Trainer(decoder, LearnConfig(importance="segment", credit=credit)).rules
        for sample in samples_of(batch.groups[0], rules):
            expected = [logprob - shift for logprob in sample.trajectory.policy_logprob]
            assert sample.behaviour_N.tolist() == pytest.approx(expected, abs=1e-12)
