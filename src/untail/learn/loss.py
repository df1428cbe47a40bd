"""The clipped policy-gradient loss, as a sum over tokens.

Invariant: the weights hold all of the normalisation but one divisor of the whole optimizer step (`sample.normalise`),
so the losses of micro-batches and of chunks of rows simply add up, and so do their gradients; in the end both are
divided.

With r_t = exp(log pi_t - log old_t), advantage A_t and weight w_t:
  loss = sum_t w_t ( -s_t min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t) + kl k3_t )
  k3_t = exp(d_t) - d_t - 1,  d_t = log pi_ref_t - log pi_t:  never negative, unbiased for KL(pi || pi_ref)
What `old` and the scale `s` are is up to the importance rule. log r_t is held within +-20: a token whose ratio would
overflow (sampled where mu was all but 0) has a finite loss and no slope.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from untail.learn.importance import Importance
from untail.learn.pack import LossColumns
from untail.learn.tally import Tally

LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    importance: Importance
    clip_low: float
    clip_high: float
    kl: float

    def __call__(self, logprob_R: Tensor, entropy_R: Tensor, columns: LossColumns, tally: Tally) -> Tensor:
        """The rows' part of the loss. Without `prox` log-probs they are the policy's own: the first minibatch."""
        now_R = logprob_R.detach()
        prox_R = now_R if columns.prox_R is None else columns.prox_R
        log_ratio_R = logprob_R - self.importance.old(now_R, prox_R, columns)
        log_ratio_R = log_ratio_R.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
        ratio_R = log_ratio_R.exp()
        free_R = ratio_R * columns.advantage_R
        clipped_R = ratio_R.clamp(1 - self.clip_low, 1 + self.clip_high) * columns.advantage_R
        term_R = -torch.minimum(free_R, clipped_R)
        scale_R = self.importance.scale(prox_R, columns)
        if scale_R is not None:
            term_R = scale_R * term_R
            tally.mean(importance_weight=scale_R)
        if columns.reference_R is not None:
            reference_kl_R = k3(columns.reference_R - logprob_R)
            term_R = term_R + self.kl * reference_kl_R
            tally.mean(reference_kl=reference_kl_R)
        tally.mean(ratio_mean=ratio_R, clip_share=clipped_R < free_R, approx_kl=k3(log_ratio_R), entropy=entropy_R)
        tally.peak(ratio_max_deviation=(ratio_R - 1).abs())
        tally_distances(prox_R, columns, tally)
        return (columns.weight_R * term_R).sum()


def tally_distances(prox_R: Tensor, columns: LossColumns, tally: Tally) -> None:
    """Two distances that must not be mixed up. `mismatch`: engine and trainer disagree on the same weights, so it is
    taken over tokens of the present version alone. `drift`: |log(pi_prox / mu)|, how far the policy has gone from what
    the tokens were sampled from, over all of them."""
    mismatch_R = (columns.engine_logprob_R - prox_R).abs()
    drift_R = (prox_R - columns.behaviour_R).abs()
    tally.mean(columns.is_current_R, mismatch_mean=mismatch_R)
    tally.peak(columns.is_current_R, mismatch_max=mismatch_R)
    tally.mean(drift_mean=drift_R, stale_share=~columns.is_current_R)
    tally.peak(drift_max=drift_R)


def k3(log_ratio: Tensor) -> Tensor:
    """exp(x) - x - 1 with x = log(q / p) of tokens drawn from p: an estimate of KL(p || q)."""
    return torch.expm1(log_ratio) - log_ratio
