"""How many tokens a pass may hold: measured on the passes that were made, and less where memory ran out.

Invariant: running out of memory loses nothing. What the passes had gathered so far is undone, the micro-batch that was
too large and all as large as it are cut in two (one that is a single sequence recomputes its activations instead), and
the passes are made again. What did not fit is not tried again before there is clearly more room. On a CPU nothing is
measured: passes hold `FIRST` tokens unless the recipe says otherwise.

need(T), the bytes of a pass of T tokens with its gradient, is the line through the smallest and the largest pass that
were measured; before there are two of different size it is proportional to T, which is too much for larger passes:
  tokens of a pass = the most with need(T) <= 0.9 free, at most LARGEST: beyond that a GPU gains nothing
  a micro-batch of T tokens is recomputed where need(T) > 0.9 free, by the line alone
"""

import gc
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch

from untail.config import LearnConfig
from untail.errors import UserError
from untail.learn.pack import MicroBatch, halves, pack
from untail.learn.ranks import Ranks
from untail.learn.sample import Sample

FIRST = 4096
LARGEST = 32768
AMPLE = 8192  # a GPU computes at nearly its full speed from here on
MARGIN = 0.9  # the rest is lost to fragments
ROOMIER = 1.2


class Gauge(Protocol):
    """Bytes of a device's memory."""

    def free(self) -> int: ...
    def begin(self) -> None: ...
    def peak(self) -> int:
        """The most that was taken since it was last asked for, above what was taken at `begin`."""
        ...


class CudaGauge:
    def __init__(self, device: torch.device):
        self._device = device
        self._before = 0

    def free(self) -> int:
        """What nobody has, and what torch holds without using it."""
        held = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return torch.cuda.mem_get_info(self._device)[0] + held

    def begin(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        most = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        return most - self._before


def gauge_of(device: torch.device) -> Gauge | None:
    return CudaGauge(device) if device.type == "cuda" else None


@dataclass(frozen=True, slots=True)
class Limit:
    """More than `tokens` ran out of memory when `free` bytes were there."""

    tokens: int
    free: int


class Line:
    """Bytes against tokens of the passes that were measured."""

    def __init__(self) -> None:
        self.smallest: tuple[int, int] | None = None
        self.largest: tuple[int, int] | None = None

    def note(self, tokens: int, needed: int) -> None:
        if self.smallest is None or tokens <= self.smallest[0]:
            self.smallest = (tokens, needed)
        if self.largest is None or tokens >= self.largest[0]:
            self.largest = (tokens, needed)

    @property
    def slope(self) -> float | None:
        """Bytes of a token more; not from two points that are close together."""
        if self.smallest is None or self.largest is None:
            return None
        (few, little), (many, much) = self.smallest, self.largest
        return (much - little) / (many - few) if many >= 1.5 * few and much > little else None

    def need(self, tokens: int) -> float:
        """0 where nothing was measured."""
        if self.largest is None:
            return 0.0
        many, much = self.largest
        return much / many * tokens if self.slope is None else max(0.0, much + self.slope * (tokens - many))

    def tokens(self, room: float) -> int:
        """The most that need no more than `room`."""
        assert self.largest is not None
        many, much = self.largest
        return int(room * many / max(much, 1) if self.slope is None else many + (room - much) / self.slope)


class Memory:
    def __init__(self, config: LearnConfig, gauge: Gauge | None, ranks: Ranks):
        self.ranks = ranks
        self._config = config
        self._gauge = gauge
        self._line = Line()
        self._most: Limit | None = None  # tokens of a pass of several sequences
        self._most_kept: Limit | None = None  # tokens of a sequence whose activations are kept
        self._free = 0  # when the passes under way began
        self.passes = 0  # that were made with the policy's gradient

    @property
    def wanted(self) -> int:
        """Bytes that the next update would like to have free: all, where nothing was measured yet or memory ran out."""
        if self._line.largest is None or self._holds(self._most) or self._holds(self._most_kept):
            return sys.maxsize
        asked = self._config.micro_batch_tokens
        return int(self._line.need(AMPLE if asked == "auto" else asked) / MARGIN)

    @property
    def token_budget(self) -> int:
        """Of the next micro-batches."""
        asked = self._config.micro_batch_tokens
        wanted = self._measured_tokens() if asked == "auto" else asked
        return min(wanted, self._most.tokens) if self._most is not None and self._holds(self._most) else wanted

    def _measured_tokens(self) -> int:
        if self._gauge is None or self._line.largest is None:
            return FIRST
        return max(1, min(LARGEST, self._line.tokens(MARGIN * self._gauge.free())))

    def recomputes(self, tokens: int) -> bool:
        """Whether a micro-batch of so many tokens has to compute its activations twice."""
        if self._config.recompute != "auto":
            return self._config.recompute
        if self._most_kept is not None and self._holds(self._most_kept) and tokens > self._most_kept.tokens:
            return True
        if self._gauge is None or self._line.slope is None:
            return False
        return self._line.need(tokens) > MARGIN * self._gauge.free()

    def pack(
        self, samples: Iterable[Sample], device: torch.device, dtype: torch.dtype, version: int = 0
    ) -> list[MicroBatch]:
        micros = pack(samples, self.token_budget, device, dtype, version)
        for micro in micros:
            micro.recompute = self.recomputes(micro.tokens)
        return micros

    def run(
        self,
        micros: list[MicroBatch],
        work: Callable[[MicroBatch], None],
        undo: Callable[[], None],
        measure: bool = False,
    ) -> None:
        """`work` on every micro-batch in turn. Where memory runs out, `undo` takes back what was done, `micros` are cut
        smaller, in place, and it begins again. `measure`: these passes have the policy's gradient."""
        while (failure := self._try(micros, work, measure)) is not None:
            undo()
            micros[:] = self._smaller(micros, *failure)
            gc.collect()
            if self._gauge is not None:
                torch.cuda.empty_cache()
        self.passes += len(micros) if measure else 0

    def _try(
        self, micros: list[MicroBatch], work: Callable[[MicroBatch], None], measure: bool
    ) -> tuple[MicroBatch, str] | None:
        """The micro-batch that ran out of memory and what torch said. Not the error itself: its traceback would keep
        the pass's tensors alive."""
        if self._gauge is not None:
            self._free = self._gauge.free()
            self._gauge.begin()
        for number, micro in enumerate(micros):
            try:
                work(micro)
            except RuntimeError as error:
                if not ran_out(error):
                    raise
                reason = str(error).splitlines()[0]
                if self.ranks.world > 1:
                    raise self._lost(micro, reason) from error
                return micro, reason
            if measure and self._gauge is not None and not micro.recompute:
                peak = self._gauge.peak()
                # While the first is computed, the memory of the gradients is not taken yet.
                if number > 0 or self._line.largest is None:
                    self._line.note(micro.tokens, peak)
        return None

    def _lost(self, micro: MicroBatch, reason: str) -> UserError:
        """The other ranks are in the middle of a pass that this one cannot finish: nobody can begin again."""
        return UserError(
            f"rank {self.ranks.rank} of {self.ranks.world} ran out of memory in a pass of {micro.tokens} tokens "
            f"({reason}); set learn.micro_batch_tokens below that, learn.recompute to true, or use more ranks"
        )

    def _smaller(self, micros: list[MicroBatch], failed: MicroBatch, reason: str) -> list[MicroBatch]:
        if len(failed.samples) > 1:
            self._most = Limit(max(1, failed.tokens // 2), self._free)
        elif self._config.recompute == "auto" and not failed.recompute:
            self._most_kept = Limit(failed.tokens - 1, self._free)
        else:
            advice = "" if failed.recompute else "set learn.recompute to 'auto', "
            raise UserError(
                f"the update ran out of memory on one sequence of {failed.tokens} tokens ({reason}); {advice}lower "
                "rollout.max_tokens, learn.logit_rows or engine.kv_gib, or use a larger GPU"
            )
        smaller = []
        for micro in micros:
            parts = halves(micro) if len(micro.samples) > 1 and micro.tokens >= failed.tokens else [micro]
            for part in parts:
                part.recompute = part.recompute or self.recomputes(part.tokens)
            smaller += parts
        return smaller

    def _holds(self, limit: "Limit | None") -> bool:
        """Not where there is clearly more room than there was."""
        return limit is not None and (self._gauge is None or self._gauge.free() < ROOMIER * limit.free)


def ran_out(error: RuntimeError) -> bool:
    """Of memory: on a GPU in torch, in cuBLAS or in Triton, or on a CPU."""
    said = ("CUBLAS_STATUS_ALLOC_FAILED", "Triton Error [CUDA]: out of memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in said)
