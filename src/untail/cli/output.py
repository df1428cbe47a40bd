"""Where things are printed: what a person reads goes to standard error, results and JSON to standard output."""

import json
import sys
from typing import Any


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def print_json(result: dict[str, Any]) -> None:
    """The one JSON object, as the last line of standard output."""
    print(json.dumps(result), flush=True)
