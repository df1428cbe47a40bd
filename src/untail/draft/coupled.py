"""How a model drafter makes its guess: with the very random number that the target will draw with.

The target's token at a position is a function of its distribution and of that position's number in the sequence's
stream. A drafter that draws from its own distribution with the same number guesses the same token wherever the two
distributions nearly agree; its best token would be right only as often as the target's distribution is peaked there.
"""

import torch
from torch import Tensor

from untail.engine.sampler import draw, log_softmax_at, uniform
from untail.engine.sequence import Sequence


def guess(logits_RV: Tensor, sequences: list[Sequence], positions: list[int]) -> Tensor:
    """The token of each row's sequence at its position; greedy sequences get the best. Truncation is left out: it
    seldom matters, and a guess may be wrong."""
    logits_RV = logits_RV.float()
    temperatures = [sequence.spec.sampling.temperature for sequence in sequences]
    best_R = logits_RV.argmax(-1)
    if not any(temperatures):
        return best_R
    device = logits_RV.device
    probs_RV = log_softmax_at(logits_RV, [temperature or 1.0 for temperature in temperatures]).exp()
    streams = torch.tensor([sequence.spec.stream for sequence in sequences], device=device)
    drawn_R = draw(probs_RV, uniform(streams, torch.tensor(positions, device=device)))
    return torch.where(torch.tensor(temperatures, device=device) == 0, best_R, drawn_R)
