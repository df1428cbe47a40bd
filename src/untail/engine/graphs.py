"""Decode in CUDA graphs, one for each bucket of rows: several steps in one launch, and the host one launch behind.

Invariant: between two launches the state on the device is what the host last wrote, moved on by what was drawn since;
sampling, figures and stop tests are inside the graph, so the host is asked nothing while a launch runs. A launch's
results are copied out behind it and read while the next one runs. A row that stops in the middle of a launch draws no
more (-1) and writes no keys, so launching further ahead than a row goes is waste, never harm.

Pre: every row has blocks for all the tokens that the launches under way may draw.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from untail.engine.fused import STOPS, DecodeState, FusedStep, PlainStep, can_fuse
from untail.engine.models.decoder import Decoder

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
FUSED_ROWS = 2  # up to these, fused kernels beat a library's products


Step = FusedStep | PlainStep


class Row(NamedTuple):
    """What the device must know of a sequence that decodes."""

    token: int  # its newest, not computed yet
    position: int  # of that token
    stream: int
    left: int  # tokens it may still draw
    blocks: list[int]
    policy_temperature: float = 1.0
    temperature: float = 1.0  # 0: greedy
    stop_ids: tuple[int, ...] = ()


class Drawn(NamedTuple):
    tokens: np.ndarray  # [steps, rows], -1 where a row drew nothing
    figures: np.ndarray  # [steps, rows, 4]: sampler.Figures


class Launch:
    """Steps under way; `wait` for what they drew."""

    def __init__(self, tokens: Tensor, figures: Tensor):
        self._tokens = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=tokens.is_cuda)
        self._figures = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=figures.is_cuda)
        self._tokens.copy_(tokens, non_blocking=True)
        self._figures.copy_(figures, non_blocking=True)
        self._done = torch.cuda.Event() if tokens.is_cuda else None
        if self._done is not None:
            self._done.record()

    def wait(self) -> Drawn:
        if self._done is not None:
            self._done.synchronize()
        drawn = Drawn(self._tokens.numpy(), self._figures.numpy())
        if not np.isfinite(drawn.figures[drawn.tokens >= 0]).all():
            raise FloatingPointError("the model's logits are not finite: its weights have blown up, or were damaged")
        return drawn


class DecodeGraphs:
    def __init__(self, decoder: Decoder, kv: Tensor, max_rows: int, max_context: int, max_steps: int = 8):
        """`kv` is the runner's, at an address that does not change while this lives."""
        self.decoder, self.kv, self.max_steps = decoder, kv, max_steps
        self.buckets = [size for size in BUCKETS if size < max_rows] + [max_rows]
        self.state = DecodeState.make(max_rows, -(-max_context // kv.shape[3]), max_steps, kv.device)
        self.rows = 0
        self.chained = kv.is_cuda and torch.cuda.get_device_capability(kv.device)[0] >= 9
        self._steps: dict[int, Step] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def write(self, rows: list[Row]) -> None:
        """These rows and no others from the next launch on."""
        state, count = self.state, len(rows)
        self.rows = count
        whole = np.zeros((count, 5 + STOPS), dtype=np.int64)
        whole[:, :5] = [(row.token, row.position, row.stream, row.left, 1) for row in rows]
        whole[:, 5:] = [(row.stop_ids + (-1,) * STOPS)[:STOPS] for row in rows]
        temperatures = np.array([(row.policy_temperature, row.temperature) for row in rows], dtype=np.float32)
        tables = np.zeros((count, state.tables.shape[1]), dtype=np.int32)
        for number, row in enumerate(rows):
            tables[number, : len(row.blocks)] = row.blocks
        on_device, scales = self._to_device(whole), self._to_device(temperatures)
        columns = (state.ids, state.positions, state.streams, state.left, state.live)
        for number, column in enumerate(columns):
            column[:count].copy_(on_device[:, number])
        state.live[count:].zero_()
        state.stops[:count].copy_(on_device[:, 5:])
        state.policy_T[:count].copy_(scales[:, 0])
        state.behaviour_T[:count].copy_(scales[:, 1])
        state.tables[:count].copy_(self._to_device(tables))

    def write_tables(self, blocks: list[list[int]]) -> None:
        """New blocks for the rows there are, in their order."""
        tables = np.zeros((len(blocks), self.state.tables.shape[1]), dtype=np.int32)
        for number, row in enumerate(blocks):
            tables[number, : len(row)] = row
        self.state.tables[: len(blocks)].copy_(self._to_device(tables))

    @torch.inference_mode()
    def launch(self, steps: int) -> Launch:
        """Draw `steps` tokens for every row that goes on for so long; returns at once."""
        assert 0 < steps <= self.max_steps
        bucket = next(size for size in self.buckets if size >= self.rows)
        step: Callable[[], None] = self._graph(bucket).replay if self.kv.is_cuda else self._step(bucket)
        self.state.clock.zero_()
        for _ in range(steps):
            step()
        return Launch(self.state.tokens_out[:steps, : self.rows], self.state.figures_out[:steps, : self.rows])

    def _graph(self, bucket: int) -> torch.cuda.CUDAGraph:
        """One step: replayed n times it runs as fast as a graph of n steps, and is captured in an n-th of the time."""
        if bucket not in self._graphs:
            step = self._step(bucket)
            self._compile(step)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            self._graphs[bucket] = graph
        return self._graphs[bucket]

    def _compile(self, step: Step) -> None:
        """A capture must not: so run it once, with no row alive, so that nothing is moved on."""
        alive = self.state.live.clone()
        self.state.live.zero_()
        step()
        self.state.live.copy_(alive)

    def _step(self, bucket: int) -> Step:
        if bucket not in self._steps:
            given = (self.decoder, self.kv, self.state, bucket, self.chained)
            is_fused = bucket <= FUSED_ROWS and can_fuse(self.decoder.shape)
            self._steps[bucket] = FusedStep(*given) if is_fused else PlainStep(*given)
        return self._steps[bucket]

    def _to_device(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self.kv.device, non_blocking=True) if self.kv.is_cuda else tensor
