"""Earlier responses to a prompt, for whoever drafts from them."""

from untail.history.store import History
from untail.types import Prompt

MOST = 8


class PastResponses:
    def __init__(self, history: History):
        self._history = history
        self._last: tuple[str, tuple[tuple[int, ...], ...]] = ("", ())  # siblings ask one after another

    def of(self, prompt: Prompt) -> tuple[tuple[int, ...], ...]:
        """Those whose tokens are still stored, at most so many: the best rewarded first, the newest of equals."""
        if self._last[0] != prompt.id:
            newest_first = self._history.responses(prompt.id)
            ranked = sorted(newest_first, key=lambda record: -(record.reward or 0.0))
            self._last = prompt.id, tuple(tuple(record.tokens or ()) for record in ranked[:MOST])
        return self._last[1]
