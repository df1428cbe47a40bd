"""The output head, fused with what is done to it: log-probs of the sampled tokens, their entropy, a loss on them.

Invariant: [rows x vocab] exists for at most `logit_rows` rows at once, forward and backward. `head_loss` takes the
gradient of a chunk while its probabilities are still there, so nothing is computed twice; this is why the loss must
be a sum over rows, and why it comes in as a function.

With z = W h / temperature for one row and y its sampled token:
  log p(y) = z_y - logsumexp(z);  entropy = -sum_v p_v log p_v;  d log p(y) / dz_v = [v = y] - p_v

Shape suffixes: R rows in the loss, D hidden, V vocabulary.
"""

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from untail.engine.models.product import at_least_float32, product, product_into

LossOfRows = Callable[[slice, Tensor, Tensor], Tensor]
"""From some rows, their log-probs (with gradient) and entropies (without) to those rows' part of the loss, a scalar."""


FEW_ROWS = 512
LOGIT_BYTES = 2**29  # on a GPU: with few rows at a time, the host would be what it waits for


def rows_at_once(wanted: int | Literal["auto"], weight_VD: Tensor) -> int:
    if wanted != "auto":
        return wanted
    return max(FEW_ROWS, LOGIT_BYTES // (4 * len(weight_VD))) if weight_VD.is_cuda else FEW_ROWS


@torch.no_grad()
def token_logprobs(
    hidden_RD: Tensor, weight_VD: Tensor, target_R: Tensor, temperature: float, logit_rows: int
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of each distribution, both [R], in float32 or better; no gradient."""
    logprob_R, entropy_R = hidden_RD.new_empty((2, len(target_R)), dtype=at_least_float32(hidden_RD.dtype))
    for rows in _chunks(len(target_R), logit_rows):
        columns = _logprob_entropy_probs(hidden_RD[rows], weight_VD, target_R[rows], temperature)
        logprob_R[rows], entropy_R[rows] = columns[:2]
    return logprob_R, entropy_R


def head_loss(
    hidden_RD: Tensor, weight_VD: Tensor, target_R: Tensor, temperature: float, logit_rows: int, loss_of: LossOfRows
) -> Tensor:
    """sum over chunks of `loss_of(rows, logprob, entropy)`, differentiable in `hidden_RD` and `weight_VD`."""
    return _HeadLoss.apply(hidden_RD, weight_VD, target_R, temperature, logit_rows, loss_of)


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_RD: Tensor,
        weight_VD: Tensor,
        target_R: Tensor,
        temperature: float,
        logit_rows: int,
        loss_of: LossOfRows,
    ) -> Tensor:
        exact = at_least_float32(hidden_RD.dtype)
        grad_hidden_RD, grad_weight_VD = torch.empty_like(hidden_RD), torch.zeros_like(weight_VD, dtype=exact)
        total = hidden_RD.new_zeros((), dtype=exact)
        for rows in _chunks(len(target_R), logit_rows):
            hidden, target = hidden_RD[rows], target_R[rows]
            logprob, entropy, probs = _logprob_entropy_probs(hidden, weight_VD, target, temperature)
            with torch.enable_grad():
                loss = loss_of(rows, logprob.requires_grad_(), entropy)
                (slope_R,) = torch.autograd.grad(loss, logprob)
            total += loss.detach()
            slope_R = slope_R / temperature
            grad_logits = probs.mul_(-slope_R[:, None])
            grad_logits[torch.arange(len(target), device=target.device), target] += slope_R
            grad_logits = grad_logits.to(weight_VD.dtype)
            torch.mm(grad_logits, weight_VD, out=grad_hidden_RD[rows])
            product_into(grad_weight_VD, grad_logits.T, hidden.T, add=True)
        ctx.save_for_backward(grad_hidden_RD, grad_weight_VD)
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden_RD, grad_weight_VD = ctx.saved_tensors
        scale = grad_outputs[0]
        grad_hidden_RD, grad_weight_VD = grad_hidden_RD * scale, (grad_weight_VD * scale).to(grad_hidden_RD.dtype)
        return grad_hidden_RD, grad_weight_VD, None, None, None, None


def _logprob_entropy_probs(
    hidden: Tensor, weight_VD: Tensor, target: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    logits = product(hidden, weight_VD)
    if temperature != 1:
        logits.div_(temperature)
    all_logprobs = torch.log_softmax(logits, dim=-1)
    probs = all_logprobs.exp()
    entropy = -torch.linalg.vecdot(probs, all_logprobs)
    return all_logprobs.gather(1, target[:, None]).squeeze(1), entropy, probs


def _chunks(rows: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))
