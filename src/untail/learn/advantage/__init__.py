"""How much better than its siblings a trajectory was. One file each; importing this package registers them all."""

from untail.learn.advantage import dapo, dr_grpo, grpo, ppo, reinforce, rloo
from untail.learn.advantage.base import ADVANTAGES, Advantage, TokenAdvantage

__all__ = ["ADVANTAGES", "Advantage", "TokenAdvantage", "dapo", "dr_grpo", "grpo", "ppo", "reinforce", "rloo"]
