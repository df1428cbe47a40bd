"""The native engine: sequences in, chunks of tokens out, one step at a time.

Invariant: between two calls every sequence is in exactly one of the scheduler's places, its blocks are accounted for
(`check_integrity`), and an operation that raises has changed nothing. The engine is synchronous and owned by one
thread; backends/native.py makes it asynchronous.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count as counting

import torch

from untail.config import EngineConfig
from untail.engine import weights
from untail.engine.blocks import BlockPool, blocks_for
from untail.engine.draft import Speculation, Verified
from untail.engine.integrity import check_blocks, check_places
from untail.engine.lookahead import Lookahead
from untail.engine.models.decoder import Decoder
from untail.engine.prefix import PrefixCache
from untail.engine.run_ahead import STEPS, RunAhead, Taken
from untail.engine.runner import Result, Runner
from untail.engine.scheduler import Counts, Plan, Scheduler, StepSize
from untail.engine.sequence import Sequence, State
from untail.engine.stops import Decode, StopStrings
from untail.engine.validate import Limits, check_stream, check_temperature, refuse_if_too_large
from untail.errors import EngineMemoryError, RequestError, SequenceStateError
from untail.notice import say_once
from untail.types import Chunk, End, Forked, SequenceSpec

SMALLER = 0.75  # of the KV pool, after the device ran out of memory


class StepFailed(Exception):
    """A step raised; the sequences that were in it are gone, all others are as they were."""

    def __init__(self, sequences: list[str], error: Exception):
        super().__init__(f"a step with {len(sequences)} sequences failed: {type(error).__name__}: {error}")
        self.sequences = sequences


class Engine:
    def __init__(
        self,
        decoder: Decoder,
        config: EngineConfig,
        decode: Decode | None = None,
        speculation: Speculation | None = None,
    ):
        """`decode` turns token ids to text, special tokens included; only sequences with stop strings need it.
        `speculation` drafts, if somebody does."""
        context = config.context or decoder.shape.context
        if context > decoder.shape.context:
            raise RequestError(f"engine.context = {context}, but the model's own limit is {decoder.shape.context}")
        blocks = config.kv_blocks or int(config.kv_gib * 2**30) // Runner.block_bytes(decoder)
        refuse_if_too_large(blocks, Runner.block_bytes(decoder), decoder.embed.device)
        if blocks < 1:
            raise RequestError(
                f"engine.kv_gib = {config.kv_gib} does not hold one KV block of {Runner.block_bytes(decoder)} bytes; "
                "raise it"
            )
        self.decoder = decoder
        self.config = config
        self.version = 0
        self.limits = Limits(decoder.shape, context, blocks, decode is not None)
        self.prefix = PrefixCache(config.prefix_cache)
        self.pool = BlockPool(blocks, self.prefix.forget)
        self.scheduler = Scheduler(self.pool, self.prefix, config.max_seqs, config.max_batch_tokens)
        self.runner = Runner(decoder, blocks, keeps_hidden=speculation is not None and speculation.wants_hidden)
        self.last_step = StepSize(0, 0)
        self._stops = StopStrings(decode)
        self.speculation = speculation
        self.lookahead: Lookahead | None = None
        if speculation is not None:
            speculation.attach(self.runner, config.max_seqs)
            self.lookahead = Lookahead(speculation, self.scheduler, self.limits)
        # Who goes on without the target does so between two of its steps.
        runs_ahead = self.runner.kernels is not None and not (speculation and speculation.goes_unverified)
        self.ahead = RunAhead(self.runner, self.scheduler, context) if runs_ahead else None
        self._sequences: dict[str, Sequence] = {}
        self._due: list[tuple[str, Chunk]] = []  # chunks that nobody has fetched yet
        self._forks = counting(1)

    @property
    def counts(self) -> Counts:
        return self.scheduler.counts

    @property
    def has_work(self) -> bool:
        """There is something to compute or to hand out now."""
        scheduler = self.scheduler
        return bool(self._due or scheduler.running or scheduler.returning or (scheduler.new and scheduler.admits_new))

    @property
    def in_flight(self) -> bool:
        """Something has begun and neither ended nor come to a boundary."""
        return bool(self.scheduler.running or self.scheduler.returning)

    def names(self) -> list[str]:
        return list(self._sequences)

    def is_alive(self, name: str) -> bool:
        return name in self._sequences

    def warm_up(self) -> None:
        """Compile and capture now what would else be when first needed, in the middle of somebody's rollout: what fills
        in, what runs ahead, and if somebody drafts what verifies drafts for a few sequences. Sleep and a smaller pool
        drop graphs, and each comes back when it is next needed."""
        self._in_memory(self._warm_up)

    def _warm_up(self) -> None:
        self.runner.warm_up(drafted_for=0 if self.speculation is None else self.config.max_seqs)
        if self.ahead is not None:
            self.ahead.warm_up()

    def admit_new(self, admits: bool) -> None:
        """Whether sequences that have not begun may begin."""
        self.scheduler.admits_new = admits

    def add(self, spec: SequenceSpec) -> None:
        if spec.id in self._sequences:
            raise RequestError(f"sequence {spec.id!r} exists already; ids must be unique while a sequence lives")
        self.limits.check_spec(spec)
        sequence = Sequence(spec)
        sequence.turn_begin = self._stops.begin_of_turn(sequence)
        self._sequences[spec.id] = sequence
        self.scheduler.add(sequence)
        if self.speculation is not None:
            self.speculation.begin(sequence)

    def step(self) -> list[tuple[str, Chunk]]:
        """Compute one batch, or read a launch while the next one runs; the chunks that are full, and the last chunk of
        every sequence that came to an end."""
        self._in_memory(self._step)
        return self._fetch_due()

    def drain(self) -> list[tuple[str, Chunk]]:
        """Wait for what runs ahead of the host, and take it: afterwards nothing reads weights or writes KV."""
        self._take_in(leave=0)
        return self._fetch_due()

    def extend(self, name: str, budget: int) -> None:
        """A sequence at its boundary goes on, resident as it is."""
        sequence = self._at_boundary(name, "extend")
        if sequence.turn_over:
            raise SequenceStateError(
                f"sequence {name!r} ended its turn; append a reply or release it, do not extend it"
            )
        self.limits.check_budget(name, len(sequence.tokens), budget)
        sequence.budget += budget
        self.scheduler.resume(sequence)

    def append(self, name: str, tokens: list[int], budget: int | None = None) -> None:
        """An environment's reply: context for what follows. The sequence goes on with a new budget, or if it has some
        left."""
        sequence = self._at_boundary(name, "append to")
        if not tokens:
            raise RequestError(f"sequence {name!r}: the reply is empty; append at least one token")
        self.limits.check_tokens(tokens, f"the reply to sequence {name!r}")
        length = len(sequence.tokens) + len(tokens)
        if length >= self.limits.context:
            raise RequestError(
                f"sequence {name!r} would have {length} tokens with the reply, but the context holds "
                f"{self.limits.context} with at least one to generate; shorten the reply or release the sequence"
            )
        budget = sequence.budget if budget is None else budget
        self.limits.check_budget(name, length, max(budget, 1))
        sequence.tokens += tokens
        sequence.budget = budget
        sequence.turn_begin = len(sequence.tokens)
        sequence.turn_over = False
        if sequence.budget:
            self.scheduler.resume(sequence)

    def fork(self, name: str, streams: list[int], temperatures: list[float] | None = None) -> tuple[Forked, Chunk]:
        """Children that share the parent's blocks until they write; each goes on where the parent stands.

        What the parent has generated since its last chunk comes back too, so that its owner has it up to the fork.
        """
        parent = self._find(name)
        temperatures = temperatures or [parent.spec.sampling.temperature] * len(streams)
        if len(temperatures) != len(streams) or not streams:
            raise RequestError(
                f"fork of {name!r}: {len(streams)} streams and {len(temperatures)} temperatures; "
                "give one of each per child"
            )
        for stream, temperature in zip(streams, temperatures, strict=True):
            check_stream(name, stream)
            check_temperature(name, temperature)
        position = len(parent.tokens) - parent.prompt_length
        children = [self._fork(parent, *pair) for pair in zip(streams, temperatures, strict=True)]
        return Forked(position, children), parent.emit()

    def cut(self, name: str) -> Chunk:
        """A sequence comes to its boundary now; what it had generated since its last chunk comes back."""
        sequence = self._find(name)
        if sequence.state is State.BOUNDARY:
            raise SequenceStateError(f"cannot cut sequence {name!r}: it is at a boundary already")
        sequence.budget = 0
        self._close(sequence, "boundary")
        return sequence.emit()

    def release(self, name: str) -> None:
        """The end of a sequence at a boundary."""
        self._drop(self._at_boundary(name, "release"))

    def abort(self, name: str) -> Chunk:
        """End a sequence wherever it is; what it had generated since its last chunk comes back."""
        sequence = self._find(name)
        self._drop(sequence)
        sequence.chunk.end = "abort"
        return sequence.emit()

    def load_weights(self, source: weights.Source, version: int) -> None:
        self._take_in(leave=0)
        weights.update(self.decoder, source, self.version, version)
        self.version = self.prefix.version = version
        if self.speculation is not None:
            self.speculation.target_changed()
        if self.config.kv_after_update == "recompute":
            self.scheduler.evict_all(for_update=True)
        else:
            for sequence in self._sequences.values():
                sequence.mixed_kv = sequence.computed > 0

    def sleep(self) -> None:
        """Give the KV pool's memory back; sequences stay and are computed again after `wake`."""
        self._take_in(leave=0)
        self.scheduler.evict_all(for_update=False)
        self.prefix.clear()
        if self.ahead is not None:
            self.ahead.free()
        self.runner.free()

    def wake(self) -> None:
        while self.runner.kv is None:
            try:
                return self.runner.allocate()
            except torch.OutOfMemoryError as error:
                failure = error.with_traceback(None)
            self._make_room(failure)

    def check_integrity(self) -> None:
        """Every block and every sequence is where it should be; raises AssertionError if not."""
        check_blocks(self.pool, self._sequences.values())
        check_places(self.scheduler, self._sequences, self.limits.context, 2 * STEPS if self.ahead else 0)

    def _step(self) -> None:
        began = time.perf_counter()
        self.last_step = StepSize(0, 0)
        if self.lookahead is not None:
            self.lookahead.tell_occupied()
        lone = self._lone()
        if lone is not None and self._go_unverified(lone):
            return
        depths = {} if self.lookahead is None else self.lookahead.depths()
        runs_elsewhere = self._come_back() if any(depths.values()) else self._run_ahead()
        was_read, before = self.last_step.sequences > 0, replace(self.counts)
        if self.lookahead is not None:  # what came in from ahead has used up some
            depths = self.lookahead.with_room(depths)
        gathers = self.ahead is not None and self.ahead.gathers_new()
        plan = self.scheduler.plan(depths, runs_elsewhere, begins_new=not gathers)
        try:
            self.runner.copy(plan.copies)
            if not plan.work:
                return
            if self.lookahead is not None:
                self.lookahead.draft(plan)
            result = self.runner.run(plan)
        except torch.OutOfMemoryError:
            self._take_back(plan, before)
            raise
        except Exception as error:
            raise self._fail([work.sequence for work in plan.work], error) from error
        self.last_step = StepSize(*map(sum, zip(self.last_step, plan.size, strict=True)))
        for work in plan.work:
            work.sequence.computed += work.size
        self.counts.steps += 1
        ends, verified = self._deliver(result)
        if self.speculation is not None:
            mostly_decoded = not was_read and sum(work.size - 1 for work in plan.work) <= len(plan.work)
            self.speculation.verified(verified, time.perf_counter() - began, mostly_decoded)
        for sequence, end in ends:
            self._end(sequence, end)

    def _run_ahead(self) -> Callable[[Sequence], bool]:
        """The next launch goes out, then the one before it comes in. Whose tokens are not to be planned."""
        ahead = self.ahead
        if ahead is None:
            return lambda _: False
        if ahead.is_loose():
            self._come_back()
        launches = ahead.under_way
        has_room = ahead.launch(self.version)
        self._take_in(leave=1 if ahead.under_way > launches else 0)
        # Without room, a planned step may take blocks from those in slots.
        return ahead.decodes if has_room else self._come_back()

    def _come_back(self) -> Callable[[Sequence], bool]:
        """Nothing runs ahead: all tokens are to be planned."""
        if self.ahead is not None:
            self._take_in(leave=0, is_steady=False)
            self.ahead.forget_rows()
        return lambda _: False

    def _take_in(self, leave: int, is_steady: bool = True) -> None:
        """Read launches until so many are left. `is_steady`: nobody was about to draft."""
        while self.ahead is not None and self.ahead.under_way > leave:
            riders = self.ahead.riders()
            try:
                read = self.ahead.read()
            except Exception as error:
                raise self._fail(riders, error) from error
            self.last_step = StepSize(read.rows, read.rows)
            self.counts.steps += read.steps
            ends = [(taken.sequence, self._receive(taken, read.version)) for taken in read.taken]
            if self.speculation is not None:
                verified = [Verified(sequence, 0, 0, tokens) for sequence, tokens, _ in read.taken]
                self.speculation.verified(verified, read.seconds, is_steady, read.steps)
            for sequence, end in ends:
                if end is not None:
                    self._end(sequence, end)

    def _receive(self, taken: Taken, version: int) -> End | None:
        """Tokens that were drawn ahead, chunk by chunk. Only the last of them can be an end."""
        sequence, begin = taken.sequence, 0
        end: End | None = None
        while begin < len(taken.tokens) and end is None:
            part = slice(begin, begin + sequence.spec.chunk - len(sequence.chunk.tokens))
            sequence.take_all(taken.tokens[part], [column[part] for column in taken.figures], version)
            begin = part.stop
            end = self._end_of(sequence)
            if end is None and len(sequence.chunk.tokens) >= sequence.spec.chunk:
                self._due.append((sequence.id, sequence.emit()))
        self.scheduler.settle_ahead(sequence, len(taken.tokens))
        return end

    def _fetch_due(self) -> list[tuple[str, Chunk]]:
        due, self._due = self._due, []
        return due

    def _take_back(self, plan: Plan, before: Counts) -> None:
        """A step that did not happen: nothing it would have written is found, nothing of it is counted."""
        self.scheduler.counts = before
        self.prefix.clear()
        for work in plan.work:
            work.sequence.furthest = work.sequence.computed

    def _in_memory(self, compute: Callable[[], None]) -> None:
        """Again beside a smaller KV pool, for as long as the device runs out of memory."""
        while True:
            try:
                return compute()
            except torch.OutOfMemoryError as error:
                # Not here: what a step had in its frames is there for as long as the traceback is.
                failure = error.with_traceback(None)
            self._make_room(failure)
            self.wake()

    def _make_room(self, error: Exception) -> None:
        """Out of memory: a smaller KV pool, when `wake` makes it. What was in the old one is computed again."""
        blocks = int(self.pool.total * SMALLER)
        longest = max((min(len(s.tokens) + s.budget, self.limits.context) for s in self._sequences.values()), default=1)
        if blocks < blocks_for(longest):
            size = self.pool.total * Runner.block_bytes(self.decoder) / 2**30
            raise EngineMemoryError(
                f"out of memory beside a KV pool of {size:.3g} GiB, which is no larger than a sequence of {longest} "
                "tokens needs; lower its budget or engine.max_batch_tokens, or use a smaller model"
            ) from error
        self.sleep()
        say_once(
            f"out of memory beside a KV pool of {self.pool.total} blocks: going on with {blocks}; lower engine.kv_gib "
            "to start like that"
        )
        self.pool = self.scheduler.pool = BlockPool(blocks, self.prefix.forget)
        self.limits.blocks = self.runner.blocks = blocks

    def _lone(self) -> Sequence | None:
        """The only sequence in the engine that has anything to do, if it decodes and somebody might go on without the
        target."""
        scheduler = self.scheduler
        if self.speculation is None or len(scheduler.running) != 1 or scheduler.returning or scheduler.new:
            return None
        sequence = scheduler.running[0]
        return sequence if len(sequence.tokens) - max(sequence.computed, sequence.shallow) == 1 else None

    def _go_unverified(self, sequence: Sequence) -> bool:
        """Its next token without the target, which computes what it missed if it ever has to go on; False: not so."""
        assert self.speculation is not None
        if not self.scheduler.make_room(sequence):
            return False
        draft = self.speculation.unverified(sequence)
        if draft is None:
            return False
        assert draft.figures is not None
        sequence.take(draft.tokens[0], draft.figures[0], self.version, lossy=True)
        self.last_step = StepSize(1, 1)
        self.counts.steps += 1
        self.counts.sampled += 1
        end = self._end_of(sequence)
        if end is not None:
            self._end(sequence, end)
        elif len(sequence.chunk.tokens) >= sequence.spec.chunk:
            self._due.append((sequence.id, sequence.emit()))
        return True

    def _deliver(self, result: Result) -> tuple[list[tuple[Sequence, End]], list[Verified]]:
        """Every sequence takes what it drew, and full chunks are due: who came to an end, what became of drafts."""
        ends: list[tuple[Sequence, End]] = []
        verified: list[Verified] = []
        for sequence, drafts, rows in result.drawn:
            before = len(sequence.tokens)
            for row in rows:
                if not result.sampled.counts[row]:
                    break
                hidden = result.hidden_RD[row].float().cpu() if sequence.spec.hidden else None
                sequence.take(result.sampled.tokens[row], result.sampled.figures[row], self.version, hidden)
                end = self._end_of(sequence)
                if end is not None:
                    ends.append((sequence, end))
                    break
                if len(sequence.chunk.tokens) >= sequence.spec.chunk:
                    self._due.append((sequence.id, sequence.emit()))
            taken = sequence.tokens[before:]
            accepted = sum(map(int.__eq__, taken, drafts))
            self.scheduler.settle(sequence, len(taken), len(drafts), accepted)
            verified.append(Verified(sequence, len(drafts), accepted, taken))
        return ends, verified

    def _end_of(self, sequence: Sequence) -> End | None:
        sampling = sequence.spec.sampling
        if sequence.tokens[-1] in sampling.stop_ids or self._stops.have_ended(sequence):
            return "stop"
        if len(sequence.tokens) == self.limits.context:
            return "length"
        return "boundary" if sequence.budget == 0 else None

    def _end(self, sequence: Sequence, end: End) -> None:
        self._close(sequence, end)
        self._due.append((sequence.id, sequence.emit()))

    def _close(self, sequence: Sequence, end: End) -> None:
        sequence.chunk.end = end
        sequence.turn_over = end == "stop"
        if end == "boundary" or (end == "stop" and sequence.spec.hold):
            self.scheduler.rest(sequence)
        else:
            self._drop(sequence)

    def _fork(self, parent: Sequence, stream: int, temperature: float) -> str:
        name = next(name for number in self._forks if not self.is_alive(name := f"{parent.id}/{number}"))
        sampling = replace(parent.spec.sampling, temperature=temperature)
        child = Sequence(replace(parent.spec, id=name, stream=stream, sampling=sampling))
        # Not what lies behind the computed tokens: a drafter may have written there what only the parent goes on with.
        child.blocks = parent.blocks[: blocks_for(parent.computed)]
        child.tokens, child.path = list(parent.tokens), list(parent.path)
        child.budget, child.computed, child.furthest = parent.budget, parent.computed, parent.furthest
        child.mixed_kv, child.turn_begin, child.turn_over = parent.mixed_kv, parent.turn_begin, parent.turn_over
        child.stale = parent.stale
        for block in child.blocks:
            self.pool.share(block)
        self._sequences[name] = child
        if self.speculation is not None:
            self.speculation.begin(child)
        if parent.state is State.BOUNDARY:
            self.scheduler.add_resting(child)
        else:
            self.scheduler.resume(child)
        return name

    def _fail(self, sequences: list[Sequence], error: Exception) -> "StepFailed":
        """A step raised: its sequences end, and nothing that it may have half-written is found again."""
        self.prefix.clear()
        for sequence in sequences:
            self._drop(sequence)
        return StepFailed([sequence.id for sequence in sequences], error)

    def _drop(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        del self._sequences[sequence.id]
        if self.speculation is not None:
            self.speculation.end(sequence)

    def _find(self, name: str) -> Sequence:
        if name not in self._sequences:
            raise SequenceStateError(
                f"sequence {name!r} is unknown: never added, or finished, released or aborted already"
            )
        return self._sequences[name]

    def _at_boundary(self, name: str, verb: str) -> Sequence:
        sequence = self._find(name)
        if sequence.state is not State.BOUNDARY:
            raise SequenceStateError(
                f"cannot {verb} sequence {name!r}: it is {sequence.state.value}, not at a boundary"
            )
        return sequence
