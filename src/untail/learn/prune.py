"""Gradient-guided token pruning (8.4): tokens that would hardly move the policy leave the loss.

The score of a token is |A_t| (1 - p_t), with p_t the probability it was sampled with: the gradient of log p_t with
respect to its own logit is 1 - p_t. Of the tokens of one optimizer step that are in the loss, the lowest `share` get
weight 0; of equal scores the earlier go first. The other weights stay as they are, so that the pruned gradient
approximates the whole one and is not rescaled.

`exact`: nothing but the weights. Head rows of pruned tokens are never computed and a sequence ends with its last kept
token (pack.py); the gradient is that of the masked loss.
`detach`: on top of that the positions that would have predicted pruned tokens are constants: their keys and values are
seen by later positions but carry no gradient, so they have no backward of their own. The forward is the same, the
gradient is not: it lacks the paths through those positions. Prompts stay as they were.

Shape suffixes: L packed tokens with gradient, C constant ones, T both, D hidden.
"""

import numpy as np
import torch
from torch import Tensor

from untail.config import PruneConfig
from untail.engine.attention.base import Attention
from untail.engine.models.decoder import Decoder
from untail.learn import column
from untail.learn.sample import Sample


def prune(samples: list[Sample], config: PruneConfig) -> int:
    """Take the tokens of the lowest scores out of the loss of one optimizer step; returns how many."""
    if not samples:
        return 0
    in_loss = [np.flatnonzero(sample.weight_N) for sample in samples]
    candidates = np.concatenate([_scores(sample)[kept] for sample, kept in zip(samples, in_loss, strict=True)])
    leaves = np.zeros(len(candidates), dtype=bool)
    leaves[np.argsort(candidates, kind="stable")[: int(config.share * len(candidates))]] = True
    ends = np.cumsum([len(kept) for kept in in_loss])
    for sample, kept, chosen in zip(samples, in_loss, np.split(leaves, ends[:-1]), strict=True):
        pruned = np.zeros(len(sample.weight_N), dtype=bool)
        pruned[kept[chosen]] = True
        sample.weight_N = np.where(pruned, 0.0, sample.weight_N)
        if config.how == "detach":
            sample.constant_N = pruned
    return int(leaves.sum())


def dot_products(ours: list[Tensor], theirs: list[Tensor]) -> Tensor:
    """Of two gradients in pieces: with each other, and of each with itself; [3]. Those of all ranks add up."""
    return torch.stack(
        [
            torch.stack([(x.double() * y.double()).sum() for x, y in zip(a, b, strict=True)]).sum()
            for a, b in ((ours, theirs), (ours, ours), (theirs, theirs))
        ]
    )


def _scores(sample: Sample) -> np.ndarray:
    """NaN, which is never among the lowest, where the log-prob is not known."""
    return np.abs(sample.advantage_N) * -np.expm1(column.policy_logprob(sample.trajectory))


def forward_with_constants(
    decoder: Decoder, ids_T: Tensor, positions_T: Tensor, live: int, attention: Attention, recompute: bool
) -> Tensor:
    """The decoder's hidden states of the first `live` tokens, [L, D]; the others are constants to the gradient."""
    cos, sin = decoder.rope_table[positions_T].unbind(1)
    turns = (cos[:live], sin[:live]), (cos[live:], sin[live:])
    live_LD, constant_CD = decoder.embedded(ids_T[:live]), decoder.embedded(ids_T[live:]).detach()
    for number in range(decoder.shape.layers):
        arguments = (decoder, number, live_LD, constant_CD, turns, attention)
        live_LD, constant_CD = decoder.within(number, recompute, _layer, *arguments)
    return decoder.rms(live_LD, decoder.norm)


def _layer(
    decoder: Decoder,
    number: int,
    live_LD: Tensor,
    constant_CD: Tensor,
    turns: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]],
    attention: Attention,
) -> tuple[Tensor, Tensor]:
    """One layer of both kinds of tokens. Attention sees them as one row; the rest is done apart."""
    with torch.no_grad():
        of_constant = decoder.qkv(number, constant_CD, *turns[1])
    of_live = decoder.qkv(number, live_LD, *turns[0])
    qkv = (torch.cat(pair) for pair in zip(of_live, of_constant, strict=True))
    live, constant = attention(number, *qkv).split((len(live_LD), len(constant_CD)))
    if number + 1 < decoder.shape.layers:  # of the last layer only their keys and values are ever seen
        with torch.no_grad():
            constant_CD = decoder.after_attention(number, constant_CD, constant)
    return decoder.after_attention(number, live_LD, live), constant_CD
