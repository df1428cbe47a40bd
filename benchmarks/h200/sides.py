"""Two engines behind one line: `python sides.py ours|vllm MODEL` reads names of workloads and answers in JSON lines.

Each lives in a process of its own, loaded and warm, and does nothing while the other is measured.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from models import SHAPES
from work import Work, workloads

CONTEXT, SEQUENCES, BATCH_TOKENS = 8192, 512, 16384
KV_GIB = {"135m": 8.0, "1.5b": 10.0, "7b": 20.0}  # holds every workload at once


class Side(Protocol):
    def generate(self, work: Work) -> list[int]:
        """How many tokens each sequence got."""
        ...


class Ours:
    def __init__(self, model: str):
        from models import random_decoder

        from untail.config import EngineConfig
        from untail.engine.engine import Engine
        from untail.engine.graphs import BUCKETS

        config = EngineConfig(max_seqs=SEQUENCES, max_batch_tokens=BATCH_TOKENS, kv_gib=KV_GIB[model], context=CONTEXT)
        self.engine = Engine(random_decoder(SHAPES[model]), config)
        # Every graph is captured once: sequence n runs while the bucket is larger than n.
        lengths = [17 * sum(bucket > number for bucket in BUCKETS) for number in range(SEQUENCES)]
        self.generate(Work([[7] * 128] * SEQUENCES, lengths, True))
        self.generate(Work([[9] * 128], [40], True))  # a prompt alone has kernels of its own

    def generate(self, work: Work) -> list[int]:
        from untail.types import SequenceSpec

        engine = self.engine
        for number, (prompt, length) in enumerate(zip(work.prompts, work.lengths, strict=True)):
            engine.add(SequenceSpec(str(number), tuple(prompt), length, number))
        made: dict[str, list[Any]] = {str(number): [] for number in range(len(work.prompts))}
        while engine.has_work:
            for name, chunk in engine.step():
                made[name].append(chunk)
                if chunk.end == "boundary":
                    engine.release(name)
        return [sum(len(chunk.tokens) for chunk in chunks) for chunks in made.values()]


class Vllm:
    def __init__(self, model: str):
        os.environ |= {
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
        }
        from vllm import LLM

        folder = Path(tempfile.mkdtemp(prefix=f"{model}-"))
        (folder / "config.json").write_text(json.dumps(SHAPES[model].to_hf()))
        self.llm = LLM(
            model=str(folder), load_format="dummy", dtype="bfloat16", skip_tokenizer_init=True, max_model_len=CONTEXT,
            max_num_seqs=SEQUENCES, max_num_batched_tokens=BATCH_TOKENS, enable_prefix_caching=True, seed=0,
            kv_cache_memory_bytes=int(KV_GIB[model] * 2**30), gpu_memory_utilization=0.1,
        )  # fmt: skip
        self.generate(workloads(SHAPES[model].vocab)["warm"])

    def generate(self, work: Work) -> list[int]:
        from vllm import SamplingParams

        params = [
            SamplingParams(
                temperature=1.0, max_tokens=length, ignore_eos=True, detokenize=False,
                logprobs=0 if work.logprobs else None,
            )
            for length in work.lengths
        ]  # fmt: skip
        outputs = self.llm.generate([{"prompt_token_ids": p} for p in work.prompts], params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]


def serve(side: Side, model: str) -> None:
    works = workloads(SHAPES[model].vocab)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        work = works[line.strip()]
        began = time.perf_counter()
        tokens = side.generate(work)
        seconds = time.perf_counter() - began
        if tokens != work.lengths:
            raise AssertionError(f"{line.strip()}: an engine made other lengths than it was asked for")
        print(json.dumps({"tokens": sum(tokens), "seconds": seconds, "tok_s": sum(tokens) / seconds}), flush=True)


if __name__ == "__main__":
    serve({"ours": Ours, "vllm": Vllm}[sys.argv[1]](sys.argv[2]), sys.argv[2])
