"""Before a rollout: which prompts are asked, and how (section 2). One file each; importing this package registers them
all."""

from untail.rollout.admit import buckets, curriculum, dynamic, group_size, order, tiers, utility, vade

__all__ = ["buckets", "curriculum", "dynamic", "group_size", "order", "tiers", "utility", "vade"]
