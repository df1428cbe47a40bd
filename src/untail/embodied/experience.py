"""What a shard of environments went through in an iteration.

Invariant: rows are steps [T] x environments [N]. `next_TNO` is what each step led to: where an episode is over its own
last observation, which no row begins with.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from untail.embodied.simulator import Outcome


@dataclass(frozen=True, slots=True)
class Experience:
    obs_TNO: Tensor
    action_TNA: Tensor
    logprob_TN: Tensor
    reward_TN: Tensor
    ended_TN: Tensor
    cut_TN: Tensor
    next_TNO: Tensor

    def to(self, device: torch.device) -> "Experience":
        return Experience(*(getattr(self, field.name).to(device) for field in fields(self)))

    @property
    def over_TN(self) -> Tensor:
        return self.ended_TN | self.cut_TN

    def returns_of_first_episodes(self) -> tuple[Tensor, Tensor]:
        """The return [N] of each environment's first episode, and which rows [T, N] belong to it."""
        earlier_TN = self.over_TN.int().cumsum(0) - self.over_TN.int()
        first_TN = earlier_TN == 0
        return (self.reward_TN * first_TN).sum(0), first_TN


class Recorder:
    """Gathers an experience step by step."""

    def __init__(self) -> None:
        self._rows: list[tuple[Tensor, ...]] = []

    def add(self, obs_NO: Tensor, action_NA: Tensor, logprob_N: Tensor, outcome: Outcome) -> None:
        ends = (outcome.ended_N, outcome.cut_N, outcome.final_NO)
        self._rows.append((obs_NO, action_NA, logprob_N, outcome.reward_N, *ends))

    def experience(self) -> Experience:
        return Experience(*(torch.stack(column) for column in zip(*self._rows, strict=True)))
