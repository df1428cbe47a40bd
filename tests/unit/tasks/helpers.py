import json
from pathlib import Path
from typing import Any


def write(path: Path, *records: dict[str, Any]) -> dict[str, Any]:
    """A jsonl file of the records, and the table of the task that reads it."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return {"name": "file", "path": str(path)}
