"""The device's kernels in plain torch: what runs ahead of the host can be tested where there is no GPU.

The same contract as triton_kernels.py, with the reference's attention and the host's sampler.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from untail.engine.attention.base import Attention
from untail.engine.attention.sdpa import PagedSdpa, Span, make_scratch, packing_order
from untail.engine.blocks import BLOCK, blocks_for
from untail.engine.decode_state import DecodeState
from untail.engine.models.decoder import Decoder
from untail.engine.sampler import draw, uniform


class TorchKernels:
    widest = 8

    def __init__(self, decoder: Decoder):
        self.decoder = decoder

    def warm_up(self, kv: Tensor) -> None:
        """There is nothing to compile."""

    def attention(self, kv: Tensor, slots_T: Tensor, spans: list[Span]) -> Attention:
        return PagedSdpa(kv, make_scratch(kv), slots_T, spans, self.decoder.shape.heads // self.decoder.shape.kv_heads)

    def step(self, kv: Tensor, kept: Tensor | None, state: DecodeState, rows: int, width: int) -> Callable[[], None]:
        def step() -> None:
            logits = self._logits(kv, kept, state, rows, width)
            for token in range(rows * width):
                _draw(state, token, logits[token].float())

        return step

    def _logits(self, kv: Tensor, kept: Tensor | None, state: DecodeState, rows: int, width: int) -> Tensor:
        """Of every token; those that are not alive are not computed."""
        alive = [[t for t in range(row * width, (row + 1) * width) if state.live[t]] for row in range(rows)]
        numbers = [row for row in range(rows) if alive[row]]
        sizes = [(len(alive[row]), int(state.positions[alive[row][0]])) for row in numbers]
        spans, tokens, slots = [], [], []
        for index in packing_order(sizes):
            row, (size, before) = numbers[index], sizes[index]
            table, where = state.tables[row].long(), state.positions[alive[row]]
            spans.append(Span(size, before + size, table[: blocks_for(before + size)].tolist()))
            slots.append(table[where // BLOCK] * BLOCK + where % BLOCK)
            tokens += alive[row]
        out = torch.zeros(rows * width, self.decoder.shape.vocab)
        if tokens:
            attention = self.attention(kv, torch.cat(slots), spans)
            hidden = self.decoder(state.ids[tokens], state.positions[tokens], attention)
            if kept is not None:
                kept.view(-1, hidden.shape[-1])[torch.cat(slots)] = hidden
            out[tokens] = self.decoder.logits(hidden)
        return out


def _draw(state: DecodeState, row: int, logits: Tensor) -> None:
    step = int(state.clock[row])
    state.clock[row] += 1
    if not state.live[row]:
        state.tokens_out[step, row] = -1
        state.figures_out[step, row] = float("nan")
        return
    policy = (logits / state.policy_T[row]).log_softmax(-1)
    temperature = float(state.behaviour_T[row])
    behaviour = (logits / (temperature or 1.0)).log_softmax(-1)
    position = state.positions[row : row + 1] + 1
    drawn = draw(behaviour.exp()[None], uniform(state.streams[row : row + 1], position))[0]
    token = int(drawn) if temperature else int(logits.argmax())
    stops = state.stops[row][state.stops[row] >= 0]
    state.tokens_out[step, row] = token
    state.figures_out[step, row] = torch.stack(
        (
            policy[token],
            behaviour[token] if temperature else torch.zeros(()),
            -(policy.exp() * policy).sum(),
            policy.exp()[stops].sum(),
        )
    )
    state.left[row] -= 1
    if state.left[row] < 1 or token in stops:
        state.live[row] = 0
    else:
        state.ids[row] = token
        state.positions[row] += 1
