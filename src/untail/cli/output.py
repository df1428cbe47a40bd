"""What a program reads goes to standard output; what a person does, to standard error (notice.py)."""

import json
from typing import Any


def print_json(result: dict[str, Any]) -> None:
    """The one JSON object, as the last line of standard output."""
    print(json.dumps(result), flush=True)
