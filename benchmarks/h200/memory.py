"""Peak GPU memory against the length of a sequence: a prompt of all but 64 tokens filled in, then decoded to its end.

python benchmarks/h200/memory.py 1.5b [1024 2048 ... 32768]
"""

import json
import sys
from dataclasses import replace

import torch
from models import SHAPES, random_decoder

from untail.config import EngineConfig
from untail.engine.blocks import blocks_for
from untail.engine.engine import Engine
from untail.types import SequenceSpec

SEQUENCES, DECODED = 8, 64


def main(model: str, lengths: list[int]) -> None:
    decoder = random_decoder(replace(SHAPES[model], context=max(lengths)))
    weights = sum(p.numel() * p.element_size() for p in decoder.parameters())
    for length in lengths:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        config = EngineConfig(max_seqs=SEQUENCES, kv_blocks=SEQUENCES * blocks_for(length), context=length)
        engine = Engine(decoder, config)
        for number in range(SEQUENCES):
            prompt = tuple((number + place) % 1000 for place in range(length - DECODED))
            engine.add(SequenceSpec(str(number), prompt, DECODED, number))
        while engine.has_work:
            engine.step()
        kv = engine.runner.kv
        assert kv is not None
        row = {
            "model": model,
            "sequences": SEQUENCES,
            "length": length,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
            "weights_gib": weights / 2**30,
            "kv_gib": kv.numel() * kv.element_size() / 2**30,
        }
        print(json.dumps(row), flush=True)
        del engine, kv


if __name__ == "__main__":
    main(sys.argv[1], [int(length) for length in sys.argv[2:]] or [1024 << step for step in range(6)])
