"""The simulated engine: sequences whose lengths come from a law, and the time that a device would take for them.

Invariant: a step with b running sequences lasts tau(b) and gives each of them one token; whatever else is computed
(prefill, segment boundaries) delays them all. Nothing is done token by token: between two changes of the running set
the engine only counts steps. Control sees the whole steps that are over; a sequence that leaves in the middle of a step
gets no token of it, one that comes waits for its end. What is sampled is counted once, and is in exactly one chunk.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from itertools import count as counting

from untail.backends.laws import Law, sim_prompt, turn_stream
from untail.backends.sim_device import BOUNDARY_S, SimConfig
from untail.backends.sim_sequence import Place, Sequence
from untail.errors import RequestError, SequenceStateError, WeightsError
from untail.types import Forked, SequenceSpec

ROUNDING = 1e-6  # of a step: a step is over when no more than this is missing


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
