"""Partial scores: what a response is worth before it is finished. One file each; they run where rewards run."""

from untail.rewards.partial import compiles, endless_wait, function, tags_balance
from untail.rewards.partial.base import PARTIALS, Partial, build_partial

__all__ = ["PARTIALS", "Partial", "build_partial", "compiles", "endless_wait", "function", "tags_balance"]
