"""Which tokens leave the loss. One file each; importing this package registers them all."""

from untail.learn.mask import last_segment, low_entropy, mastered, pruned
from untail.learn.mask.base import MASKS, Mask

__all__ = ["MASKS", "Mask", "last_segment", "low_entropy", "mastered", "pruned"]
