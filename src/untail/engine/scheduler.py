"""Which sequences compute how many tokens in the next step.

Invariant: work in a slot goes before work that returns (preempted, extended, forked, begun elsewhere), and that before
new work, which has no token yet. The oldest sequence in a slot can take every other's blocks, so something always
moves. What rests at a boundary loses its blocks first, then what waits, then the youngest in a slot. Nothing is
reserved for a worst case.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from untail.engine.blocks import BLOCK, BlockPool, blocks_for
from untail.engine.prefix import PrefixCache
from untail.engine.sequence import Sequence, State


class Work(NamedTuple):
    sequence: Sequence
    size: int  # of its known tokens to compute, from sequence.computed on
    lookahead: int  # drafts that its blocks have room for after these
    drafts: list[int]  # at most so many, put in once everything is planned

    @property
    def catches_up(self) -> bool:
        """All its tokens are computed then: it samples."""
        return self.sequence.wanted == self.size


class StepSize(NamedTuple):
    """What one step computes."""

    sequences: int
    tokens: int

    @property
    def decodes_only(self) -> bool:
        """One token each: nothing is filled in."""
        return 0 < self.sequences == self.tokens


@dataclass
class Plan:
    work: list[Work] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)  # (from, to) blocks: copy-on-write, before the forward

    @property
    def size(self) -> StepSize:
        return StepSize(len(self.work), sum(work.size + len(work.drafts) for work in self.work))


@dataclass
class Counts:
    """Tokens, since the engine began. What is computed is fresh, or computed again after an eviction or an update."""

    computed: int = 0
    recomputed_after_eviction: int = 0
    recomputed_after_update: int = 0
    prefix_hits: int = 0
    sampled: int = 0
    drafted: int = 0  # verified drafts; those accepted are computed tokens like any other
    accepted: int = 0
    overrun: int = 0  # drawn by a launch after its sequence had left its slot; never anybody's
    preemptions: int = 0
    steps: int = 0


class Scheduler:
    def __init__(self, pool: BlockPool, prefix: PrefixCache, max_seqs: int, max_batch_tokens: int):
        self.pool = pool
        self.prefix = prefix
        self.max_seqs = max_seqs
        self.max_batch_tokens = max_batch_tokens
        self.counts = Counts()
        self.admits_new = True
        self.running: list[Sequence] = []
        self.returning: deque[Sequence] = deque()
        self.new: deque[Sequence] = deque()
        self.resting: OrderedDict[str, Sequence] = OrderedDict()  # at a boundary, longest there first

    def add(self, sequence: Sequence) -> None:
        """One that has tokens from another engine or from before a checkpoint returns: as if it had been here."""
        self._queue_for(sequence).append(sequence)

    def resume(self, sequence: Sequence) -> None:
        """From a boundary, or fresh from a fork. One that was cut before its first token is still new."""
        self.resting.pop(sequence.id, None)
        sequence.state = State.WAITING
        self._queue_for(sequence).append(sequence)

    def _queue_for(self, sequence: Sequence) -> deque[Sequence]:
        return self.returning if sequence.has_begun else self.new

    def rest(self, sequence: Sequence) -> None:
        """It leaves its slot and keeps its blocks for as long as nobody needs them."""
        self._leave(sequence)
        self.trim(sequence)
        self.add_resting(sequence)

    def add_resting(self, sequence: Sequence) -> None:
        sequence.state = State.BOUNDARY
        self.resting[sequence.id] = sequence

    def remove(self, sequence: Sequence) -> None:
        self._leave(sequence)
        self._release(sequence)
        sequence.state = State.FINISHED

    def evict_all(self, for_update: bool) -> None:
        """Every key and value is void; what was in a slot returns in order, ahead of everything else."""
        for sequence in [*self.resting.values(), *self.returning, *self.running, *self.new]:
            self._evict(sequence, for_update)
        for sequence in reversed(self.running):
            sequence.state = State.WAITING
            self.returning.appendleft(sequence)
        self.running.clear()

    @property
    def could_begin(self) -> int:
        """New sequences that there are slots for."""
        return min(len(self.new), self.max_seqs - len(self.running)) if self.admits_new else 0

    def plan(
        self,
        depths: Mapping[str, int] | None = None,
        is_elsewhere: Callable[[Sequence], bool] = lambda _: False,
        begins_new: bool = True,
    ) -> Plan:
        """`depths`: how many drafts a sequence may carry that has caught up. What `is_elsewhere` gets its slot and no
        work: somebody else computes it. Without `begins_new` new sequences wait for another step."""
        plan = Plan()
        room = self._plan_known(plan, is_elsewhere, begins_new and self.admits_new)
        if depths:
            self._look_ahead(plan, depths, room)
        return plan

    def _plan_known(self, plan: Plan, is_elsewhere: Callable[[Sequence], bool], begins_new: bool) -> int:
        """Tokens that are there to compute; the room that is left for others."""
        room = self.max_batch_tokens
        for sequence in list(self.running):
            if is_elsewhere(sequence):
                continue
            count = min(sequence.wanted, room)
            # A sequence planned earlier in this step may have taken its blocks: then it is not running any more.
            if count and sequence.state is State.RUNNING and self._reserve(sequence, count, plan):
                self._commit(sequence, count, plan)
                room -= count
        for queue in (self.returning, self.new) if begins_new else (self.returning,):
            while queue and room and len(self.running) < self.max_seqs:
                planned = self._admit(queue[0], room, plan, is_elsewhere)
                if planned is None:
                    return room
                queue.popleft()
                room -= planned
        return room

    def _admit(self, sequence: Sequence, room: int, plan: Plan, is_elsewhere: Callable[[Sequence], bool]) -> int | None:
        """Give it a slot if its next tokens find blocks without taking any from a slot; the tokens planned, or None."""
        fresh = not sequence.blocks
        if fresh:
            self._match_prefix(sequence)
        count = min(sequence.wanted, room)
        if not self._reserve(sequence, count, plan, from_slots=False):
            if fresh:
                self._release(sequence)
            return None
        sequence.state = State.RUNNING
        sequence.stay += 1
        self.running.append(sequence)
        if is_elsewhere(sequence):
            self._count(sequence, 0)
            return 0
        self._commit(sequence, count, plan)
        return count

    def shares(self, sequence: Sequence, place: int) -> bool:
        """Others hold the block at that place of its table too."""
        return place < len(sequence.blocks) and self.pool.is_shared(sequence.blocks[place])

    def reserve_ahead(self, wanted: list[tuple[Sequence, int]], plan: Plan) -> bool:
        """Blocks for the next tokens of sequences in slots, taken from nobody in a slot; False if there are too few."""
        return all(self._reserve(sequence, count, plan, from_slots=False) for sequence, count in wanted)

    def settle_ahead(self, sequence: Sequence, taken: int) -> None:
        """It took so many tokens that were computed one after another, each but the last, and the one before them."""
        sequence.computed = len(sequence.tokens) - 1
        sequence.furthest = max(sequence.furthest, sequence.computed)
        self.counts.sampled += taken
        self.counts.computed += taken
        if not sequence.mixed_kv:
            self.prefix.insert(sequence.path, sequence.tokens, sequence.blocks, sequence.computed // BLOCK)

    def settle(self, sequence: Sequence, taken: int, drafted: int, accepted: int) -> None:
        """It took so many tokens, whose keys and values are computed, except for the last one's. Room for other drafts
        goes back."""
        sequence.computed = len(sequence.tokens) - 1
        sequence.furthest = max(sequence.furthest, sequence.computed)
        self.counts.sampled += taken
        self.counts.computed += taken - 1
        self.counts.drafted += drafted
        self.counts.accepted += accepted
        self.trim(sequence)

    def make_room(self, sequence: Sequence) -> bool:
        """Blocks for all its tokens, which may not be computed yet, if any are free. Pre: it is in a slot."""
        missing = blocks_for(len(sequence.tokens)) - len(sequence.blocks)
        if self.pool.free < missing or self.pool.is_shared(sequence.blocks[-1]):
            return False
        sequence.blocks += [self.pool.allocate() for _ in range(missing)]
        return True

    def trim(self, sequence: Sequence) -> None:
        while len(sequence.blocks) > blocks_for(len(sequence.tokens)):
            self.pool.release(sequence.blocks.pop())

    def _look_ahead(self, plan: Plan, depths: Mapping[str, int], room: int) -> None:
        """Room for drafts, when everything else has its own: nobody loses blocks for a draft."""
        for index, work in enumerate(plan.work):
            sequence = work.sequence
            spare = (len(sequence.blocks) + self.pool.free) * BLOCK - len(sequence.tokens)
            depth = min(depths.get(sequence.id, 0), spare, room)
            if depth < 1:
                continue
            while len(sequence.blocks) < blocks_for(len(sequence.tokens) + depth):
                sequence.blocks.append(self.pool.allocate())
            plan.work[index] = work._replace(lookahead=depth)
            room -= depth

    def _match_prefix(self, sequence: Sequence) -> None:
        sequence.blocks, sequence.path = self.prefix.match(sequence.tokens)
        for block in sequence.blocks:
            self.pool.share(block)
        sequence.computed = len(sequence.blocks) * BLOCK

    def _commit(self, sequence: Sequence, count: int, plan: Plan) -> None:
        self._count(sequence, count)
        plan.work.append(Work(sequence, count, 0, []))
        if not sequence.mixed_kv:
            # Cached already now: a sibling planned later in this very step may share these blocks, since every layer
            # writes all new keys and values before any is read.
            self.prefix.insert(sequence.path, sequence.tokens, sequence.blocks, (sequence.computed + count) // BLOCK)

    def _count(self, sequence: Sequence, count: int) -> None:
        """What it had once under the present weights was lost because there was no room; what only older ones had, to
        the update."""
        end, had = sequence.computed + count, max(sequence.furthest, sequence.stale)
        lost_to_eviction = max(0, min(end, sequence.furthest) - sequence.computed)
        self.counts.computed += count
        self.counts.recomputed_after_eviction += lost_to_eviction
        self.counts.recomputed_after_update += max(0, min(end, had) - sequence.computed) - lost_to_eviction
        self.counts.prefix_hits += max(0, sequence.computed - had)
        sequence.furthest = max(sequence.furthest, end)

    def _reserve(self, sequence: Sequence, count: int, plan: Plan, from_slots: bool = True) -> bool:
        """Blocks for its next `count` tokens, its own where it writes; False if they cannot be had in this step."""
        first, wanted = sequence.computed // BLOCK, blocks_for(sequence.computed + count)

        # Asked anew each time: an eviction may free the block and leave it to this sequence alone.
        while self.pool.free < wanted - len(sequence.blocks) + self.shares(sequence, first):
            if not self._take_blocks(sequence, plan, from_slots):
                return False
        if self.shares(sequence, first):
            copy = self.pool.allocate()
            plan.copies.append((sequence.blocks[first], copy))
            self.pool.release(sequence.blocks[first])
            sequence.blocks[first] = copy
        while len(sequence.blocks) < wanted:
            sequence.blocks.append(self.pool.allocate())
        return True

    def _take_blocks(self, needy: Sequence, plan: Plan, from_slots: bool) -> bool:
        """Evict one sequence other than `needy`; False if there is none that may be."""
        for sequence in chain(self.resting.values(), reversed(self.new), reversed(self.returning)):
            if sequence.blocks and sequence is not needy:
                self._evict(sequence, for_update=False)
                self.counts.preemptions += 1
                return True
        if from_slots:
            planned = {id(work.sequence) for work in plan.work}
            for sequence in reversed(self.running):
                if id(sequence) not in planned and sequence is not needy:
                    self._preempt(sequence)
                    return True
        return False

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._evict(sequence, for_update=False)
        sequence.state = State.WAITING
        self.returning.appendleft(sequence)
        self.counts.preemptions += 1

    def _evict(self, sequence: Sequence, for_update: bool) -> None:
        """It is computed again later, and that is counted under what took its blocks."""
        if for_update:
            sequence.stale, sequence.furthest = max(sequence.stale, sequence.furthest), 0
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        for block in sequence.drop_kv():
            self.pool.release(block)

    def _leave(self, sequence: Sequence) -> None:
        match sequence.state:
            case State.RUNNING:
                self.running.remove(sequence)
            case State.BOUNDARY:
                del self.resting[sequence.id]
            case State.WAITING:
                (self.returning if sequence in self.returning else self.new).remove(sequence)
