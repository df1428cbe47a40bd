"""When a step is finished (section 6). One file each; importing this package registers them all."""

from untail.rollout.finish import deadline, defer, oversample, sprint, tail_batch

__all__ = ["deadline", "defer", "oversample", "sprint", "tail_batch"]
