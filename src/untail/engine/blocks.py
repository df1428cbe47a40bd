"""The pool of KV blocks: who holds which, and which are free.

Invariant: free + held = total, and a block's reference count is the number of block-table entries that name it. A free
block keeps its contents until it is handed out again (the prefix cache may still find it), least recently freed first.
"""

from collections import OrderedDict
from collections.abc import Callable

BLOCK = 16  # tokens per block


def blocks_for(tokens: int) -> int:
    return (tokens + BLOCK - 1) // BLOCK


class BlockPool:
    def __init__(self, total: int, on_reuse: Callable[[int], None]):
        """`on_reuse` hears of every block whose old contents are about to be overwritten."""
        self.total = total
        self.references = [0] * total
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(total))
        self._on_reuse = on_reuse

    @property
    def free(self) -> int:
        return len(self._free)

    def is_free(self, block: int) -> bool:
        return block in self._free

    def is_shared(self, block: int) -> bool:
        return self.references[block] > 1

    def allocate(self) -> int:
        """Pre: free > 0."""
        block, _ = self._free.popitem(last=False)
        self._on_reuse(block)
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more holder; a free block whose contents are still good comes back to life."""
        self._free.pop(block, None)
        self.references[block] += 1

    def release(self, block: int) -> None:
        self.references[block] -= 1
        if self.references[block] == 0:
            self._free[block] = None
