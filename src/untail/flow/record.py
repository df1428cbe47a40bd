"""What was published under a name, version by version.

Invariant: a version is here whole or not at all: a publisher makes it ready first and then tells its records in one
message, which counts for all names in it or for none. Versions of a name only grow. The newest two are kept, so that
one who has just heard of a version finds it.
"""

from threading import Lock
from typing import Any

from untail.errors import WeightsError

KEPT = 2


class Records:
    def __init__(self) -> None:
        self._by_name: dict[str, dict[int, Any]] = {}
        self._lock = Lock()

    def publish(self, version: int, records: dict[str, Any]) -> list[Any]:
        """Records of versions that are no longer kept: what they stand for may go."""
        gone: list[Any] = []
        with self._lock:
            for name in records:
                newest = max(self._by_name.get(name, {}), default=-1)
                if version <= newest:
                    raise WeightsError(
                        f"version {version} of {name!r} is not newer than {newest}, which is published already; "
                        "versions only grow"
                    )
            for name, record in records.items():
                kept = self._by_name.setdefault(name, {})
                kept[version] = record
                gone += [kept.pop(old) for old in sorted(kept)[:-KEPT]]
        return gone

    def find(self, name: str, version: int | None) -> tuple[int, Any] | None:
        """The newest, or this one; None if it is not here."""
        with self._lock:
            kept = self._by_name.get(name, {})
            wanted = max(kept, default=-1) if version is None else version
            return (wanted, kept[wanted]) if wanted in kept else None
