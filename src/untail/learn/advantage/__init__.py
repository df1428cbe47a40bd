"""How much better than its siblings a trajectory was. One file each; importing this package registers them all."""

from untail.learn.advantage import dr_grpo, grpo
from untail.learn.advantage.base import ADVANTAGES, Advantage

__all__ = ["ADVANTAGES", "Advantage", "dr_grpo", "grpo"]
