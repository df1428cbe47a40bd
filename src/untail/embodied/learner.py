"""The update: a few passes of clipped policy-gradient steps over an experience, and of the critic's regression.

Invariant: learners that hold some of the shards each take the same steps as one that holds them all: a minibatch is a
slice of every shard in an order of its own, its gradient the sum over the learners, and whatever is normalised is
normalised over all. The loss is the one of `untail.learn`: a step of an environment is to it what a token is to a
response.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from untail.config import LearnConfig
from untail.embodied.advantage import Lesson, grpo, ppo
from untail.embodied.config import EmbodiedConfig
from untail.embodied.experience import Experience
from untail.embodied.policy import GaussianPolicy
from untail.learn.importance.segment import Segmentwise
from untail.learn.loss import PolicyLoss
from untail.learn.optimizer import Optimizer
from untail.learn.pack import LossColumns
from untail.learn.tally import Tally

VALUE_COST = 0.5
REPORTED = ("clip_share", "approx_kl", "entropy", "value_loss")

Total = Callable[[Tensor], None]
"""Replaces a tensor by its sum over all learners."""


@dataclass(frozen=True, slots=True)
class Rows:
    """One per step of an environment; shards one after the other, each so long."""

    obs_RO: Tensor
    action_RA: Tensor
    logprob_R: Tensor
    advantage_R: Tensor
    target_R: Tensor | None
    lengths: list[int]


class Learner:
    """One of a group that has all shards between them. Without `total` it is alone and has all."""

    def __init__(self, policy: GaussianPolicy, config: EmbodiedConfig, total: Total | None = None):
        self.policy, self.config, self.total = policy, config, total
        learn = config.learn
        adam = LearnConfig(lr=learn.lr, warmup_steps=0, max_grad_norm=learn.max_grad_norm)
        self.optimizer = Optimizer(policy.named_parameters(), adam)
        self.loss = PolicyLoss(Segmentwise(Segmentwise.Config()), learn.clip, learn.clip, kl=0.0)

    def learn(self, shards: Mapping[int, Experience], iteration: int) -> dict[str, float]:
        """Figures of the update; `shards` are this learner's, by number."""
        rows = self._rows(list(shards.values()))
        count = self._whiten(rows.advantage_R) if self.config.algo == "ppo" else self._sum(len(rows.obs_RO))[0]
        weight, tally, skipped = self.config.learn.minibatches / count, Tally(), 0
        for epoch in range(self.config.learn.epochs):
            for chosen in self._minibatches(rows, list(shards), iteration, epoch):
                self._loss(rows, chosen, weight, tally).backward()
                skipped += not self._step()
        self._observe(rows.obs_RO)
        return {"skipped": skipped} | {name: x for name, x in tally.figures().items() if name in REPORTED}

    def _rows(self, shards: Sequence[Experience]) -> Rows:
        lessons = [self._lesson(shard) for shard in shards]
        masks = [lesson.counts_TN for lesson in lessons]

        def pick(columns: list[Tensor]) -> Tensor:
            return torch.cat([column[mask] for column, mask in zip(columns, masks, strict=True)])

        targets = [lesson.target_TN for lesson in lessons if lesson.target_TN is not None]
        return Rows(
            pick([shard.obs_TNO for shard in shards]),
            pick([shard.action_TNA for shard in shards]),
            pick([shard.logprob_TN for shard in shards]),
            pick([lesson.advantage_TN for lesson in lessons]),
            pick(targets) if targets else None,
            [int(mask.sum()) for mask in masks],
        )

    def _lesson(self, shard: Experience) -> Lesson:
        if self.config.algo == "ppo":
            return ppo(shard, self.policy.value, self.config.learn)
        return grpo(shard, self.config.group)

    def _whiten(self, advantage_R: Tensor) -> float:
        """Mean 0 and variance 1 over all learners, in place. How many rows they have."""
        exact_R = advantage_R.double()
        count, total, squares = self._sum(len(exact_R), exact_R.sum(), (exact_R**2).sum())
        mean = total / count
        std = max(squares / count - mean**2, 0.0) ** 0.5
        advantage_R.sub_(mean).div_(std + 1e-8)
        return count

    def _minibatches(self, rows: Rows, numbers: list[int], iteration: int, epoch: int) -> Iterator[Tensor]:
        """Indices into `rows`: each minibatch takes its part of every shard."""
        parts, begin = [], 0
        for number, length in zip(numbers, rows.lengths, strict=True):
            seed = self.config.stream("order", iteration, number) * self.config.learn.epochs + epoch
            order = torch.randperm(length, generator=torch.Generator().manual_seed(seed)) + begin
            parts.append(order.to(rows.obs_RO.device).tensor_split(self.config.learn.minibatches))
            begin += length
        yield from (torch.cat(slices) for slices in zip(*parts, strict=True))

    def _loss(self, rows: Rows, chosen: Tensor, weight: float, tally: Tally) -> Tensor:
        obs_RO, old_R = rows.obs_RO[chosen], rows.logprob_R[chosen]
        logprob_R, entropy_R = self.policy.judge(obs_RO, rows.action_RA[chosen])
        columns = LossColumns(
            target_R=chosen,
            engine_logprob_R=old_R,
            behaviour_R=old_R,
            is_current_R=torch.ones_like(old_R, dtype=torch.bool),
            advantage_R=rows.advantage_R[chosen],
            weight_R=torch.full_like(old_R, weight),
            prox_R=old_R,
        )
        loss = self.loss(logprob_R, entropy_R, columns, tally)
        if rows.target_R is None:
            return loss
        error_R = (self.policy.value(obs_RO) - rows.target_R[chosen]) ** 2
        tally.mean(value_loss=error_R.detach())
        return loss + VALUE_COST * weight * error_R.sum()

    def _step(self) -> bool:
        """Whether one was taken: not by a gradient that is not finite."""
        if self.total is not None:
            gradients = [p.grad for p in self.policy.parameters() if p.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            self.total(flat)
            for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))
        return self.optimizer.step()[1]

    def _observe(self, obs_RO: Tensor) -> None:
        sums = self.policy.normaliser.sums_of(obs_RO)
        if self.total is not None:
            self.total(sums)
        self.policy.normaliser.add(sums)

    def _sum(self, *numbers: float | Tensor) -> list[float]:
        """Over all learners."""
        sums = torch.tensor([float(number) for number in numbers], dtype=torch.float64)
        if self.total is not None:
            self.total(sums)
        return sums.tolist()
