"""Made-up batches, and the learner's arithmetic written once more as plain loops over sequences and tokens."""

import math
import statistics

import torch
from torch import Tensor

from untail.config import LearnConfig
from untail.engine.models.decoder import Decoder
from untail.learn.rules import Rules, rules_of
from untail.learn.trainer import Trainer
from untail.types import Batch, Group, Prompt, Trajectory


def learn_config(**fields) -> LearnConfig:
    """Made-up log-probs are as far from the policy's as can be: such a minibatch must not be dropped."""
    return LearnConfig(**{"max_drift": math.inf, **fields})


def rules(**fields) -> Rules:
    return rules_of(LearnConfig(**fields), 512)


def trajectory(name: str, prompt: Prompt, length: int, reward: float, vocab: int, reply_at: int = -1) -> Trajectory:
    """Random tokens with made-up engine log-probs; an environment's reply of three tokens starts at `reply_at`."""
    random = torch.Generator().manual_seed(sum(map(ord, name)) + length)
    columns = torch.randint(vocab, (length,), generator=random).tolist()
    logprobs = (-3 * torch.rand(length, generator=random)).tolist()
    from_model = [not reply_at <= position < reply_at + 3 if reply_at >= 0 else True for position in range(length)]
    return Trajectory(
        name, prompt, 0, columns, logprobs, logprobs, [1.0] * length, [0.1] * length, [0] * length, from_model, "stop",
        reward=reward,
    )  # fmt: skip


def group(name: str, lengths: list[int], rewards: list[float], vocab: int, prompt_length: int = 5, reply_at: int = -1):
    random = torch.Generator().manual_seed(sum(map(ord, name)))
    prompt = Prompt(name, "test", "", tuple(torch.randint(vocab, (prompt_length,), generator=random).tolist()))
    members = zip(lengths, rewards, strict=True)
    trajectories = [trajectory(f"{name}.{i}", prompt, n, r, vocab, reply_at) for i, (n, r) in enumerate(members)]
    return Group(name, prompt, trajectories)


def uneven_batch(vocab: int) -> Batch:
    """Long, short and equal lengths, an environment's replies, a group that teaches nothing, prompts of 1 to 9."""
    return Batch(
        1,
        [
            group("a", [1, 30, 7, 7], [1.0, 0.0, 0.5, 0.0], vocab),
            group("b", [12, 12, 3], [0.2, 0.2, 0.2], vocab),
            group("c", [20, 9, 40, 2], [0.0, 1.0, 1.0, 0.3], vocab, prompt_length=9, reply_at=4),
            group("d", [5, 6], [1.0, 0.0], vocab, prompt_length=1),
        ],
    )


class DenseAttention:
    """Causal attention of one whole sequence with an explicit mask and repeated keys and values."""

    def __call__(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor) -> Tensor:
        times = q_THD.shape[1] // k_TKD.shape[1]
        k, v = k_TKD.repeat_interleave(times, 1), v_TKD.repeat_interleave(times, 1)
        scores = torch.einsum("qhd,khd->hqk", q_THD, k) / math.sqrt(q_THD.shape[-1])
        future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(future, -torch.inf).softmax(-1), v).flatten(1)


def plain_logprobs(decoder: Decoder, trajectory: Trajectory, temperature: float) -> Tensor:
    """Log-prob of every response token, from one unpacked forward pass over the sequence and the full log-softmax."""
    prompt = list(trajectory.prompt.tokens)
    ids = torch.tensor(prompt + trajectory.tokens)
    hidden = decoder(ids, torch.arange(len(ids)), DenseAttention())
    every = (decoder.logits(hidden) / temperature).log_softmax(-1)
    return every[range(len(prompt) - 1, len(ids) - 1), trajectory.tokens]


def plain_advantages(name: str, rewards: list[float]) -> list[float]:
    """Of short responses: without DAPO's penalty. REINFORCE's baseline is 0."""
    if name == "reinforce":
        return list(rewards)
    if len(rewards) < 2 or statistics.stdev(rewards) < 1e-12:
        return [0.0] * len(rewards)
    if name == "rloo":
        others = [[*rewards[:i], *rewards[i + 1 :]] for i in range(len(rewards))]
        return [reward - statistics.fmean(rest) for reward, rest in zip(rewards, others, strict=True)]
    scale = 1.0 if name == "dr_grpo" else statistics.stdev(rewards) + 1e-6
    return [(reward - statistics.fmean(rewards)) / scale for reward in rewards]


LOSS = {"grpo": "token", "dr_grpo": "constant", "rloo": "constant", "dapo": "token", "reinforce": "constant"}
CLIP_HIGH = {"dapo": 0.28}


def plain_loss(decoder: Decoder, batch: Batch, config: LearnConfig, temperature: float, old=None, reference=None):
    """The loss of one optimizer step on the whole batch, token by token.

    `old` and `reference` hold the log-probs of every trajectory by id; without `old` the policy's own are used.
    """
    name = config.advantage["name"]
    kind = config.loss or LOSS[name]
    all_tokens = sum(sum(t.from_model) for t in batch.trajectories)
    total = torch.zeros((), dtype=decoder.embed.dtype)
    for members in batch.groups:
        advantages = plain_advantages(name, members.rewards)
        for t, advantage in zip(members.trajectories, advantages, strict=True):
            if not any(advantages):
                continue
            now = plain_logprobs(decoder, t, temperature)
            before = now.detach() if old is None else old[t.id]
            divisor = {
                "token": all_tokens,
                "sequence": sum(t.from_model) * len(batch.trajectories),
                "constant": config.loss_length * len(batch.trajectories),
            }[kind]
            for position, ours in enumerate(t.from_model):
                if ours:
                    ratio = (now[position] - before[position]).exp()
                    low, high = 1 - (config.clip_low or 0.2), 1 + (config.clip_high or CLIP_HIGH.get(name, 0.2))
                    term = -min(ratio * advantage, ratio.clamp(low, high) * advantage)
                    if config.kl:
                        apart = reference[t.id][position] - now[position]
                        term = term + config.kl * (apart.exp() - apart - 1)
                    total = total + term / divisor
    return total


def gradient(decoder: Decoder) -> dict[str, Tensor]:
    """Taken out of the parameters: they are left without one."""
    taken = {name: parameter.grad for name, parameter in decoder.named_parameters()}
    decoder.zero_grad(set_to_none=True)
    return taken


def gradient_of_update(trainer: Trainer, batch: Batch, monkeypatch) -> dict[str, Tensor]:
    """What `update` hands to the optimizer; the weights are left as they are."""
    seen: dict[str, Tensor] = {}

    def record() -> tuple[Tensor, bool]:
        seen.update(gradient(trainer.policy.decoder))
        return torch.zeros(()), True

    monkeypatch.setattr(trainer._optimizer, "step", record)
    trainer.update(batch)
    monkeypatch.undo()
    return seen


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    """Largest difference of any element, relative to the largest element of the whole gradient."""
    assert ours.keys() == theirs.keys()
    largest = max(tensor.abs().max().item() for tensor in theirs.values())
    assert largest > 0, "a comparison of zeros says nothing"
    for name, tensor in theirs.items():
        assert (ours[name] - tensor).abs().max().item() <= tolerance * largest, name
