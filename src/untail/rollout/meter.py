"""What the engines did in a step's rollout, for its `rolled_out` event."""

import resource
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from untail.backends.base import Backend, Load

RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Meter:
    def __init__(self, backends: list[Backend]):
        self.backends = backends
        self.generated = 0  # tokens that reached the controller in this step
        self._overrun: Counter[str] = Counter()
        self._most_kv = 0.0  # in this step
        self._kv = [0.0 for _ in backends]  # of each engine, when something was last heard from it
        self._fullest = 0.0
        self._before = [backend.load() for backend in backends]

    def begin(self) -> None:
        self.generated, self._most_kv = 0, 0.0
        self._before = [backend.load() for backend in self.backends]
        self._kv = [load.kv_used for load in self._before]
        self._fullest = self._most_kv = max(self._kv)

    def kv_used(self, heard_from: Iterable[int] = ()) -> float:
        """Of the fullest engine. Only those that were heard from are asked: with a thousand engines, asking all of them
        whenever one speaks would take longer than anything else."""
        for engine in heard_from:
            before, now = self._kv[engine], self.backends[engine].load().kv_used
            self._kv[engine] = now
            if now >= self._fullest:
                self._fullest = now
            elif before == self._fullest:
                self._fullest = max(self._kv)
        self._most_kv = max(self._most_kv, self._fullest)
        return self._fullest

    def overrun(self, name: str, tokens: int) -> None:
        self._overrun[name] += tokens

    def take_overrun(self, name: str) -> int:
        """Tokens that a sequence made past the decision to stop it."""
        return self._overrun.pop(name, 0)

    def read(self) -> dict[str, Any]:
        after = [backend.load() for backend in self.backends]
        pairs = list(zip(self._before, after, strict=True))
        overrun = sum(b.overrun - a.overrun for a, b in pairs)
        return {
            "generated": self.generated,
            "busy_s": sum(b.busy_s - a.busy_s for a, b in pairs),
            "computed": sum(b.computed - a.computed for a, b in pairs),
            "recomputed": sum(b.recomputed - a.recomputed for a, b in pairs),
            "preemptions": sum(b.preemptions - a.preemptions for a, b in pairs),
            **({"overrun": overrun} if overrun else {}),
            **self._drafts(pairs),
            "kv_used": self._most_kv,
            "peak_mem": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT,
        }

    @staticmethod
    def _drafts(pairs: list[tuple[Load, Load]]) -> dict[str, Any]:
        """By drafter, of all engines; nothing where nobody drafts."""
        drafts: dict[str, Counter[str]] = {}
        for before, after in pairs:
            for name, counts in after.drafts.items():
                since = Counter(counts)
                since.subtract(before.drafts.get(name, {}))
                drafts.setdefault(name, Counter()).update(since)
        return {"drafts": {name: dict(counts) for name, counts in drafts.items()}} if drafts else {}
