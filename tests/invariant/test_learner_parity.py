"""One log-prob, whoever computes it: the trainer, a plain forward pass, transformers, and the engine that sampled."""

import pytest
import torch

from tests.helpers.models import FAMILIES, random_decoder, transformers_twin
from tests.helpers.running import finish, spec
from tests.unit.learn.helpers import plain_logprobs, uneven_batch
from untail.config import EngineConfig, LearnConfig
from untail.engine.engine import Engine
from untail.learn.pack import pack
from untail.learn.sample import samples_of
from untail.learn.trainer import Trainer
from untail.types import Batch, Group, Prompt, SamplingParams, Trajectory

TEMPERATURE = 0.9


def trainer_logprobs(trainer: Trainer, batch: Batch) -> dict[str, torch.Tensor]:
    """Of each trajectory's model tokens, by its id, from one packed pass over the batch."""
    samples = [sample for members in batch.groups for sample in samples_of(members, trainer.rules)]
    for number, sample in enumerate(samples):
        sample.advantage_N[:] = number  # packing changes the order: the column tells whose each row is
    (micro,) = pack(samples, 10_000, torch.device("cpu"), torch.float32)
    logprobs = trainer.policy.logprobs(micro)
    return {s.trajectory.id: logprobs[micro.columns.advantage_R == number] for number, s in enumerate(samples)}


def in_loss(trajectory: Trajectory, every: torch.Tensor) -> torch.Tensor:
    return every[torch.tensor(trajectory.from_model)]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_trainer_equals_a_plain_forward_pass_and_transformers(family, tmp_path):
    decoder = random_decoder(family)
    twin = transformers_twin(decoder, tmp_path)
    batch = uneven_batch(decoder.shape.vocab)
    ours = trainer_logprobs(Trainer(decoder, LearnConfig(), TEMPERATURE), batch)
    for trajectory in batch.trajectories:
        plain = plain_logprobs(decoder, trajectory, TEMPERATURE).detach()
        torch.testing.assert_close(ours[trajectory.id], in_loss(trajectory, plain), atol=1e-5, rtol=0)
        prompt = list(trajectory.prompt.tokens)
        with torch.no_grad():
            logits = twin(torch.tensor([prompt + trajectory.tokens])).logits[0, len(prompt) - 1 : -1]
        theirs = (logits / TEMPERATURE).log_softmax(-1)[range(len(trajectory.tokens)), trajectory.tokens]
        torch.testing.assert_close(ours[trajectory.id], in_loss(trajectory, theirs), atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("updates", [1, 2])
def test_engine_and_trainer_agree_on_what_was_sampled(family, updates):
    """The engine shares the trainer's parameters; `mismatch` is against the policy before the update either way."""
    decoder = random_decoder(family)
    engine = Engine(decoder, EngineConfig(kv_blocks=128))
    trainer = Trainer(decoder, LearnConfig(updates=updates), TEMPERATURE)
    for version in (1, 2):
        figures = trainer.update(sample_batch(engine, version))
        engine.load_weights(None, version)
        assert figures["mismatch_max"] < 1e-4
        assert figures["optimizer_steps"] == updates
        if updates == 1:
            assert figures["ratio_max_deviation"] < 1e-4


def sample_batch(engine: Engine, step: int) -> Batch:
    sampling = SamplingParams(temperature=1.1, policy_temperature=TEMPERATURE)
    prompts = {"short": (3, 14, 15), "long": tuple(range(40, 75))}
    for number in range(4):
        for name, tokens in prompts.items():
            engine.add(spec(f"{name}.{number}", tokens, budget=20 + 9 * number, stream=number, sampling=sampling))
    results = finish(engine)
    groups = []
    for name, tokens in prompts.items():
        prompt = Prompt(name, "test", "", tokens)
        members = [Trajectory(f"{name}.{n}", prompt, n, reward=float(n % 2)) for n in range(4)]
        for member in members:
            member.take(results[member.id])
            engine.release(member.id)
        groups.append(Group(name, prompt, members))
    return Batch(step, groups)
