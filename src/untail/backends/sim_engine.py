"""The simulated engine: sequences whose lengths come from a law, and the time that a device would take for them.

Invariant: a step with b running sequences lasts tau(b) and gives each of them one token; whatever else is computed
(prefill, segment boundaries) delays them all. Nothing is done token by token: between two changes of the running set
the engine only counts steps. Control sees the whole steps that are over; a sequence that leaves in the middle of a step
gets no token of it, one that comes waits for its end. What is sampled is counted once, and is in exactly one chunk.
"""

import asyncio
import heapq
import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from itertools import count as counting
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from untail.backends.laws import Law, sim_prompt, turn_stream
from untail.config import NotNegative, PositiveFloat, PositiveInt, Strict
from untail.errors import RequestError, SequenceStateError, WeightsError
from untail.types import Chunk, End, Forked, SequenceSpec

STOP = 0  # every other token is the number of its place in a part of the vocabulary that is its stream's own: a
# simulated response repeats nothing, neither of itself nor of its siblings
PARTS, PART = 4093, 2**20
ROUNDING = 1e-6  # of a step: a step is over when no more than this is missing
# Seconds that one segment boundary costs. benchmarks/boundary.py measured them on a CPU with the tiny model, where host
# overhead dominates.
DEEPEST = 16  # drafts of a sequence in one step
BOUNDARY_S = {"native": 0.000029, "vllm": 0.00096}


class SimConfig(Strict):
    """The device. The defaults are modelled on a 7B model in bf16 on an H200-like GPU; they are not a measurement."""

    slots: PositiveInt = 256  # sequences that run at once; the others wait in order
    step_ms_base: PositiveFloat = 5.0  # tau(b) = base + per_seq * b
    step_ms_per_seq: NotNegative = 0.02
    # (rows, milliseconds) that were measured: between them tau is linear, outside it is the nearest; they win over the
    # line above.
    step_points_ms: tuple[tuple[PositiveFloat, PositiveFloat], ...] = ()
    prefill_tokens_per_s: PositiveFloat = 20000.0
    kv_tokens: PositiveInt = 2_000_000  # what the KV pool holds (110 GB at 56 kB a token); siblings share nothing of it
    kv_after_update: Literal["recompute", "keep"] = "recompute"
    imitates: Literal["native", "vllm"] = "native"  # whose segment boundaries are paid for
    acceptance: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of drafts; 0: nobody drafts

    def step_seconds(self, batch: int) -> float:
        """Of one token for each. With drafts, as many as pay (7.7): g drafts each make a step of (g + 1) x batch rows,
        which gives each (1 - a^(g + 1)) / (1 - a) tokens."""
        a = self.acceptance
        deepest = DEEPEST if a else 0
        return min(self._rows_s(batch * (g + 1)) * (1 - a) / (1 - a ** (g + 1)) for g in range(deepest + 1))

    def _rows_s(self, rows: int) -> float:
        if self.step_points_ms:
            batches, times = zip(*sorted(self.step_points_ms), strict=True)
            return float(np.interp(rows, batches, times)) / 1000
        return (self.step_ms_base + self.step_ms_per_seq * rows) / 1000


Place = OrderedDict[str, "Sequence"]


class Sequence:
    """One sequence. While it runs, its counts stand as of step `since`; the engine settles it when somebody looks."""

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
            _join(self.chunk, new)

    def emit(self, end: End | None) -> None:
        chunk, self.chunk = self.chunk or Chunk(), None
        chunk.end = end
        self.chunks.put_nowait(chunk)


def _join(into: Chunk, chunk: Chunk) -> None:
    into.tokens += chunk.tokens
    into.policy_logprob += chunk.policy_logprob
    into.behaviour_logprob += chunk.behaviour_logprob
    into.entropy += chunk.entropy
    into.p_eos += chunk.p_eos
    into.version += chunk.version
    into.mixed_kv += chunk.mixed_kv
    into.lossy += chunk.lossy


class SimEngine:
    """The sequences and the device's time, which stands still while the backend is paused.

    Pre, of every operation: `advance` has just been called. Post: `refill` is called next.
    """

    def __init__(self, law: Law, config: SimConfig):
        self.law = law
        self.config = config
        self.version = 0
        self.admits_new = True
        self.sequences: dict[str, Sequence] = {}
        self.running: Place = OrderedDict()  # oldest in its slot first
        self.returning: Place = OrderedDict()  # preempted, extended, forked: goes before what is new
        self.new: Place = OrderedDict()
        self.resting: Place = OrderedDict()  # at a boundary, longest there first
        self.busy_s = 0.0
        self.kv = self.computed = self.sampled = self.recomputed = self.preemptions = 0
        self._taus: dict[int, float] = {}  # of the batches there were
        self._steps = 0  # that are over
        self._begin = 0.0  # when the next step begins, or began
        self._under_way: float | None = None  # how long it lasts, once it has begun: whatever changes now
        self._admit_next = False  # somebody waits for its end
        self._due: list[tuple[int, int, Sequence]] = []  # a heap; an entry counts if its sequence is due at that step
        self._serials = counting()
        self._forks = counting(1)

    @property
    def in_flight(self) -> bool:
        """Something has begun and neither ended nor come to a boundary."""
        return bool(self.running or self.returning)

    def advance(self, now: float) -> None:
        """Do all that is over by `now`."""
        while self.running:
            over, due = self._steps_over(now), self._next_due()
            self._step_to(min(over, due))
            if over < due:
                if now > self._begin + ROUNDING * self._tau():
                    self._under_way = self._this_step()
                return
            self._come_due()
            self._fill_slots()

    def refill(self, now: float) -> None:
        """Slots and room that a control has freed go to those who wait, at the latest when this step is over."""
        if not self.running:
            if self._under_way is not None:
                self._spend(self._under_way)
                self._under_way = None
            self._begin = max(self._begin, now)
        waiting = self.returning or (self.new and self.admits_new)
        self._admit_next = self._under_way is not None and bool(waiting) and len(self.running) < self.config.slots
        if self._under_way is None:
            self._fill_slots()

    def next_event(self) -> float | None:
        """When something happens by itself."""
        if not self.running:
            return None
        return self._begin + self._this_step() + (self._next_due() - self._steps - 1) * self._tau()

    def add(self, spec: SequenceSpec) -> Sequence:
        if spec.id in self.sequences:
            raise RequestError(f"sequence {spec.id!r} exists already; ids must be unique while a sequence lives")
        self._check_spec(spec)
        return self._enter(self._drawn(spec), self.returning if spec.done else self.new)

    def extend(self, name: str, budget: int) -> None:
        sequence = self._at_boundary(name, "extend")
        if sequence.turn_over:
            raise SequenceStateError(
                f"sequence {name!r} ended its turn; append a reply or release it, do not extend it"
            )
        self._check_budget(name, sequence.context, budget)
        sequence.budget += budget
        self._go_on(sequence)

    def append(self, name: str, tokens: list[int], budget: int | None = None) -> None:
        """What the model writes after its turn was over is as long as another draw."""
        sequence = self._at_boundary(name, "append to")
        if not tokens:
            raise RequestError(f"sequence {name!r}: the reply is empty; append at least one token")
        budget = sequence.budget if budget is None else budget
        self._check_budget(name, sequence.context + len(tokens), max(budget, 1))
        sequence.context += len(tokens)
        sequence.made += len(tokens)
        sequence.end += len(tokens)
        sequence.budget = budget
        if sequence.turn_over:
            sequence.spec = replace(sequence.spec, turn_begin=sequence.made)
            sequence.end = self._drawn(sequence.spec).end
            sequence.turn_over = False
        if sequence.budget:
            self._go_on(sequence)

    def fork(self, name: str, streams: list[int], temperatures: list[float] | None) -> Forked:
        parent = self._find(name)
        if not streams or (temperatures is not None and len(temperatures) != len(streams)):
            raise RequestError(
                f"fork of {name!r}: {len(streams)} streams and temperatures = {temperatures}; "
                "give one of each per child"
            )
        for stream in streams:
            _check_stream(name, stream)
        self._settle(parent)
        if parent.chunk is not None:
            parent.emit(None)
            self._plan(parent)
        prompt = len(parent.spec.tokens) - parent.spec.done
        return Forked(parent.context - prompt, [self._fork(parent, stream) for stream in streams])

    def release(self, name: str) -> None:
        self.drop(self._at_boundary(name, "release"))

    def cut(self, names: list[str]) -> None:
        for sequence in self._alive(names):
            if sequence.place is not self.resting:
                self._move(sequence, self.resting)
                sequence.budget = 0
                sequence.emit("boundary")

    def abort(self, names: list[str]) -> None:
        for sequence in self._alive(names):
            self._settle(sequence)
            sequence.emit("abort")
            self.drop(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Its end; its stream closes."""
        self._settle(sequence)
        del sequence.place[sequence.id], self.sequences[sequence.id]
        sequence.due = -1
        self.kv -= sequence.computed
        sequence.chunks.put_nowait(None)

    def load_weights(self, version: int) -> None:
        if version <= self.version:
            raise WeightsError(
                f"version {version} is not newer than the engine's version {self.version}; versions only grow"
            )
        for sequence in self.running.values():
            self._settle(sequence)
        self.version = version
        if self.config.kv_after_update == "recompute":
            self.evict_all(for_update=True)
        else:
            for sequence in self.sequences.values():
                sequence.mixed_kv = sequence.computed > 0

    def evict_all(self, for_update: bool) -> None:
        """Every key and value is void; what was in a slot returns in order, ahead of everything else."""
        for sequence in reversed(list(self.running.values())):
            self._move(sequence, self.returning, to_front=True)
        for sequence in self.sequences.values():
            self._evict(sequence, for_update)

    # Time: steps and what comes due in them.

    def _tau(self) -> float:
        batch = len(self.running)
        if batch not in self._taus:
            self._taus[batch] = self.config.step_seconds(batch)
        return self._taus[batch]

    def _this_step(self) -> float:
        return self._tau() if self._under_way is None else self._under_way

    def _steps_over(self, now: float) -> int:
        tau = self._tau()
        left = now - self._begin - self._this_step() + ROUNDING * tau
        return self._steps if left < 0 else self._steps + 1 + int(left / tau)

    def _next_due(self) -> int:
        if self._admit_next:
            return self._steps + 1
        while self._due[0][0] != self._due[0][2].due:
            heapq.heappop(self._due)
        until_full = (self.config.kv_tokens - self.kv) // len(self.running)
        return min(self._due[0][0], self._steps + until_full)

    def _step_to(self, step: int) -> None:
        count = step - self._steps
        if count:
            self._spend(self._this_step() + (count - 1) * self._tau())
            tokens = count * len(self.running)
            self.sampled += tokens
            self.computed += tokens
            self.kv += tokens
            self._steps = step
            self._under_way = None

    def _spend(self, seconds: float) -> None:
        self._begin += seconds
        self.busy_s += seconds

    def _come_due(self) -> None:
        self._admit_next = False
        while self._due and self._due[0][0] == self._steps:
            sequence = heapq.heappop(self._due)[2]
            if sequence.due == self._steps:
                self._settle(sequence)
                self._deliver(sequence)

    def _settle(self, sequence: Sequence) -> None:
        if sequence.place is self.running and sequence.since < self._steps:
            sequence.take(self._steps - sequence.since, self.version)
            sequence.since = self._steps

    def _deliver(self, sequence: Sequence) -> None:
        if sequence.made == sequence.end:
            sequence.emit("stop")
            sequence.turn_over = True
            if sequence.spec.hold:
                self._move(sequence, self.resting)
            else:
                self.drop(sequence)
        elif sequence.budget == 0:
            sequence.emit("boundary")
            self._move(sequence, self.resting)
        else:
            sequence.emit(None)
            self._plan(sequence)

    def _plan(self, sequence: Sequence) -> None:
        if sequence.place is self.running:
            sequence.due = self._steps + sequence.to_go
            heapq.heappush(self._due, (sequence.due, next(self._serials), sequence))

    # Places: who has a slot, who has KV.

    def _enter(self, sequence: Sequence, place: Place) -> Sequence:
        self.sequences[sequence.id] = place[sequence.id] = sequence
        sequence.place = place
        return sequence

    def _move(self, sequence: Sequence, place: Place, to_front: bool = False) -> None:
        self._settle(sequence)
        del sequence.place[sequence.id]
        sequence.due = -1
        sequence.place = place
        place[sequence.id] = sequence
        if to_front:
            place.move_to_end(sequence.id, last=False)

    def _go_on(self, sequence: Sequence) -> None:
        sequence.owed_s += BOUNDARY_S[self.config.imitates]
        self._move(sequence, self.returning)

    def _fill_slots(self) -> None:
        """Pre: no step is under way."""
        self._make_room_for_a_step()
        for queue in (self.returning, self.new) if self.admits_new else (self.returning,):
            while queue and len(self.running) < self.config.slots:
                sequence = next(iter(queue.values()))
                missing = sequence.context - 1 - sequence.computed
                if not self._make_room(missing + len(self.running) + 1, sequence):
                    return
                self._start(sequence, missing)

    def _start(self, sequence: Sequence, missing: int) -> None:
        """It gets a slot. All its context but the last token is computed now; that one goes with its first step."""
        again = sequence.furthest - sequence.computed
        self._move(sequence, self.running)
        self._spend(missing / self.config.prefill_tokens_per_s + sequence.owed_s)
        sequence.owed_s = 0.0
        self.computed += missing
        self.recomputed += 0 if sequence.lost_to_update else again
        self.kv += missing
        sequence.computed = sequence.furthest = sequence.context - 1
        sequence.since = self._steps
        self._plan(sequence)

    def _make_room_for_a_step(self) -> None:
        while self.running and not self._make_room(len(self.running), None):
            youngest = next(reversed(self.running.values()))
            self._move(youngest, self.returning, to_front=True)
            self._preempt(youngest)

    def _make_room(self, tokens: int, needy: Sequence | None) -> bool:
        """Take KV from those who rest, then from those who wait; False if that is not enough."""
        while self.kv + tokens > self.config.kv_tokens:
            without_slot = chain(self.resting.values(), reversed(self.returning.values()))
            victim = next((s for s in without_slot if s.computed and s is not needy), None)
            if victim is None:
                return False
            self._preempt(victim)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._evict(sequence, for_update=False)
        self.preemptions += 1

    def _evict(self, sequence: Sequence, for_update: bool) -> None:
        """It is computed again later, and that is counted under what took its KV."""
        self.kv -= sequence.computed
        sequence.computed, sequence.mixed_kv, sequence.lost_to_update = 0, False, for_update

    # Sequences: making, finding, checking.

    def _drawn(self, spec: SequenceSpec) -> Sequence:
        draw = self.law.draw(sim_prompt(spec.tokens[0], self.law), turn_stream(spec.stream, spec.turn_begin))
        return Sequence(spec, draw.length, draw.entropy)

    def _fork(self, parent: Sequence, stream: int) -> str:
        name = next(name for number in self._forks if (name := f"{parent.id}/{number}") not in self.sequences)
        child = self._drawn(replace(parent.spec, id=name, stream=stream))
        child.context, child.budget, child.turn_over = parent.context, parent.budget, parent.turn_over
        child.made, child.end = parent.made, max(parent.made + 1, child.end)
        child.computed, child.furthest, child.mixed_kv = parent.computed, parent.furthest, parent.mixed_kv
        child.lost_to_update = parent.lost_to_update
        self.kv += child.computed
        if self.kv + len(self.running) > self.config.kv_tokens:  # the step under way must find room
            self._preempt(child)
        self._enter(child, self.resting if parent.place is self.resting else self.returning)
        return name

    def _alive(self, names: list[str]) -> Iterator[Sequence]:
        for name in names:
            if name in self.sequences:
                yield self.sequences[name]

    def _find(self, name: str) -> Sequence:
        if name not in self.sequences:
            raise SequenceStateError(
                f"sequence {name!r} is unknown: never added, or finished, released or aborted already"
            )
        return self.sequences[name]

    def _at_boundary(self, name: str, verb: str) -> Sequence:
        sequence = self._find(name)
        if sequence.place is not self.resting:
            state = "running" if sequence.place is self.running else "waiting"
            raise SequenceStateError(f"cannot {verb} sequence {name!r}: it is {state}, not at a boundary")
        return sequence

    def _check_spec(self, spec: SequenceSpec) -> None:
        if not 0 <= spec.done < len(spec.tokens):
            raise RequestError(
                f"sequence {spec.id!r} has {len(spec.tokens)} tokens and done = {spec.done}; give at least one prompt "
                "token, and at most the others as done"
            )
        if spec.chunk < 1:
            raise RequestError(f"sequence {spec.id!r}: chunk = {spec.chunk} must be at least 1")
        if spec.hidden:
            raise RequestError(f"sequence {spec.id!r}: hidden = True, but the simulator has no hidden states")
        _check_stream(spec.id, spec.stream)
        self._check_budget(spec.id, len(spec.tokens), spec.budget)

    def _check_budget(self, name: str, length: int, budget: int) -> None:
        if budget < 1:
            raise RequestError(f"sequence {name!r}: budget = {budget} must be at least 1 token")
        if length + budget > self.config.kv_tokens:
            raise RequestError(
                f"sequence {name!r} may grow to {length + budget} tokens, but the KV pool holds "
                f"{self.config.kv_tokens}; raise kv_tokens or lower the budget"
            )


def _check_stream(name: str, stream: int) -> None:
    if not (isinstance(stream, int) and 0 <= stream < 2**63):
        raise RequestError(f"sequence {name!r}: stream = {stream!r} must be an integer of at least 0 and below 2**63")
