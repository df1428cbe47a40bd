"""How long a segment is (sections 3.2 and 3.3). One file each; importing this package registers them all."""

from untail.rollout.stride import entropy, fixed, pyramid, remainder, unfinished

__all__ = ["entropy", "fixed", "pyramid", "remainder", "unfinished"]
