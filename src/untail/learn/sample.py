"""From groups to training samples: what each response token is worth to the loss.

Invariant: `samples_of` is the one place where a token's advantage and weight are composed. A token the model did not
write (an environment's reply) has weight 0: it is context. Zero weight means that its logits are never computed. A
masked trajectory makes no sample and has no part in its group's statistics; one that was stopped and is not masked has
its part in both.
"""

from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from untail.config import LossKind
from untail.errors import UserError
from untail.learn import column
from untail.learn.gae import Estimates
from untail.learn.rules import Rules
from untail.types import Group, Trajectory

MIDDLING = 64  # tokens of a response: one of a single token weighs as much, one of 16k a 256th


@dataclass(slots=True)
class Sample:
    """One trajectory with its columns for the loss; N response tokens, float64.

    `counts` is what it counts for in a mean over samples. With `is_corrected` its weight makes up for how it was
    sampled, so that nobody else must. `span` is the part of the response that is trained now; the rest is context.
    `constant_N` marks tokens whose predicting position is a constant to the gradient (see prune.py), if any is.
    """

    trajectory: Trajectory
    advantage_N: np.ndarray
    weight_N: np.ndarray
    counts: float = 1.0
    is_corrected: bool = False
    span: tuple[int, int | None] = (0, None)
    constant_N: np.ndarray | None = None

    @property
    def behaviour_N(self) -> np.ndarray:
        """log mu, as far as it has still to be corrected for."""
        logprob = column.policy_logprob if self.is_corrected else column.behaviour_logprob
        return logprob(self.trajectory)

    @property
    def written(self) -> int:
        """Tokens of the span that the model wrote."""
        return sum(self.trajectory.from_model[slice(*self.span)])


def samples_of(group: Group, rules: Rules, estimates: Estimates = MappingProxyType({})) -> list[Sample]:
    """advantage_t as the rule has it: the same number for every token of a trajectory, or one of its own; weight_t = 1
    where the model wrote the token, else 0, times its credit, times 0 where a mask takes it out. Of a trajectory that
    has an estimate, only the tokens that it is about are trained."""
    seen = Group(group.id, group.prompt, [trajectory for trajectory in group.trajectories if not trajectory.masked])
    credits = zip(group.trajectories, rules.credit.weigh(group), strict=True)
    credit_of = {trajectory.id: credit for trajectory, credit in credits}
    samples = []
    for trajectory, advantage_N in zip(seen.trajectories, rules.advantage.per_token(seen, estimates), strict=True):
        weight_N = column.from_model(trajectory) * credit_of[trajectory.id]
        estimate = estimates.get(trajectory.id)
        span = (0, None) if estimate is None else (estimate.begin, estimate.end)
        weight_N[~_within(span, len(weight_N))] = 0.0
        for mask in rules.scopes:
            weight_N *= mask.keep(trajectory)
        counts = rules.credit.counts(trajectory)
        sample = Sample(trajectory, advantage_N, weight_N, counts, rules.credit.corrects_sampling, span)
        _refuse_if_blind(sample, rules)
        samples.append(sample)
    return samples


def teaches(samples: list[Sample]) -> bool:
    """Whether any token of the group can move the policy."""
    return any((sample.advantage_N * sample.weight_N).any() for sample in samples)


def normalise(samples: list[Sample], loss: LossKind, length: int) -> float:
    """Scale the weights of some samples of one optimizer step, and return their part of its divisor: the step's loss is
    the plain sum over all its samples, divided by the sum of their parts. So the samples may come in portions.

    With w_it the weight of token t of sample i, m_i the tokens of sample i's span that the model wrote, c_i what the
    sample counts for, and n = sum_i c_i:
      token     w_it                over  sum_i c_i m_i
      sequence  w_it MIDDLING / m_i over  n MIDDLING
      constant  w_it                over  n length
    The sums run over all samples, those that teach nothing included: leaving those out of the compute then changes
    nothing, and neither does the cut into micro-batches. They do not depend on the weights: what a mask takes out is
    not made up for by what stays. Weights are not far from 1 and divided later, for gradients go through fp16.
    """
    written = [sample.written for sample in samples]
    for sample, own in zip(samples, written, strict=True):
        if loss == "sequence":
            sample.weight_N = sample.weight_N * (MIDDLING / max(own, 1))
    pairs = zip(samples, written, strict=True)
    return float(
        sum(sample.counts * {"token": own, "sequence": MIDDLING, "constant": length}[loss] for sample, own in pairs)
    )


def _within(span: tuple[int, int | None], count: int) -> np.ndarray:
    within = np.zeros(count, dtype=bool)
    within[slice(*span)] = True
    return within


def _refuse_if_blind(sample: Sample, rules: Rules) -> None:
    """A backend that promised log-probs and gave none must not become a NaN."""
    if not rules.needing_logprobs:
        return
    logprobs = column.policy_logprob(sample.trajectory) + column.behaviour_logprob(sample.trajectory)
    if np.isnan(logprobs[column.from_model(sample.trajectory) > 0]).any():
        raise UserError(
            f"{rules.needing_logprobs[0]} needs the log-prob of every token, and trajectory {sample.trajectory.id} has "
            "tokens without one; use a backend that gives them, or a rule that needs none (learn.importance = 'pois')"
        )
