"""Where a member runs, and when new groups join it (section 3). Importing this package registers them all."""

from untail.rollout.lanes import compaction, repack, router

__all__ = ["compaction", "repack", "router"]
