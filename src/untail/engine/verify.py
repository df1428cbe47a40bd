"""Drafts verified in graphs, bucketed by rows and by width: whoever drafted, drafts of equal width share a graph.

Invariant: what is drawn at a position is what decoding there would have drawn; a draft counts while it equals that. The
host waits for each verification: what is drafted next depends on it. Wide graphs take few sequences only, for a
verification of many tokens is bound by its arithmetic and gains nothing from a graph.
"""

from torch import Tensor

from untail.engine.blocks import blocks_for
from untail.engine.decode_state import PADDING, DecodeState, Row
from untail.engine.device_kernels import Kernels
from untail.engine.graphs import DecodeGraphs, buckets_up_to
from untail.engine.sampler import Sampled
from untail.engine.scheduler import Work

WIDTHS = (1, 2, 4, 8)  # tokens of a row
TOKENS = 512  # of all rows
FEW = 16  # rows: drafts pay at the tail, and for more sequences than these they are seldom tried


class VerifyGraphs:
    def __init__(self, kernels: Kernels, kv: Tensor, kept: Tensor | None, context: int):
        """`kv` and `kept` as the kernels want them (device_kernels.py)."""
        self.context = context
        self.widest = max(width for width in WIDTHS if width <= max(1, kernels.widest))
        self._given = (kernels, kv, kept)
        self._graphs: DecodeGraphs | None = None

    def warm_up(self, sequences: int) -> None:
        """Every graph for so many, up to a few; what else is needed is captured then."""
        for rows in buckets_up_to(_bucket(min(sequences, FEW))):
            for width in WIDTHS[: WIDTHS.index(self.widest) + 1]:
                self._ready().capture(rows, width)

    def takes(self, work: list[Work]) -> bool:
        widest = max(1 + len(one.drafts) for one in work)
        if widest > self.widest or not all(one.size == 1 == one.sequence.wanted for one in work):
            return False
        return _bucket(len(work)) * _width(widest) <= TOKENS and all(one.sequence.is_plain for one in work)

    def run(self, work: list[Work]) -> Sampled:
        """Pre: it takes them."""
        graphs, rows = self._ready(), _bucket(len(work))
        width = _width(max(1 + len(one.drafts) for one in work))
        graphs.state.write(self._rows(work, rows, width))
        graphs.state.write_tables({number: one.sequence.blocks for number, one in enumerate(work)})
        drawn = graphs.launch(rows, width=width).wait()
        places = [number * width + place for number, one in enumerate(work) for place in range(1 + len(one.drafts))]
        tokens = drawn.tokens[0, places].tolist()
        figures = [tuple(row) for row in drawn.figures[0, places].tolist()]
        return Sampled(tokens, figures, _counts(tokens, work))

    def _rows(self, work: list[Work], rows: int, width: int) -> dict[int, Row]:
        """A row on the device for every token; those that fill up a width lie in order too, and write nothing."""
        out = dict.fromkeys(range(rows * width), PADDING)
        for number, one in enumerate(work):
            first = Row.of(one.sequence, left=1)._replace(blocks=[])
            for place, token in enumerate([first.token, *one.drafts]):
                position = min(first.position + place, self.context - 1)
                out[number * width + place] = first._replace(token=token, position=position)
        return out

    def _ready(self) -> DecodeGraphs:
        if self._graphs is None:
            kernels, kv, kept = self._given
            state = DecodeState.make(TOKENS, blocks_for(self.context), 1, kv.device)
            self._graphs = DecodeGraphs(state, lambda rows, width: kernels.step(kv, kept, state, rows, width))
        return self._graphs


def _bucket(rows: int) -> int:
    return next((size for size in buckets_up_to(TOKENS) if size >= rows), rows)


def _width(tokens: int) -> int:
    return next(width for width in WIDTHS if width >= tokens)


def _counts(tokens: list[int], work: list[Work]) -> list[bool]:
    """Which rows come after nothing but accepted drafts."""
    counts: list[bool] = []
    for one in work:
        agrees = True
        for draft in (*one.drafts, None):
            counts.append(agrees)
            agrees = agrees and tokens[len(counts) - 1] == draft
    return counts
