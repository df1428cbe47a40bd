"""What the host does while sequences decode: which calls wait for the GPU, and how long the GPU waits for the host.

python benchmarks/h200/steady.py 135m 64      (model, sequences)
"""

import json
import sys
from collections import Counter

import torch
from models import SHAPES, random_decoder
from torch.profiler import ProfilerActivity, profile

from untail.config import EngineConfig
from untail.engine.engine import Engine
from untail.types import SequenceSpec

LAUNCHES = 20


def main(model: str, rows: int) -> None:
    engine = Engine(random_decoder(SHAPES[model]), EngineConfig(max_seqs=rows, kv_gib=8, context=4096))
    for number in range(rows):
        engine.add(SequenceSpec(str(number), tuple(range(128)), 2000, number, chunk=64))
    for _ in range(10):
        engine.step()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        for _ in range(LAUNCHES):
            engine.step()
    torch.cuda.synchronize()
    events = seen.events()
    waits = Counter(event.name for event in events if "Synchronize" in event.name)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    end, idle = spans[0][0], 0.0
    for begin, until in spans:
        idle += max(0.0, begin - end)
        end = max(end, until)
    row = {
        "model": model,
        "rows": rows,
        "launches": LAUNCHES,
        "calls that wait": dict(waits),
        "gpu idle share": idle / (end - spans[0][0]),
    }
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
