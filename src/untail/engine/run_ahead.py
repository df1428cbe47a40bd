"""Sequences that do nothing but decode, ahead of the host: one launch of several steps runs while the one before is
read.

Invariant: a row on the device belongs to one stay of one sequence in a slot. What a launch draws for a row whose
sequence has left its slot meanwhile (aborted, cut, preempted) is nobody's and counted as overrun; should the sequence
come back, it gets a row written anew, and its random stream draws the same again. So control lands between two launches
and waits for none.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from untail.engine.blocks import BLOCK, blocks_for
from untail.engine.decode_state import PADDING, DecodeState, Row
from untail.engine.graphs import DecodeGraphs, Drawn, Launch, buckets_up_to
from untail.engine.runner import Runner
from untail.engine.scheduler import Plan, Scheduler
from untail.engine.sequence import Sequence, State

STEPS = 8  # in a launch; two launches may be under way
ENOUGH = 1 / 4  # of those that run: so many new sequences begin together
PATIENCE = 8  # launches that they wait for one another at most


@dataclass(eq=False)
class Stay:
    """A sequence's row for as long as it stays in its slot."""

    sequence: Sequence
    number: int  # which of its stays
    ahead: int = 0  # steps sent that the host has not read yet
    written: int = 0  # entries of its block table that the device has

    @property
    def is_over(self) -> bool:
        return self.sequence.state is not State.RUNNING or self.sequence.stay != self.number


class Flight(NamedTuple):
    launch: Launch
    rows: list[Stay | None]
    steps: int
    version: int


class Taken(NamedTuple):
    sequence: Sequence
    tokens: list[int]
    figures: list[list[float]]  # column by column


class Read(NamedTuple):
    """What a launch did, for those who are still there."""

    rows: int
    steps: int
    version: int
    seconds: float  # on the device
    taken: list[Taken]


class RunAhead:
    def __init__(self, runner: Runner, scheduler: Scheduler, context: int):
        self.runner, self.scheduler, self.context = runner, scheduler, context
        self.buckets = buckets_up_to(scheduler.max_seqs)
        self._graphs: DecodeGraphs | None = None
        self._rows: list[Stay | None] = []
        self._to_write: set[int] = set()  # rows that the device has otherwise
        self._flights: deque[Flight] = deque()
        self._launches_waited = 0  # since new sequences last began, though there was a slot

    @staticmethod
    def decodes(sequence: Sequence) -> bool:
        """It is computed here. Pre: it is in a slot, or about to be."""
        return sequence.is_plain and sequence.wanted == 1

    @property
    def under_way(self) -> int:
        """Launches not read yet."""
        return len(self._flights)

    def warm_up(self) -> None:
        """Every graph of what runs ahead, before anybody waits for it."""
        for bucket in self.buckets:
            self._ready().capture(bucket)

    def launch(self, version: int) -> bool:
        """Send the next steps. False if blocks are too few even for one, and somebody must lose his."""
        self._match_rows()
        stays = [stay for stay in self._rows if stay is not None]
        most = max((self._left(stay.sequence) - stay.ahead for stay in stays), default=0)
        if most < 1:
            return True
        steps = min(STEPS, most)
        if not self._reserve(stays, steps):
            steps = 1
            if not self._reserve(stays, steps):
                return False
        self._write()
        bucket = self._bucket(len(self._rows))
        self._flights.append(Flight(self._ready().launch(bucket, steps), list(self._rows), steps, version))
        for stay in stays:
            stay.ahead += steps
        return True

    def gathers_new(self) -> bool:
        """Whether new sequences are to wait until several can begin together; asked once a step. While prompts are
        filled in nothing runs ahead of the host, which costs everybody about as much as a launch. Where nothing does
        anyway, they need not wait."""
        scheduler, new = self.scheduler, self.scheduler.could_begin
        is_broken_off = not self._flights or scheduler.returning or not all(map(self.decodes, scheduler.running))
        waits = 0 < new < ENOUGH * len(scheduler.running) and not is_broken_off and self._launches_waited < PATIENCE
        self._launches_waited = self._launches_waited + 1 if waits else 0
        return waits

    def is_loose(self) -> bool:
        """Fewer rows would do, once what is under way has been read."""
        live = [number for number, stay in enumerate(self._rows) if stay is not None and not stay.is_over]
        return bool(live) and self._bucket(len(live)) < self._bucket(live[-1] + 1)

    def read(self) -> Read:
        """The oldest launch; waits until it is done."""
        flight = self._flights.popleft()
        for stay in flight.rows:
            if stay is not None:
                stay.ahead -= flight.steps
        rows = sum(stay is not None for stay in flight.rows)
        drawn = flight.launch.wait()
        return Read(rows, flight.steps, flight.version, drawn.seconds, self._taken(flight, drawn))

    def riders(self) -> list[Sequence]:
        """Who is in the oldest launch and still there."""
        return [stay.sequence for stay in self._flights[0].rows if stay is not None and not stay.is_over]

    def forget_rows(self) -> None:
        """The host moved sequences on by itself, or wants them packed. Pre: nothing is under way."""
        assert not self._flights
        self._to_write |= set(range(len(self._rows)))
        self._rows = []

    def free(self) -> None:
        """The KV tensor goes, and the graphs over it. Pre: nothing is under way."""
        self.forget_rows()
        self._to_write.clear()
        self._graphs = None

    def _taken(self, flight: Flight, drawn: Drawn) -> list[Taken]:
        taken: list[Taken] = []
        counts = (drawn.tokens >= 0).sum(0).tolist()
        # All at once, row by row: to ask an array for each row's own costs as long as the device takes for a step.
        tokens, figures = drawn.tokens.T.tolist(), drawn.figures.transpose(1, 2, 0).tolist()
        for stay, count, its_tokens, its_figures in zip(flight.rows, counts, tokens, figures, strict=False):
            if stay is None or count == 0:
                continue
            if stay.is_over:
                self.scheduler.counts.overrun += count
                continue
            taken.append(Taken(stay.sequence, its_tokens[:count], [column[:count] for column in its_figures]))
        return taken

    def _left(self, sequence: Sequence) -> int:
        return min(sequence.budget, self.context - len(sequence.tokens))

    def _bucket(self, rows: int) -> int:
        return next(size for size in self.buckets if size >= rows)

    def _match_rows(self) -> None:
        """Who left his slot leaves his row; who decodes and has none gets the first that is free."""
        for number, stay in enumerate(self._rows):
            if stay is not None and stay.is_over:
                self._rows[number] = None
                self._to_write.add(number)
        there = {id(stay.sequence) for stay in self._rows if stay is not None}
        free = [number for number, stay in enumerate(self._rows) if stay is None][::-1]
        for sequence in self.scheduler.running:
            if id(sequence) not in there and self.decodes(sequence):
                if not free:
                    free.append(len(self._rows))
                    self._rows.append(None)
                number = free.pop()
                self._rows[number] = Stay(sequence, sequence.stay)
                self._to_write.add(number)
        while self._rows and self._rows[-1] is None:
            self._rows.pop()

    def _reserve(self, stays: list[Stay], steps: int) -> bool:
        """Blocks for everything that may be drawn; own ones where a fork shares the last."""
        plan = Plan()
        wanted, first = [], []
        for stay in stays:
            sequence = stay.sequence
            count = min(stay.ahead + steps, self._left(sequence))
            place = sequence.computed // BLOCK
            if blocks_for(sequence.computed + count) > len(sequence.blocks) or self.scheduler.shares(sequence, place):
                wanted.append((sequence, count))
                first.append((stay, place))
        try:
            return self.scheduler.reserve_ahead(wanted, plan)
        finally:
            self.runner.copy(plan.copies)
            copied = {target for _, target in plan.copies}
            for stay, place in first:
                if place < len(stay.sequence.blocks) and stay.sequence.blocks[place] in copied:
                    stay.written = min(stay.written, place)

    def _write(self) -> None:
        state, rows = self._ready().state, {}
        changes: list[tuple[int, int, int]] = []
        for number, stay in enumerate(self._rows):
            if stay is None:
                continue
            blocks = stay.sequence.blocks
            if number in self._to_write:
                rows[number] = Row.of(stay.sequence, self._left(stay.sequence))
            elif stay.written < len(blocks):
                changes += [(number, place, blocks[place]) for place in range(stay.written, len(blocks))]
            stay.written = len(blocks)
        rows |= {number: PADDING for number in self._to_write if number not in rows}
        if rows:
            state.write(rows)
        if changes:
            state.write_blocks(changes)
        self._to_write.clear()

    def _ready(self) -> DecodeGraphs:
        """Made when first needed: sleep and a smaller pool take them away."""
        if self._graphs is None:
            kernels, kv, kept = self.runner.kernels, self.runner.kv, self.runner.hidden
            assert kernels is not None
            assert kv is not None
            state = DecodeState.make(self.buckets[-1], blocks_for(self.context), STEPS, kv.device)
            self._graphs = DecodeGraphs(state, lambda rows, width: kernels.step(kv, kept, state, rows, width))
        return self._graphs
