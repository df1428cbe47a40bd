"""A trace in which four fifths of the responses end in their first segment: `python first_segment.py OUT.jsonl`.

For a budget of 8,192 tokens, a quarter of which is UloRL's first segment. Of 512 prompts one in five writes 2,048 to
8,192 tokens, uniformly; each of the others up to 1,400, around a median of its own. A prompt is solved with a
probability of its own.
"""

import json
import math
import random
import sys
from pathlib import Path

PROMPTS, RESPONSES = 512, 16
LONG_SHARE, LONG = 0.2, (2048, 8192)
MEDIANS, SPREAD = (300, 1400), 0.25  # of the short ones; SPREAD is that of log(length) within a prompt


def main(out: Path) -> None:
    draws, rows = random.Random(0), []
    for number in range(PROMPTS):
        solved, is_long = draws.random(), draws.random() < LONG_SHARE
        median = MEDIANS[0] * (MEDIANS[1] / MEDIANS[0]) ** draws.random()
        for _ in range(RESPONSES):
            length = draws.uniform(*LONG) if is_long else min(MEDIANS[1], median * math.exp(draws.gauss(0, SPREAD)))
            reward = float(draws.random() < solved)
            rows.append({"prompt": f"p{number}", "length": int(length), "reward": reward})
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
