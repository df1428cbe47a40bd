"""What the drafter learns from: tokens and hidden states of the learner's own pass, kept for a step.

Invariant: at most `bound` tokens are held. Of the step before the present one only the longest responses are, at most
half of the bound: the next step's long ones come in last, and until then the tail is learned from these. When it gets
tight the shortest of the earlier step go first. A window is drawn with a chance in proportion to its response's length.

`hear` comes from the learner's thread and `draw` from the trainer's.
"""

import threading
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor


class Packed(Protocol):
    """What `hear` reads of a micro-batch (learn/pack.py)."""

    lengths: list[int]
    ids_T: Tensor
    unrolled_U: Tensor
    predictor_R: Tensor


class Capture(NamedTuple):
    """The tokens of one response with its prompt, from position `first` on, and the target's hidden state of each.
    Rows from `taught` on (counted from `first`) predict the response."""

    first: int
    taught: int
    ids_N: Tensor
    hidden_ND: Tensor

    @property
    def rows(self) -> int:
        """Positions whose next token and next hidden state are known."""
        return len(self.ids_N) - 1


class Windows(NamedTuple):
    """Stretches of captures, packed end to end. A row is a position: its hidden state, the token after it, and the
    hidden state after it, which is to be guessed."""

    lengths: list[int]
    next_ids_T: Tensor
    hidden_TD: Tensor
    wanted_TD: Tensor
    positions_T: Tensor
    is_taught_T: Tensor


class Captures:
    def __init__(self, bound: int, window: int = 4096):
        self.bound = bound
        self.window = window
        self.left_out = 0  # responses that the learner's pass had no whole hidden states of
        self._present: list[Capture] = []
        self._earlier: list[Capture] = []
        self._step_over = False
        self._lock = threading.Lock()

    @property
    def tokens(self) -> int:
        return sum(len(capture.ids_N) for capture in (*self._present, *self._earlier))

    def hear(self, micro: Packed, hidden_TD: Tensor) -> None:
        """A micro-batch and the hidden states of its tokens, of the first ones if the last are constants."""
        ends = np.cumsum(micro.lengths)[:-1]
        places = np.split(micro.unrolled_U.cpu().numpy(), ends)
        marks = np.split(np.isin(np.concatenate(places), micro.predictor_R.cpu().numpy()), ends)
        captures = []
        for index_N, place_N, marks_N in zip(micro.unrolled_U.split(micro.lengths), places, marks, strict=True):
            if place_N.max() >= len(hidden_TD):
                self.left_out += 1
                continue
            index_N, taught = index_N[-self.bound :], int(marks_N[-self.bound :].argmax())
            first = len(place_N) - len(index_N)
            captures.append(Capture(first, taught, micro.ids_T[index_N], hidden_TD[index_N].detach()))
        with self._lock:
            self._take(captures)

    def end_step(self) -> None:
        """The update is over: what is heard next belongs to another step."""
        self._step_over = True

    def draw(self, tokens: int, lead: int, random: np.random.Generator) -> Windows | None:
        """Windows of about so many tokens, if there are responses; each has a row that is taught after `lead` rows."""
        with self._lock:
            everything = *self._earlier, *self._present
        pool = [capture for capture in everything if capture.rows > max(capture.taught, lead)]
        if not pool:
            return None
        weights = np.array([capture.rows for capture in pool], dtype=np.float64)
        drawn: list[tuple[Capture, slice]] = []
        missing = tokens
        while missing > lead or not drawn:
            capture = pool[random.choice(len(pool), p=weights / weights.sum())]
            rows = _stretch(capture, max(lead + 1, min(missing, self.window)), random)
            drawn.append((capture, rows))
            missing -= rows.stop - rows.start
        return _pack(drawn)

    def _take(self, captures: list[Capture]) -> None:
        if self._step_over and captures:
            self._earlier, self._present, self._step_over = _longest(self._present, self.bound // 2), [], False
        self._present += captures
        over = self.tokens - self.bound
        while over > 0:
            pool = self._earlier or self._present
            shortest = min(range(len(pool)), key=lambda number: len(pool[number].ids_N))
            over -= len(pool.pop(shortest).ids_N)


def _longest(captures: list[Capture], bound: int) -> list[Capture]:
    kept: list[Capture] = []
    for capture in sorted(captures, key=lambda capture: -len(capture.ids_N)):
        bound -= len(capture.ids_N)
        if bound < 0:
            break
        kept.append(capture)
    return kept


def _stretch(capture: Capture, size: int, random: np.random.Generator) -> slice:
    """Rows of a capture, all of them if they fit; else from somewhere in the response, or from the prompt's end on."""
    if capture.rows <= size:
        return slice(0, capture.rows)
    last = capture.rows - size
    first = min(max(0, capture.taught - size // 2), last)
    begin = int(random.integers(first, last + 1))
    return slice(begin, begin + size)


def _pack(drawn: list[tuple[Capture, slice]]) -> Windows:
    device = drawn[0][0].ids_N.device
    later = lambda rows: slice(rows.start + 1, rows.stop + 1)
    numbers = [torch.arange(rows.start, rows.stop, device=device) for _, rows in drawn]
    return Windows(
        lengths=[len(own) for own in numbers],
        next_ids_T=torch.cat([capture.ids_N[later(rows)] for capture, rows in drawn]),
        hidden_TD=torch.cat([capture.hidden_ND[rows] for capture, rows in drawn]),
        wanted_TD=torch.cat([capture.hidden_ND[later(rows)] for capture, rows in drawn]),
        positions_T=torch.cat([own + capture.first for own, (capture, _) in zip(numbers, drawn, strict=True)]),
        is_taught_T=torch.cat([own >= capture.taught for own, (capture, _) in zip(numbers, drawn, strict=True)]),
    )
