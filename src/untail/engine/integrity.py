"""What must hold between two calls of the engine, checked: tests run it after every operation."""

from collections import Counter
from collections.abc import Collection

from untail.engine.blocks import BLOCK, BlockPool, blocks_for
from untail.engine.scheduler import Scheduler
from untail.engine.sequence import Sequence, State


def check_blocks(pool: BlockPool, sequences: Collection[Sequence]) -> None:
    """References are table entries, and what nobody holds is free."""
    entries = Counter(block for sequence in sequences for block in sequence.blocks)
    for block in range(pool.total):
        assert pool.references[block] == entries[block], f"block {block}: references differ from table entries"
        assert pool.is_free(block) == (entries[block] == 0), f"block {block}: free and held at once"


def check_places(scheduler: Scheduler, names: Collection[str], context: int, ahead: int) -> None:
    """Every sequence is in one place, with the blocks that its tokens need; running ones with up to `ahead` more."""
    places = [*scheduler.running, *scheduler.returning, *scheduler.new, *scheduler.resting.values()]
    assert sorted(s.id for s in places) == sorted(names), "a sequence is in no place or in two"
    assert all(s.state is State.RUNNING for s in scheduler.running)
    assert all(s.state is State.WAITING for s in [*scheduler.returning, *scheduler.new])
    assert all(s.state is State.BOUNDARY for s in scheduler.resting.values())
    assert len(scheduler.running) <= scheduler.max_seqs
    for sequence in places:
        assert sequence.computed < len(sequence.tokens) <= context
        most = len(sequence.tokens) + (ahead if sequence.state is State.RUNNING else 0)
        assert blocks_for(sequence.computed) <= len(sequence.blocks) <= blocks_for(most)
        assert len(sequence.path) * BLOCK <= sequence.computed
