"""Decode steps in CUDA graphs, one for each bucket of rows: several steps in one launch, results copied out behind it.

Invariant: sampling, figures and stop tests are inside a step, so that the host is asked nothing while a launch runs; it
reads a launch's results when it likes, while the next one runs. Weights and keys are read at their own addresses: an
update in place needs no new capture, another KV tensor needs other graphs.

Pre: every row has blocks for all the tokens that the launches under way may draw.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from untail.engine.decode_state import DecodeState
from untail.engine.sampler import NOT_FINITE

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

Step = Callable[[], None]
MakeStep = Callable[[int, int], Step]
"""A step for so many rows of so many tokens each."""


class Drawn(NamedTuple):
    tokens: np.ndarray  # [steps, rows], -1 where a row drew nothing
    figures: np.ndarray  # [steps, rows, 4]: sequence.Figures
    seconds: float  # on the device


class Clock:
    """When something began and ended on the device."""

    def __init__(self, on_gpu: bool):
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if on_gpu else []
        self._times: list[float] = []

    def mark(self) -> None:
        """Begin, and then end."""
        if self._events:
            self._events[len(self._times)].record()
        self._times.append(time.perf_counter())

    def wait(self) -> float:
        """For the end; the seconds in between."""
        if not self._events:
            return self._times[1] - self._times[0]
        self._events[1].synchronize()
        return self._events[0].elapsed_time(self._events[1]) / 1e3


class Launch:
    """Steps under way; `wait` for what they drew."""

    def __init__(self, tokens: Tensor, figures: Tensor, clock: Clock):
        self._tokens = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=tokens.is_cuda)
        self._figures = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=figures.is_cuda)
        self._tokens.copy_(tokens, non_blocking=True)
        self._figures.copy_(figures, non_blocking=True)
        self._clock = clock
        clock.mark()

    def wait(self) -> Drawn:
        seconds = self._clock.wait()
        drawn = Drawn(self._tokens.numpy(), self._figures.numpy(), seconds)
        if not np.isfinite(drawn.figures[drawn.tokens >= 0]).all():
            raise FloatingPointError(NOT_FINITE)
        return drawn


class DecodeGraphs:
    def __init__(self, state: DecodeState, make_step: MakeStep):
        self.state = state
        self._make_step = make_step
        self._steps: dict[tuple[int, int], Step] = {}
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
        self._memory = torch.cuda.graph_pool_handle() if state.ids.is_cuda else None

    @torch.inference_mode()
    def launch(self, rows: int, steps: int = 1, width: int = 1) -> Launch:
        """For the first `rows` rows, a bucket's size, `width` tokens each; returns at once."""
        state, key = self.state, (rows, width)
        assert 0 < steps <= state.tokens_out.shape[0]
        step = self._graph(key).replay if state.ids.is_cuda else self._step(key)
        clock = Clock(state.ids.is_cuda)
        clock.mark()
        state.clock.zero_()
        for _ in range(steps):
            step()
        return Launch(state.tokens_out[:steps, : rows * width], state.figures_out[:steps, : rows * width], clock)

    @torch.inference_mode()
    def capture(self, rows: int, width: int = 1) -> None:
        """Now, if there are graphs here, so that no launch of so many rows and so wide has to."""
        if self.state.ids.is_cuda:
            self._graph((rows, width))

    def _graph(self, key: tuple[int, int]) -> torch.cuda.CUDAGraph:
        """One step: replayed n times it runs as fast as a graph of n steps, and is captured in an n-th of the time."""
        if key not in self._graphs:
            step = self._step(key)
            self._compile(step)
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the GPU meanwhile: a learner's, a drafter's.
            with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
                step()
            self._graphs[key] = graph
        return self._graphs[key]

    def _compile(self, step: Step) -> None:
        """A capture must not: so run it once, with no row alive, so that nothing is moved on."""
        alive = self.state.live.clone()
        self.state.live.zero_()
        step()
        self.state.live.copy_(alive)

    def _step(self, key: tuple[int, int]) -> Step:
        if key not in self._steps:
            self._steps[key] = self._make_step(*key)
        return self._steps[key]


def buckets_up_to(most: int) -> list[int]:
    return [size for size in BUCKETS if size < most] + [most]
