"""What a user should know and need not act on: one line on stderr, said once in a process."""

import sys
from functools import cache


@cache
def say_once(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
