"""Who is stopped before its end (section 4). One file each; importing this package registers them all."""

from untail.rollout.watch import babble, collapse, explosion, loop, recital, structure

__all__ = ["babble", "collapse", "explosion", "loop", "recital", "structure"]
