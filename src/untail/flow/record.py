"""What was published under a name, version by version.

Invariant: a version is here whole or not at all: a publisher makes it ready first and then tells its record in one
message. Versions of a name only grow. The newest two are kept, so that one who has just read of a version finds it.
"""

from threading import Lock
from typing import Any

from untail.errors import WeightsError

KEPT = 2


class Records:
    def __init__(self) -> None:
        self._by_name: dict[str, list[tuple[int, Any]]] = {}
        self._lock = Lock()

    def publish(self, name: str, version: int, record: Any) -> list[Any]:
        """Records of versions that are no longer kept: what they stand for may go."""
        with self._lock:
            records = self._by_name.setdefault(name, [])
            if records and version <= records[-1][0]:
                raise WeightsError(
                    f"version {version} of {name!r} is not newer than {records[-1][0]}, which is published already; "
                    "versions only grow"
                )
            records.append((version, record))
            gone, self._by_name[name] = records[:-KEPT], records[-KEPT:]
        return [record for _, record in gone]

    def latest(self, name: str) -> tuple[int, Any] | None:
        with self._lock:
            records = self._by_name.get(name)
            return records[-1] if records else None
