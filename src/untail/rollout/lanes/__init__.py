"""Where a member runs, and when new groups join it (section 3). Importing this package registers them all."""

from untail.rollout.lanes import compaction, generations, repack, router

__all__ = ["compaction", "generations", "repack", "router"]
