"""How soon the drafter's trainer gives the device back: `python benchmarks/spot.py OUT.json [MODEL...]`.

It trains as on idle time, and is asked to stop at random moments; the wait is until the slice that runs is over or
given up. The first stints, in which it finds out how large a slice may be, do not count. What else the machine had to
do is told with it: on cores that others want, one operation takes as long as they let it.
"""

import json
import os
import sys
import time
from pathlib import Path
from random import Random
from statistics import median

import torch

from untail.bench.draft import passed_over
from untail.draft.adaptive.data import Captures
from untail.draft.adaptive.model import DraftModel
from untail.draft.adaptive.spot import Spot
from untail.engine.models.load import load_model

STINTS, FIRST, RESPONSES, LENGTH = 60, 20, 8, 512


def waits_of(model: str) -> list[float]:
    target, random = load_model(model, "cpu").decoder, Random(0)
    data = Captures(65536)
    for _ in range(RESPONSES):
        tokens = [random.randrange(target.shape.vocab) for _ in range(LENGTH)]
        data.hear(*passed_over(target, tuple(tokens[:32]), tuple(tokens[32:])))
    spot = Spot(target, DraftModel(target.shape, "cpu", torch.float32).initialise(), data, lr=1e-3, test_steps=2)
    spot.head.see(torch.randint(target.shape.vocab, (4096,)))
    spot.head.refresh()
    spot.start()
    waits = []
    for stint in range(STINTS):
        spot.allow()
        time.sleep(0.1 + 0.3 * random.random())
        asked = time.perf_counter()
        spot.pause()
        spot.wait()
        if stint >= FIRST:
            waits.append(time.perf_counter() - asked)
    print(f"{model}: {spot.slices} slices, the last of {spot.size} tokens")
    spot.close()
    return waits


def main(out: Path, models: list[str]) -> None:
    rows = []
    for model in models:
        waits = waits_of(model)
        rows.append({"model": model, "median_ms": 1000 * median(waits), "most_ms": 1000 * max(waits), "n": len(waits)})
        print(rows[-1])
    out.write_text(json.dumps({"cores": os.cpu_count(), "load": os.getloadavg()[0], "rows": rows}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or ["tiny", "smollm2"])
