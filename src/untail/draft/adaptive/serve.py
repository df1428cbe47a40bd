"""The drafter at work: drafts for sequences of the engine, all that ask at once.

A draft of a sequence of n tokens begins at position n - 2, the last whose hidden state and next token are both known,
and goes on from its own guesses, each drawn with the random number that the target will draw with (coupled.py).

Invariant: its keys and values lie in the slots of the target's tokens, in a tensor of its own. A block of it is valid
if its stamp is that of the tokens up to the block's end, whoever computed it: so forks and siblings share it, and what
was preempted, copied, switched off for a while or overwritten is found out and filled in again, from the target's
hidden states, without a pass of the target. A block that is not full is filled in each time. (Of a block that siblings
share, the last position has the next token of whoever came last. A draft is only a guess.)

Shape suffixes: T rows, J jobs, D hidden, V vocabulary.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from untail.draft.adaptive.head import SEEN, Head
from untail.draft.adaptive.model import DraftModel, turn_of
from untail.draft.coupled import guess
from untail.engine.blocks import BLOCK
from untail.engine.draft import NONE, Ask, Draft
from untail.engine.runner import Piece, Runner
from untail.engine.sequence import Sequence


class Job(NamedTuple):
    """One ask. Its draft looks back to block `first`; what is missing begins with block `missing`."""

    number: int  # of the ask
    sequence: Sequence
    most: int
    first: int
    missing: int

    @property
    def last(self) -> int:
        """The position where the draft begins."""
        return len(self.sequence.tokens) - 2

    def slots(self, begin: int, end: int) -> np.ndarray:
        where = np.arange(begin, end)
        blocks = np.asarray(self.sequence.blocks[begin // BLOCK : end // BLOCK + 1])
        return blocks[where // BLOCK - begin // BLOCK] * BLOCK + where % BLOCK


class Guesser:
    def __init__(self, runner: Runner, model: DraftModel, window: int, has_learned: bool):
        """`window`: tokens that a draft looks back to, to the whole block. A model that has learned nothing has no
        guess, until another is loaded."""
        self.runner = runner
        self.model = model
        self.head = Head(runner.decoder)
        self.window = window
        self.has_learned = has_learned
        shape = model.shape
        size = (1, 2, runner.blocks, BLOCK, shape.kv_heads, shape.head_dim)
        self.kv = torch.zeros(size, dtype=model.fc.dtype, device=model.fc.device)
        self._stamps = np.zeros(runner.blocks, dtype=np.int64)  # 0: nothing that can be used
        self._chains: dict[str, list[int]] = {}  # by sequence, the stamps of its full blocks

    def load(self, learned: dict[str, Tensor]) -> None:
        """A trainer's whole set (`Spot.fresh`)."""
        self.head.restore(learned[SEEN])
        self.model.load_state_dict({name: tensor for name, tensor in learned.items() if name != SEEN})
        self.has_learned = True
        self._stamps[:] = 0

    def forget(self, sequence: Sequence) -> None:
        self._chains.pop(sequence.id, None)

    @torch.inference_mode()
    def drafts(self, asks: list[Ask]) -> list[Draft]:
        drafts = [NONE] * len(asks)
        if not self.has_learned:
            return drafts
        try:
            jobs = [self._job(number, ask) for number, ask in enumerate(asks) if ask.most and ask.sequence.computed]
            if jobs:
                jobs.sort(key=lambda job: -job.most)
                self._catch_up(jobs)
                for job, tokens in zip(jobs, self._draft(jobs), strict=True):
                    drafts[job.number] = Draft(tokens)
        except BaseException:
            self._stamps[:] = 0  # promised for blocks that were perhaps not filled in
            raise
        return drafts

    def _job(self, number: int, ask: Ask) -> Job:
        """Stamps the blocks that will be valid once the jobs are done, so that siblings do not fill them in twice."""
        sequence = ask.sequence
        ready = len(sequence.tokens) - 1
        first, full = max(0, ready - self.window) // BLOCK, ready // BLOCK
        blocks, chain = sequence.blocks[first:full], self._chain(sequence, full)
        stamps = np.asarray(chain[first:full], dtype=np.int64)
        wrong = np.flatnonzero(self._stamps[blocks] != stamps)
        self._stamps[blocks] = stamps
        self._stamps[sequence.blocks[full:]] = 0  # drafts are written there
        return Job(number, sequence, ask.most, first, first + int(wrong[0]) if len(wrong) else full)

    def _chain(self, sequence: Sequence, full: int) -> list[int]:
        chain = self._chains.setdefault(sequence.id, [])
        for block in range(len(chain), full):
            before = chain[-1] if chain else 0
            chain.append(hash((before, *sequence.tokens[block * BLOCK : (block + 1) * BLOCK])) | 1)
        return chain

    def _catch_up(self, jobs: list[Job]) -> None:
        """Keys and values of what is missing up to where each draft begins; that position computes its own."""
        spans = [(job, job.missing * BLOCK, job.last) for job in jobs if job.missing * BLOCK < job.last]
        if not spans:
            return
        next_ids = [token for job, begin, end in spans for token in job.sequence.tokens[begin + 1 : end + 1]]
        slots_T = self._on_device(np.concatenate([job.slots(begin, end) for job, begin, end in spans]))
        positions_T = self._on_device(np.concatenate([np.arange(begin, end) for _, begin, end in spans]))
        inputs = self._embed(self._on_device(np.asarray(next_ids))), self._hidden(slots_T), self._turn(positions_T)
        for pool, new_TKD in zip(self.kv[0], self.model.keys_values(*inputs), strict=True):
            pool.view(-1, *new_TKD.shape[1:]).index_copy_(0, slots_T, new_TKD)

    def _draft(self, jobs: list[Job]) -> list[list[int]]:
        """Pre: the deepest first."""
        begins = np.concatenate([job.slots(job.last, job.last + 1) for job in jobs])
        hidden_JD = self._hidden(self._on_device(begins))
        ids_J = self._on_device(np.asarray([job.sequence.tokens[-1] for job in jobs]))
        columns: list[Tensor] = []
        for depth in range(jobs[0].most):
            active = [job for job in jobs if job.most > depth]
            hidden_JD = self._step(active, depth, ids_J[: len(active)], hidden_JD[: len(active)])
            sequences = [job.sequence for job in active]
            positions = [len(sequence.tokens) + depth for sequence in sequences]
            ids_J = self.head.token_ids(guess(self.head.logits(hidden_JD), sequences, positions))
            columns.append(ids_J)
        rows = [column.tolist() for column in columns]
        return [[row[number] for row in rows[: job.most]] for number, job in enumerate(jobs)]

    def _step(self, jobs: list[Job], depth: int, ids_J: Tensor, hidden_JD: Tensor) -> Tensor:
        """The guess of each job's next hidden state, one position on for each step of depth."""
        pieces = [Piece(job.sequence.blocks[job.first :], job.last + depth - job.first * BLOCK, [0]) for job in jobs]
        layout = self.runner.lay_out(pieces)
        order_T = self._on_device(np.asarray(layout.order))
        positions_T = self._on_device(np.asarray([jobs[number].last + depth for number in layout.order]))
        attention = self.runner.attend(layout, self.kv)
        inputs = self._embed(ids_J[order_T]), hidden_JD[order_T], self._turn(positions_T)
        return torch.empty_like(hidden_JD).index_copy_(0, order_T, self.model(*inputs, attention))

    def _embed(self, ids_T: Tensor) -> Tensor:
        return F.embedding(ids_T, self.runner.decoder.embed)

    def _hidden(self, slots_T: Tensor) -> Tensor:
        hidden = self.runner.hidden
        assert hidden is not None, "the engine sleeps, or keeps no hidden states"
        return hidden.view(-1, hidden.shape[-1])[slots_T]

    def _turn(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        return turn_of(self.runner.decoder, positions_T, self.model.fc.dtype)

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.kv.device, non_blocking=True)
