"""What a person reads while something goes on: lines on standard error."""

import sys
from functools import cache


def say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


@cache
def say_once(sentence: str) -> None:
    """Once in a process."""
    say(sentence)
