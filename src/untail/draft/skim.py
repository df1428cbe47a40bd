"""The model with layers left out: what `layer_skip` drafts with.

Invariant: what it computes goes to the slots behind a sequence's computed tokens, in the layers it has; the full model
writes over it.
"""

from collections.abc import Sequence as Layers
from typing import Any

import torch
from torch import Tensor

from untail.draft.coupled import guess
from untail.engine.draft import Ask, Draft
from untail.engine.runner import Piece, Runner
from untail.engine.sampler import sample
from untail.engine.sequence import Sequence


class Skimmer:
    def __init__(self, runner: Runner, layers: Layers[int]):
        self.runner = runner
        self.layers = layers

    def drafts(self, asks: list[Ask]) -> list[Draft]:
        """As many tokens as asked for, each after the one before."""
        tokens: list[list[int]] = [[] for _ in asks]
        for depth in range(max(ask.most for ask in asks)):
            going = [number for number, ask in enumerate(asks) if ask.most > depth]
            sequences = [asks[number].sequence for number in going]
            latest = [tokens[number][-1] if depth else asks[number].sequence.tokens[-1] for number in going]
            pieces = [
                Piece(sequence.blocks, len(sequence.tokens) - 1 + depth, [token])
                for sequence, token in zip(sequences, latest, strict=True)
            ]
            positions = [len(sequence.tokens) + depth for sequence in sequences]
            for number, token in zip(going, guess(self._skim(pieces), sequences, positions).tolist(), strict=True):
                tokens[number].append(token)
        return [Draft(its) for its in tokens]

    def next_token(self, sequence: Sequence) -> Draft:
        """As the skipping model samples it, with its figures. What it has not seen of the sequence it reads first."""
        begin = max(sequence.computed, sequence.shallow)
        logits_RV = self._skim([Piece(sequence.blocks, begin, sequence.tokens[begin:])])
        sequence.shallow = len(sequence.tokens)
        drawn = sample(logits_RV, [sequence], [[]])
        return Draft(drawn.tokens, drawn.figures)

    @torch.inference_mode()
    def _skim(self, pieces: list[Piece]) -> Tensor:
        """The logits after each piece."""
        layout = self.runner.lay_out(pieces)
        kv: Any = self.runner.kv
        attention = self.runner.attend(layout, kv)
        hidden_TD = self.runner.decoder(layout.ids_T, layout.positions_T, attention, layers=self.layers)
        rows = [0] * len(pieces)
        for number, last in zip(layout.order, layout.last, strict=True):
            rows[number] = last
        return self.runner.decoder.logits(hidden_TD[torch.tensor(rows, device=hidden_TD.device)])
