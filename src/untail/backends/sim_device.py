"""The simulated device: how long a step takes, what the KV pool holds, what a segment boundary costs."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from untail.config import NotNegative, PositiveFloat, PositiveInt, Strict

DEEPEST = 16  # drafts of a sequence in one step
# Seconds that one segment boundary costs. benchmarks/boundary.py measured them on a CPU with the tiny model, where host
# overhead dominates.
BOUNDARY_S = {"native": 0.000029, "vllm": 0.00096}


class SimConfig(Strict):
    """The device. The defaults are modelled on a 7B model in bf16 on an H200-like GPU; they are not a measurement."""

    slots: PositiveInt = 256  # sequences that run at once; the others wait in order
    step_ms_base: PositiveFloat = 5.0  # tau(b) = base + per_seq * b
    step_ms_per_seq: NotNegative = 0.02
    # (rows, milliseconds) that were measured: between them tau is linear, outside it is the nearest; they win over the
    # line above.
    step_points_ms: tuple[tuple[PositiveFloat, PositiveFloat], ...] = ()
    prefill_tokens_per_s: PositiveFloat = 20000.0
    kv_tokens: PositiveInt = 2_000_000  # what the KV pool holds (110 GB at 56 kB a token); siblings share nothing of it
    kv_after_update: Literal["recompute", "keep"] = "recompute"
    imitates: Literal["native", "vllm"] = "native"  # whose segment boundaries are paid for
    acceptance: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of drafts; 0: nobody drafts

    def step_seconds(self, batch: int) -> float:
        """Of one token for each. With drafts, as many as pay (7.7): g drafts each make a step of (g + 1) x batch rows,
        which gives each (1 - a^(g + 1)) / (1 - a) tokens."""
        a = self.acceptance
        deepest = DEEPEST if a else 0
        return min(self._rows_s(batch * (g + 1)) * (1 - a) / (1 - a ** (g + 1)) for g in range(deepest + 1))

    def _rows_s(self, rows: int) -> float:
        if self.step_points_ms:
            batches, times = zip(*sorted(self.step_points_ms), strict=True)
            return float(np.interp(rows, batches, times)) / 1000
        return (self.step_ms_base + self.step_ms_per_seq * rows) / 1000
