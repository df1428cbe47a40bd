"""7.2, history drafts (RhymeRL): from earlier responses to the same prompt, and from siblings as they run.

Invariant: there is one index per prompt, while a sequence of that prompt is in the engine. Every text is in it once:
the prompt, past responses, what its sequences have written; what a copy shares with its parent stands there as the
parent's. Nothing in it is outside the model's vocabulary.

Mode "segment" (recipe e-grpo): from the start of a segment on, the best past response is proposed as a whole, from the
sequence's own position on, until a token of it is rejected. The rest of the segment has the usual drafts.
"""

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

from untail.draft.base import DRAFTERS
from untail.draft.ngram import NgramDrafter
from untail.draft.suffix import SuffixIndex
from untail.engine.draft import Ask
from untail.engine.sequence import Sequence

if TYPE_CHECKING:
    from untail.engine.runner import Runner


@dataclass(slots=True)
class Shared:
    """What the sequences of one prompt have in common."""

    index: SuffixIndex
    best: list[int]  # of the past responses; empty if there is none
    alive: int = 0  # sequences in the engine


@dataclass(slots=True)
class BestPast:
    """The best past response, and whether a sequence's present segment has left it."""

    tokens: list[int]
    budget: int  # of the sequence when it was last seen: with more than that, a new segment has begun
    left: bool = False

    def see(self, budget: int) -> None:
        self.left &= budget <= self.budget
        self.budget = budget


@DRAFTERS.register("history")
class HistoryDrafter(NgramDrafter):
    name = "history"
    section = "7.2"
    wants_past = True

    class Config(NgramDrafter.Config):
        mode: Literal["token", "segment"] = "token"  # "segment": the best past response is tried as a whole first

    def __init__(self, config: Any):
        super().__init__(config)
        self._prompts: dict[tuple[int, ...], Shared] = {}
        self._bests: dict[str, BestPast] = {}

    def attach(self, runner: "Runner") -> None:
        self._vocab = runner.decoder.shape.vocab

    def begin(self, sequence: Sequence) -> None:
        super().begin(sequence)
        self._bests[sequence.id] = BestPast(self._prompts[_prompt(sequence)].best, sequence.budget)

    def hear(self, sequence: Sequence, tokens: list[int], drafted: int, accepted: int) -> None:
        super().hear(sequence, tokens, drafted, accepted)
        best = self._bests.get(sequence.id)
        if best is not None:
            best.see(sequence.budget + len(tokens))  # as it was before the step
            best.see(sequence.budget)
            best.left |= accepted < drafted

    def end(self, sequence: Sequence) -> None:
        super().end(sequence)
        del self._bests[sequence.id]
        prompt = _prompt(sequence)
        self._prompts[prompt].alive -= 1
        if not self._prompts[prompt].alive:
            del self._prompts[prompt]

    def _enter(self, sequence: Sequence) -> tuple[SuffixIndex, int]:
        prompt, tokens, begin = _prompt(sequence), sequence.tokens, 0
        if prompt in self._prompts:
            is_copy = sequence.has_begun and self._prompts[prompt].index.knows(tokens)
            begin = len(tokens) if is_copy else sequence.prompt_length
        else:
            self._prompts[prompt] = self._remember(prompt, sequence.spec.past)
        shared = self._prompts[prompt]
        shared.alive += 1
        return shared.index, shared.index.add(tokens, sequence.prompt_length, begin)

    def _remember(self, prompt: tuple[int, ...], past: tuple[tuple[int, ...], ...]) -> Shared:
        """Past responses, each behind the end of the prompt, so that a response's first tokens find them, too."""
        index, behind = SuffixIndex(self.config.longest, self.config.shortest), list(prompt[-self.config.longest :])
        known = [list(takewhile(lambda token: 0 <= token < self._vocab, response)) for response in past]
        for response in known:
            index.add(behind + response, len(behind), len(behind))
        return Shared(index, known[0] if known else [])

    def _guess(self, ask: Ask) -> list[int]:
        whole = self._rest_of_best(ask) if self.config.mode == "segment" else []
        return whole or super()._guess(ask)

    def _rest_of_best(self, ask: Ask) -> list[int]:
        """The best past response from here on, unless the segment has left it."""
        sequence, best = ask.sequence, self._bests[ask.sequence.id]
        best.see(sequence.budget)
        position = len(sequence.tokens) - sequence.prompt_length
        last = min(position, self.config.longest)
        agrees = best.tokens[position - last : position] == sequence.tokens[len(sequence.tokens) - last :]
        return best.tokens[position : position + ask.most] if agrees and not best.left else []


def _prompt(sequence: Sequence) -> tuple[int, ...]:
    return tuple(sequence.tokens[: sequence.prompt_length])
