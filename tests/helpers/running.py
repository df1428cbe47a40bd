"""Drive an engine to its end, collecting each sequence's chunks into one."""

from collections.abc import Callable
from dataclasses import fields

from untail.engine.engine import Engine
from untail.types import Chunk, SamplingParams, SequenceSpec

GREEDY = SamplingParams(temperature=0.0)


def spec(
    name: str, tokens, budget: int = 48, stream: int = 7, sampling: SamplingParams = GREEDY, **more
) -> SequenceSpec:
    return SequenceSpec(name, tuple(tokens), budget, stream, sampling, **more)


def join(into: Chunk, chunk: Chunk) -> None:
    for field in fields(Chunk):
        value = getattr(chunk, field.name)
        if isinstance(value, list):
            getattr(into, field.name).extend(value)
    if chunk.hidden_sum is not None:
        into.hidden_sum = chunk.hidden_sum if into.hidden_sum is None else into.hidden_sum + chunk.hidden_sum
    into.end = chunk.end


def extend_to(engine: Engine, length: int, by: int) -> dict[str, Chunk]:
    """All sequences from boundary to boundary, `by` tokens at a time, until they have so many."""
    results: dict[str, Chunk] = {}
    for _ in range(length // by):
        for name, chunk in finish(engine).items():
            assert chunk.end == "boundary"
            join(results.setdefault(name, Chunk()), chunk)
        if len(results["0"].tokens) < length:
            for name in results:
                engine.extend(name, by)
    return results


def finish(engine: Engine, on_step: Callable[[int, dict[str, Chunk]], None] | None = None) -> dict[str, Chunk]:
    """Step until nothing is left to do; `on_step(number, so_far)` may interfere after each step."""
    results: dict[str, Chunk] = {}
    steps = 0
    while engine.has_work:
        for name, chunk in engine.step():
            join(results.setdefault(name, Chunk()), chunk)
        engine.check_integrity()
        steps += 1
        if on_step is not None:
            on_step(steps, results)
    return results
