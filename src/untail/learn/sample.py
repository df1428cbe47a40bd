"""From groups to training samples: what each response token is worth to the loss.

Invariant: `samples_of` is the one place where a token's advantage and weight are composed. A token the model did not
write (an environment's reply) has weight 0: it is context. Zero weight means that its logits are never computed. A
masked trajectory makes no sample and has no part in its group's statistics.
"""

from dataclasses import dataclass

import numpy as np

from untail.config import LossKind
from untail.learn.advantage.base import Advantage
from untail.types import Group, Trajectory


@dataclass(slots=True)
class Sample:
    """One trajectory with its columns for the loss; N response tokens, float64."""

    trajectory: Trajectory
    advantage_N: np.ndarray
    weight_N: np.ndarray


def samples_of(group: Group, advantage: Advantage) -> list[Sample]:
    """advantage_t = A_i for every token t of trajectory i; weight_t = 1 where the model wrote the token, else 0."""
    seen = Group(group.id, group.prompt, [trajectory for trajectory in group.trajectories if not trajectory.masked])
    return [
        Sample(trajectory, np.full(len(trajectory.tokens), value), np.array(trajectory.from_model, dtype=np.float64))
        for trajectory, value in zip(seen.trajectories, advantage.compute(seen), strict=True)
    ]


def teaches(samples: list[Sample]) -> bool:
    """Whether any token of the group can move the policy."""
    return any((sample.advantage_N * sample.weight_N).any() for sample in samples)


def normalise(samples: list[Sample], loss: LossKind, length: int) -> None:
    """Scale the weights of one minibatch (the samples of one optimizer step) so that its loss is a plain sum.

    With w_it the weight of token t of sample i, over n samples:
      token     w_it / sum_jt w_jt
      sequence  w_it / (n sum_t w_it)
      constant  w_it / (n length)
    The sums run over the whole minibatch, samples that teach nothing included: leaving those out of the compute then
    changes nothing, and neither does the cut into micro-batches.
    """
    total = sum(sample.weight_N.sum() for sample in samples)
    for sample in samples:
        own = sample.weight_N.sum()
        if own > 0:
            divisor = {"token": total, "sequence": len(samples) * own, "constant": len(samples) * length}[loss]
            sample.weight_N = sample.weight_N / divisor
