"""What a batch of environments is to the loop.

Invariant: a step takes and gives tensors of one row per environment. Environments begin anew by themselves: a row whose
episode is over has the next one's first observation in `obs_NO`, and its own last one in `final_NO`.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Outcome:
    """`ended`: there is no rest, it is worth 0. `cut`: the time is over, the rest goes unseen. Never both."""

    obs_NO: Tensor
    reward_N: Tensor
    ended_N: Tensor
    cut_N: Tensor
    final_NO: Tensor


class Simulator(Protocol):
    obs_size: ClassVar[int]
    action_size: ClassVar[int]
    on_host: ClassVar[bool]  # it steps on the CPU, whatever the policy is on

    def reset(self, seed: int, group: int) -> Tensor:
        """Begin everywhere; the first observations, [N, O]. The same seed gives the same states, and each is that of
        `group` neighbours."""

    def step(self, action_NA: Tensor) -> Outcome: ...

    def close(self) -> None: ...
