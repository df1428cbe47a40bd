"""What a user should know and need not act on: one line on stderr."""

import sys
from functools import cache


def say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


@cache
def say_once(sentence: str) -> None:
    """Once in a process."""
    say(sentence)
