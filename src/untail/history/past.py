"""Earlier responses to a prompt, for whoever drafts from them."""

from untail.history.store import History
from untail.types import Prompt

MOST = 8


class PastResponses:
    def __init__(self, history: History):
        self._history = history
        self._last: tuple[str, tuple[tuple[int, ...], ...]] = ("", ())  # siblings ask one after another

    def of(self, prompt: Prompt) -> tuple[tuple[int, ...], ...]:
        """The newest whose tokens are still stored, at most so many: the best rewarded first."""
        if self._last[0] != prompt.id:
            newest = self._history.responses(prompt.id)[:MOST]
            ranked = sorted(newest, key=lambda record: -(record.reward or 0.0))
            self._last = prompt.id, tuple(tuple(record.tokens or ()) for record in ranked)
        return self._last[1]
