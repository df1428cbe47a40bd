"""Who drafts in a step, and how deep. Importing this package registers all that ship with untail."""

from untail.draft.choose import bandit, first, formula

__all__ = ["bandit", "first", "formula"]
