"""What the learner asks of an importance rule: how tokens of other weights than those being trained are corrected.

Notation, per token, all but mu at the training temperature: mu is what it was really sampled from
(`behaviour_logprob`), pi_v the policy of the weight version that sampled it (`policy_logprob`, the engine's), pi_prox
the policy just before the update, pi the policy being trained.

The loss takes the clipped ratio r = pi / old and multiplies its term by `scale`, which has no slope. No torch is
imported here: a recipe is checked without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from untail.config import Strict
from untail.learn.mask.base import Mask
from untail.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from untail.learn.pack import LossColumns


class Importance(ABC):
    class Config(Strict):
        pass

    needs_logprobs: ClassVar[bool] = False  # refuses a backend that cannot tell a token's log-prob
    knows_sampling: ClassVar[bool] = False  # mu is in it, so that it may learn from tokens sampled from something else

    def __init__(self, config: Any):
        self.config = config

    @property
    def scope(self) -> Mask | None:
        """Which tokens are in the loss at all, where the rule says so."""
        return None

    @abstractmethod
    def old(self, logprob_R: Tensor, prox_R: Tensor, columns: LossColumns) -> Tensor:
        """log of what the ratio is against. `logprob_R` is log pi and `prox_R` log pi_prox, both without slope."""

    def scale(self, prox_R: Tensor, columns: LossColumns) -> Tensor | None:
        return None


IMPORTANCES: Registry[Importance] = Registry("importance")
