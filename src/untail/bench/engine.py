"""Ours against its peers on identical work: interleaved, median of several runs."""

import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import torch

from untail.bench.engines import BenchEngine, Untail, transformers_engines
from untail.bench.workloads import Workload
from untail.config import EngineConfig
from untail.engine.engine import Engine
from untail.engine.models.decoder import Decoder
from untail.engine.models.shape import Shape
from untail.errors import UserError, nearest
from untail.types import SequenceSpec

PEERS: dict[str, Callable[[Decoder], list[BenchEngine]]] = {"transformers": transformers_engines}


def make_engines(decoder: Decoder, peers: list[str]) -> list[BenchEngine]:
    engines: list[BenchEngine] = [Untail(decoder)]
    for peer in peers:
        if peer not in PEERS:
            raise UserError(f"unknown peer {peer!r}; {nearest(peer, list(PEERS))}")
        engines += PEERS[peer](decoder)
    return engines


def compare(engines: list[BenchEngine], workload: Workload, runs: int) -> Iterator[tuple[str, float]]:
    """(engine, seconds) for every run, one engine after the other, so that a slow minute hits all alike."""
    warm = Workload("warm-up", workload.prompts[:2], [4] * len(workload.prompts[:2]))
    for engine in engines:
        engine.seconds(warm)
    for _ in range(runs):
        for engine in engines:
            yield engine.name, engine.seconds(workload)


def rows(workload: Workload, timings: dict[str, list[float]]) -> list[dict[str, Any]]:
    """ratio = ours / the peer's, in tokens per second."""
    speed = {name: workload.tokens / median(seconds) for name, seconds in timings.items()}
    return [
        {"workload": workload.name, "engine": name, "tok_s": tok_s, "ratio": speed["untail"] / tok_s}
        for name, tok_s in speed.items()
    ]


def toy_step_milliseconds(steps: int = 300) -> tuple[float, float]:
    """(a whole step, the decoder's forward within it) of a 4-layer toy model at batch 1, median, in milliseconds.

    The difference is the host's overhead: planning, laying out, sampling, delivering.
    """
    shape = Shape(
        "llama", vocab=512, hidden=64, intermediate=128, layers=4, heads=4, kv_heads=2, head_dim=16, context=1024
    )
    decoder = Decoder(shape).initialise(torch.Generator().manual_seed(0))
    engine = Engine(decoder, EngineConfig(kv_blocks=64))
    forwards: list[float] = []
    forward = decoder.forward

    def timed(*args, **kwargs):
        start = time.perf_counter()
        result = forward(*args, **kwargs)
        forwards.append(time.perf_counter() - start)
        return result

    decoder.forward = timed  # type: ignore[method-assign]
    engine.add(SequenceSpec("toy", (1, 2, 3), steps, 0))
    whole = []
    while engine.has_work:
        start = time.perf_counter()
        engine.step()
        whole.append(time.perf_counter() - start)
    return 1e3 * median(whole), 1e3 * median(forwards)
