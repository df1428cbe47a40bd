"""The clipped policy-gradient loss, as a sum over tokens.

Invariant: the weights already hold the normalisation over the whole optimizer step (`sample.normalise`), so the losses
of micro-batches and of chunks of rows simply add up, and so do their gradients.

With r_t = exp(log pi_t - log pi_old_t), advantage A_t and weight w_t:
  loss = sum_t w_t ( -min(r_t A_t, clip(r_t, 1 - clip_low, 1 + clip_high) A_t) + kl k3_t )
  k3_t = exp(d_t) - d_t - 1,  d_t = log pi_ref_t - log pi_t:  never negative, unbiased for KL(pi || pi_ref)
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from untail.learn.pack import LossColumns
from untail.learn.tally import Tally


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    clip_low: float
    clip_high: float
    kl: float

    def __call__(self, logprob_R: Tensor, entropy_R: Tensor, columns: LossColumns, tally: Tally) -> Tensor:
        """The rows' part of the loss. Without `old` log-probs they are the policy's own: ratio 1, but with a slope."""
        old_R = logprob_R.detach() if columns.old_R is None else columns.old_R
        log_ratio_R = logprob_R - old_R
        ratio_R = log_ratio_R.exp()
        free_R = ratio_R * columns.advantage_R
        clipped_R = ratio_R.clamp(1 - self.clip_low, 1 + self.clip_high) * columns.advantage_R
        term_R = -torch.minimum(free_R, clipped_R)
        if columns.reference_R is not None:
            reference_kl_R = k3(columns.reference_R - logprob_R)
            term_R = term_R + self.kl * reference_kl_R
            tally.mean(reference_kl=reference_kl_R)
        mismatch_R = (columns.engine_logprob_R - old_R).abs()
        tally.mean(ratio_mean=ratio_R, clip_share=clipped_R < free_R, approx_kl=k3(log_ratio_R))
        tally.mean(entropy=entropy_R, mismatch_mean=mismatch_R)
        tally.peak(ratio_max_deviation=(ratio_R - 1).abs(), mismatch_max=mismatch_R)
        return (columns.weight_R * term_R).sum()


def k3(log_ratio: Tensor) -> Tensor:
    """exp(x) - x - 1 with x = log(q / p) of tokens drawn from p: an estimate of KL(p || q)."""
    return torch.expm1(log_ratio) - log_ratio
