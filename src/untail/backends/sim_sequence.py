"""A simulated sequence: counts of tokens, and the chunks that come of them.

Invariant: while it runs, its counts stand as of step `since`; the engine settles it when somebody looks.
"""

import asyncio
import math
from collections import OrderedDict

from untail.types import Chunk, End, SequenceSpec, add_columns

STOP = 0  # every other token is the number of its place in a part of the vocabulary that is its stream's own: a
# simulated response repeats nothing, neither of itself nor of its siblings
PARTS, PART = 4093, 2**20

Place = OrderedDict[str, "Sequence"]


class Sequence:
    def __init__(self, spec: SequenceSpec, length: int, entropy: float):
        self.id = spec.id
        self.spec = spec
        self.entropy = entropy
        self.first = spec.stream % PARTS * PART
        self.context = len(spec.tokens)  # all tokens there are
        self.made = spec.done  # response tokens, an environment's replies included
        self.end = max(spec.done + 1, spec.turn_begin + length)  # `made` when its turn is over
        self.turn_over = False  # stopped, and held for the environment's reply
        self.budget = spec.budget  # model tokens still allowed before the next boundary
        self.computed = 0  # tokens that have KV
        self.furthest = 0  # the most that ever had: what is below it is computed again, not anew
        self.lost_to_update = False  # why it is computed again, if it is: new weights, or no room
        self.mixed_kv = False
        self.owed_s = 0.0  # what its boundary costs, paid when it gets a slot
        self.since = 0
        self.due = 0  # the step at which its chunk, its budget or its turn ends
        self.place: Place = OrderedDict()
        self.chunk: Chunk | None = None  # tokens that nobody has seen yet
        self.chunks: asyncio.Queue[Chunk | None] = asyncio.Queue()  # None closes the stream

    @property
    def to_go(self) -> int:
        """Tokens until its chunk, its budget or its turn ends."""
        unseen = len(self.chunk.tokens) if self.chunk is not None else 0
        return min(self.spec.chunk - unseen, self.budget, self.end - self.made)

    def take(self, count: int, version: int) -> None:
        self.made += count
        self.context += count
        self.budget -= count
        self.computed += count
        self.furthest = self.computed
        logprob = -self.entropy
        new = Chunk(
            tokens=list(range(self.first + self.made - count + 1, self.first + self.made + 1)),
            policy_logprob=[logprob] * count,
            behaviour_logprob=[logprob] * count,
            entropy=[self.entropy] * count,
            p_eos=[0.0] * count,
            version=[version] * count,
            mixed_kv=[self.mixed_kv] * count,
            lossy=[False] * count,
        )
        if self.made == self.end:
            new.tokens[-1], new.p_eos[-1] = STOP, math.exp(logprob)
        if self.chunk is None:
            self.chunk = new
        else:
            add_columns(self.chunk, new)

    def emit(self, end: End | None) -> None:
        chunk, self.chunk = self.chunk or Chunk(), None
        chunk.end = end
        self.chunks.put_nowait(chunk)
