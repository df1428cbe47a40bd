"""What decode steps on the device read and move on: a row for each sequence that decodes there.

Invariant: between two steps a row is what the host last wrote, moved on by what was drawn since. A row that stops (its
stop id, its budget) draws no more and writes no keys until the host writes it anew, so running further ahead than a row
goes is waste, never harm. Everything here is queued behind the steps already sent: the host waits for nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from untail.engine.sequence import STOPS, Sequence


class Row(NamedTuple):
    """What the device must know of a sequence that decodes."""

    token: int  # its newest, not computed yet
    position: int  # of that token
    stream: int
    left: int  # tokens it may still draw; 0: the row is padding
    blocks: list[int]
    policy_temperature: float = 1.0
    temperature: float = 1.0  # 0: greedy
    stop_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, sequence: Sequence, left: int) -> "Row":
        """Pre: it wants one token, and the device can draw for it."""
        spec = sequence.spec
        return cls(
            sequence.tokens[-1], len(sequence.tokens) - 1, spec.stream, left, sequence.blocks,
            spec.sampling.policy_temperature, spec.sampling.temperature, spec.sampling.stop_ids,
        )  # fmt: skip


PADDING = Row(0, 0, 0, 0, [])


@dataclass
class DecodeState:
    ids: Tensor  # int64: the newest token, not computed yet
    positions: Tensor  # int64: its position
    tables: Tensor  # int32 [rows, blocks]
    streams: Tensor  # int64
    policy_T: Tensor
    behaviour_T: Tensor  # 0: greedy
    stops: Tensor  # int64 [rows, STOPS], -1 where there is none
    left: Tensor  # int32: tokens it may still draw
    live: Tensor  # int32: 0 is a row that is padding, or has stopped
    clock: Tensor  # int32: steps since the host began a launch
    tokens_out: Tensor  # int64 [steps, rows], -1 where a row drew nothing
    figures_out: Tensor  # float32 [steps, rows, 4]: sequence.Figures

    @classmethod
    def make(cls, rows: int, blocks: int, steps: int, device: torch.device | str) -> "DecodeState":
        zeros = lambda *size, dtype=torch.int64: torch.zeros(size, dtype=dtype, device=device)
        ones = lambda *size: torch.ones(size, device=device)
        return cls(
            zeros(rows), zeros(rows), zeros(rows, blocks, dtype=torch.int32), zeros(rows), ones(rows), ones(rows),
            zeros(rows, STOPS) - 1, zeros(rows, dtype=torch.int32), zeros(rows, dtype=torch.int32),
            zeros(rows, dtype=torch.int32), zeros(steps, rows), zeros(steps, rows, 4, dtype=torch.float32),
        )  # fmt: skip

    def write(self, rows: Mapping[int, Row]) -> None:
        """These rows by their numbers; the others stay as they are."""
        whole = np.full((len(rows), 6 + STOPS), -1, dtype=np.int64)
        scales = np.empty((len(rows), 2), dtype=np.float32)
        for at, (number, row) in enumerate(rows.items()):
            whole[at, :6] = number, row.token, row.position, row.stream, row.left, row.left > 0
            whole[at, 6 : 6 + len(row.stop_ids)] = row.stop_ids
            scales[at] = row.policy_temperature, row.temperature
        given, scales_given = self._to_device(whole), self._to_device(scales)
        where = given[:, 0]
        columns = (self.ids, self.positions, self.streams, self.left, self.live)
        for number, column in enumerate(columns, 1):
            column.index_copy_(0, where, given[:, number].to(column.dtype))
        self.stops.index_copy_(0, where, given[:, 6:])
        self.policy_T.index_copy_(0, where, scales_given[:, 0])
        self.behaviour_T.index_copy_(0, where, scales_given[:, 1])
        self.write_tables({number: row.blocks for number, row in rows.items()})

    def write_tables(self, blocks: Mapping[int, list[int]]) -> None:
        """The whole tables of these rows."""
        width = max(1, *map(len, blocks.values()))
        tables = np.zeros((len(blocks), width), dtype=np.int32)
        for at, own in enumerate(blocks.values()):
            tables[at, : len(own)] = own
        where = self._to_device(np.fromiter(blocks, dtype=np.int64, count=len(blocks)))
        self.tables[:, :width].index_copy_(0, where, self._to_device(tables))

    def write_blocks(self, changes: list[tuple[int, int, int]]) -> None:
        """Single entries of tables: (row, place, block)."""
        given = self._to_device(np.asarray(changes, dtype=np.int64))
        places = given[:, 0] * self.tables.shape[1] + given[:, 1]
        self.tables.view(-1).index_copy_(0, places, given[:, 2].int())

    def _to_device(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(self.ids.device, non_blocking=True) if self.ids.is_cuda else tensor
