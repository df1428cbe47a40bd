"""What one segment boundary costs: the figures in `BOUNDARY_S` of src/untail/backends/sim_device.py.

A batch of sequences gets the same tokens once in one stride and once in short ones, in turn. What the second takes
longer, divided by all its boundaries, is what a boundary costs: telling the caller, hearing back, taking the sequence
up again, and whatever is computed anew. For the native engine a boundary is `extend`; for vLLM it is a new request over
the cached prefix. Both are driven through asyncio, and each hands out a whole stride at a time.

Runs and strides are short: only so do native boundaries rise above the noise of a machine that others use. What those
others do only adds, so either side counts as its 10 % quantile; the median of the differences is given beside it.

    OMP_NUM_THREADS=1 nice -n 10 python benchmarks/boundary.py --backend native,vllm | tail -1

vLLM on a CPU wants an environment of its own, with this package's src in PYTHONPATH.
"""

import argparse
import asyncio
import importlib.util
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from statistics import median, quantiles

from untail.engine.models.sources import find_model

TOKENS = 64
STRIDE = 2
PROMPTS = range(16, 48, 4)  # one length per sequence: where a prefix ends within a KV block is spread evenly
BOUNDARIES = len(PROMPTS) * (TOKENS // STRIDE - 1)

Grow = Callable[[list[int], int], Awaitable[int]]
"""Generates TOKENS more after a prompt, so many in a stride; how many there were."""


@asynccontextmanager
async def native() -> AsyncIterator[Grow]:
    from untail.backends.native import NativeBackend
    from untail.config import EngineConfig
    from untail.engine.engine import Engine
    from untail.engine.models.load import load_model
    from untail.types import SequenceSpec

    backend = NativeBackend(Engine(load_model("tiny", "cpu", "float32").decoder, EngineConfig()))
    numbers = count()

    async def grow(prompt: list[int], stride: int) -> int:
        made, number = 0, next(numbers)
        name = str(number)
        async for chunk in backend.generate(SequenceSpec(name, tuple(prompt), stride, number, chunk=stride)):
            made += len(chunk.tokens)
            if made < TOKENS:
                await backend.extend(name, stride)
            else:
                await backend.release(name)
        return made

    yield grow
    await backend.close()


@asynccontextmanager
async def vllm() -> AsyncIterator[Grow]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    arguments = AsyncEngineArgs(
        model=str(find_model("tiny").folder),
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        enable_prefix_caching=True,
        skip_tokenizer_init=True,
        distributed_executor_backend="uni",
    )
    engine = AsyncLLM.from_engine_args(arguments)
    numbers = count()

    async def grow(prompt: list[int], stride: int) -> int:
        tokens = list(prompt)
        sampling = SamplingParams(
            max_tokens=stride, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        while len(tokens) < len(prompt) + TOKENS:
            async for output in engine.generate({"prompt_token_ids": tokens}, sampling, str(next(numbers))):
                tokens = tokens + list(output.outputs[0].token_ids)
        return len(tokens) - len(prompt)

    yield grow
    engine.shutdown()


BACKENDS: dict[str, Callable[[], AbstractAsyncContextManager[Grow]]] = {"native": native, "vllm": vllm}


async def measure(backend: str, rounds: int) -> dict[str, float]:
    plain, segments = [], []
    async with BACKENDS[backend]() as grow:
        for stride in (TOKENS, STRIDE):  # to warm up
            await seconds(grow, stride)
        for _ in range(rounds):
            plain.append(await seconds(grow, TOKENS))
            segments.append(await seconds(grow, STRIDE))
    fast_plain, fast_segments = (quantiles(side, n=10)[0] for side in (plain, segments))
    found = {
        "plain_s": fast_plain,
        "segments_s": fast_segments,
        "boundary_s": (fast_segments - fast_plain) / BOUNDARIES,
        "boundary_s_median": median(b - a for a, b in zip(plain, segments, strict=True)) / BOUNDARIES,
    }
    return {"rounds": rounds} | {name: round(value, 7) for name, value in found.items()}


async def seconds(grow: Grow, stride: int) -> float:
    """Fresh prompts each time: no prefix but a sequence's own is ever found."""
    prompts = [[random.randrange(2, 256) for _ in range(length)] for length in PROMPTS]
    start = time.perf_counter()
    made = await asyncio.gather(*(grow(prompt, stride) for prompt in prompts))
    taken = time.perf_counter() - start
    assert made == [TOKENS] * len(PROMPTS), made
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds that one segment boundary costs.")
    parser.add_argument("--backend", default="native,vllm", help="native, vllm, or both")
    parser.add_argument("--rounds", type=int, default=150, help="runs of either kind, in turn")
    arguments = parser.parse_args()
    names = arguments.backend.split(",")
    if unknown := set(names) - set(BACKENDS):
        parser.error(f"unknown backend {', '.join(sorted(unknown))}; there are native and vllm")
    if "vllm" in names and importlib.util.find_spec("vllm") is None:
        print("vllm is not installed here; install it, or measure --backend native", file=sys.stderr)
        sys.exit(2)
    setting = {"sequences": len(PROMPTS), "tokens": TOKENS, "stride": STRIDE, "boundaries": BOUNDARIES}
    print(json.dumps({name: {**setting, **asyncio.run(measure(name, arguments.rounds))} for name in names}))


if __name__ == "__main__":
    main()
