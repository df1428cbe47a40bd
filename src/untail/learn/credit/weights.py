"""Unbiased weights for random pruning and copies: one weight for all tokens of trajectory i,
  w_i = 1 / s_i  x  product over the forks on its way of 1 / (copies made + 1)  x  product_t pi_v / mu

s_i (`Trajectory.survival`) is the probability with which it outlived every random pruning on its way; one that did not
(s_i = 0) weighs 0. A fork splits the weight evenly among the original and its copies, also those that were pruned
later. The last factor, over all its model tokens, makes up for a temperature of its own.

By induction over the boundaries, sum_i w_i (r_i - b) grad log pi(y_i) over the trajectories of a group has the
expectation of the group without pruning or copies, provided that s depends on nothing after the boundary and that b is
a constant (advantage `reinforce`, loss "constant", whose mean counts originals alone). For advantages that are
normalised over the group it is not claimed. What was lost for another reason (a failed engine) takes its weight along;
an original that was pruned must not be masked, or the mean would not count it.
"""

from collections import Counter

import numpy as np

from untail.learn import column
from untail.learn.credit.base import CREDITS, Credit
from untail.types import Group, Trajectory

MOST_LOG_RATIO = 20.0  # what is further off than e^20 weighs as if it were not: an inf would cost the whole minibatch


@CREDITS.register("weights")
class Weights(Credit):
    needs_survival = True
    corrects_sampling = True
    needs_logprobs = True

    def weigh(self, group: Group) -> list[np.ndarray]:
        by_id = {trajectory.id: trajectory for trajectory in group.trajectories}
        forks = Counter((t.parent, t.forked_at) for t in group.trajectories if t.parent is not None)
        weights = []
        for trajectory in group.trajectories:
            weight = 0.0
            if trajectory.survival > 0:
                weight = _sampling_ratio(trajectory) / trajectory.survival / _copies(trajectory, by_id, forks)
            weights.append(np.full(len(trajectory.tokens), weight))
        return weights

    def counts(self, trajectory: Trajectory) -> float:
        return 1.0 if trajectory.parent is None else 0.0


def _sampling_ratio(trajectory: Trajectory) -> float:
    log_ratio = column.policy_logprob(trajectory) - column.behaviour_logprob(trajectory)
    return float(np.exp(np.clip(log_ratio[column.from_model(trajectory) > 0].sum(), -MOST_LOG_RATIO, MOST_LOG_RATIO)))


def _copies(trajectory: Trajectory, by_id: dict[str, Trajectory], forks: Counter[tuple[str, int]]) -> int:
    """The product over the forks on its way of how many went on from there: its own as an original, and those of its
    ancestors up to where it left them."""
    product, name, end = 1, trajectory.id, len(trajectory.tokens)
    while True:
        for (parent, position), copies in forks.items():
            if parent == name and position <= end:
                product *= copies + 1
        here = by_id.get(name)  # an ancestor may be gone: then what came before it is not known
        if here is None or here.parent is None:
            return product
        name, end = here.parent, here.forked_at
