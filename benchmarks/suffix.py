"""What the suffix index of a prompt costs: microseconds per token entered and per lookup.

Eight past responses, then eight siblings that run side by side, a token each at a time; all say the same text, but for
every 20th token. "loop": all of them say one token over and over, so that every lookup goes as far as it
may. `past_us` is the cost of a token of a past response, `token_us` of a sibling's (a call each), `lookup_us` of a
draft of 8. The 10 % quantile of each is given: what others do on the machine only adds.

    python benchmarks/suffix.py OUT.json
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import quantiles
from time import perf_counter

from untail.draft.suffix import SuffixIndex

GROUP, LENGTH, VOCAB = 8, 2048, 32768


def main(out: Path) -> None:
    chance = Random(0)
    text = [chance.randrange(VOCAB) for _ in range(LENGTH)]
    swerve = lambda token: chance.randrange(VOCAB) if chance.random() < 0.05 else token
    past, siblings = ([list(map(swerve, text)) for _ in range(GROUP)] for _ in range(2))
    loop = [[1] * LENGTH] * GROUP
    rows = {"alike": measure(past, siblings), "loop": measure(loop, loop)}
    out.write_text(json.dumps(rows) + "\n")
    print(json.dumps(rows))


def measure(past: list[list[int]], siblings: list[list[int]]) -> dict[str, float]:
    index = SuffixIndex(longest=7, shortest=3)
    entered = [microseconds(lambda text=text: (index.add(text, 0, 0), index.catch_up())) / LENGTH for text in past]
    running: list[list[int]] = [[] for _ in siblings]
    streams = [index.add(tokens, 0, 0) for tokens in running]
    updates, lookups = [], []
    for place in range(LENGTH):
        for tokens, text in zip(running, siblings, strict=True):
            tokens.append(text[place])
        updates.append(microseconds(lambda: ([index.grew(stream) for stream in streams], index.catch_up())) / GROUP)
        lookups.append(microseconds(lambda: [index.follow(stream, 8) for stream in streams]) / GROUP)
    low = lambda times: round(quantiles(times, n=10)[0], 2)
    return {"past_us": low(entered), "token_us": low(updates), "lookup_us": low(lookups)}


def microseconds(call: Callable[[], object]) -> float:
    began = perf_counter()
    call()
    return (perf_counter() - began) * 1e6


if __name__ == "__main__":
    main(Path(sys.argv[1]))
