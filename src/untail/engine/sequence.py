"""One sequence in the engine.

Invariant: `tokens` is everything known (prompt, sampled tokens, an environment's replies), `computed` of them have
their keys and values in `blocks`. Prefill, decode, recompute and verification are one thing: let the second catch up
with the first. A sequence that has caught up samples its next token.
"""

from enum import Enum
from typing import Any

from untail.types import Chunk, SequenceSpec

Figures = tuple[float, float, float, float]
"""Of one token: policy log-prob, behaviour log-prob, entropy, p(eos)."""
STOPS = 8  # stop ids that a device can test by itself


class State(Enum):
    WAITING = "waiting"  # for a slot
    RUNNING = "running"  # in a slot
    BOUNDARY = "at a boundary"  # its budget is used up or its turn is over: extend, append or release decides
    FINISHED = "finished"


class Sequence:
    __slots__ = (
        "behaves_as_policy",
        "blocks",
        "budget",
        "chunk",
        "computed",
        "furthest",
        "id",
        "is_plain",
        "mixed_kv",
        "path",
        "prompt_length",
        "shallow",
        "spec",
        "stale",
        "state",
        "stay",
        "tokens",
        "turn_begin",
        "turn_over",
    )

    def __init__(self, spec: SequenceSpec):
        self.id = spec.id
        self.spec = spec
        self.tokens = list(spec.tokens)
        self.prompt_length = len(spec.tokens) - spec.done
        self.state = State.WAITING
        self.stay = 0  # how often it was given a slot
        self.budget = spec.budget  # model tokens still allowed before the next boundary
        self.turn_begin = self.prompt_length  # where the model's present turn begins
        self.turn_over = False  # stopped, and held for the environment's reply
        self.computed = 0
        self.furthest = 0  # the most that was computed with the present weights: below it, it is computed again
        self.stale = 0  # the most that was computed with older ones
        self.shallow = 0  # so many have keys and values of some layers: what a drafter went on with, unverified
        self.blocks: list[int] = []
        self.path: list[int] = []  # prefix-cache nodes of its full blocks
        self.mixed_kv = False  # holds keys and values of more than one weight version
        self.chunk = Chunk()
        sampling = spec.sampling
        untruncated = sampling.top_p == 1.0 and sampling.top_k == 0 and sampling.min_p == 0.0
        self.behaves_as_policy = untruncated and sampling.temperature == sampling.policy_temperature
        # A device can draw its tokens and see its end by itself.
        self.is_plain = (
            untruncated and not sampling.stop_strings and not spec.hidden and len(sampling.stop_ids) <= STOPS
        )

    @property
    def has_begun(self) -> bool:
        """It has response tokens, wherever they were made."""
        return len(self.tokens) > self.prompt_length

    @property
    def wanted(self) -> int:
        """Tokens to compute before it can sample."""
        return len(self.tokens) - self.computed

    def drop_kv(self) -> list[int]:
        """Forget all keys and values; the blocks to release, last first, so that a prefix outlives its continuation."""
        blocks = self.blocks[::-1]
        self.blocks, self.path, self.computed, self.shallow, self.mixed_kv = [], [], 0, 0, False
        return blocks

    def take(
        self,
        token: int,
        figures: Figures,
        version: int,
        hidden: Any = None,
        lossy: bool = False,
    ) -> None:
        chunk = self.chunk
        self.tokens.append(token)
        self.budget -= 1
        chunk.tokens.append(token)
        chunk.policy_logprob.append(figures[0])
        chunk.behaviour_logprob.append(figures[1])
        chunk.entropy.append(figures[2])
        chunk.p_eos.append(figures[3])
        chunk.version.append(version)
        chunk.mixed_kv.append(self.mixed_kv)
        chunk.lossy.append(lossy)
        if hidden is not None:
            chunk.hidden_sum = hidden if chunk.hidden_sum is None else chunk.hidden_sum + hidden

    def take_all(self, tokens: list[int], figures: list[list[float]], version: int) -> None:
        """Several at once; `figures` column by column."""
        chunk, count = self.chunk, len(tokens)
        self.tokens += tokens
        self.budget -= count
        chunk.tokens += tokens
        columns = (chunk.policy_logprob, chunk.behaviour_logprob, chunk.entropy, chunk.p_eos)
        for column, values in zip(columns, figures, strict=True):
            column += values
        chunk.version += [version] * count
        chunk.mixed_kv += [self.mixed_kv] * count
        chunk.lossy += [False] * count

    def emit(self) -> Chunk:
        chunk, self.chunk = self.chunk, Chunk()
        return chunk
