"""Who is pruned and who is copied between two segments (section 5). One file each; importing this package registers
them all."""

from untail.rollout.group import duplicates, fork, mode_collapse, outliers, tournament

__all__ = ["duplicates", "fork", "mode_collapse", "outliers", "tournament"]
