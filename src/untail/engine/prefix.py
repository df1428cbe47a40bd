"""The prefix cache: full blocks found again by what is in them and everything before it.

Invariant: a cached block holds the keys and values of exactly the token path that leads to it, computed with exactly
the weight version at its root. The path is a chain of (parent node, 16 tokens), compared token by token: no hash can
collide, and a new weight version starts from a new root, so that nothing stale is ever found.
"""

from collections.abc import Sequence as Tokens
from itertools import count

from untail.engine.blocks import BLOCK

Node = int


class PrefixCache:
    def __init__(self, enabled: bool):
        self.enabled = enabled
        self.version = 0
        self._nodes = count(1)
        self._children: dict[tuple[Node, tuple[int, ...]], tuple[Node, int]] = {}
        self._key_of_block: dict[int, tuple[Node, tuple[int, ...]]] = {}

    def __len__(self) -> int:
        return len(self._key_of_block)

    def root(self) -> Node:
        """Real nodes count up from 1, so that roots, one per weight version, never meet them."""
        return -self.version

    def match(self, tokens: Tokens[int]) -> tuple[list[int], list[Node]]:
        """The longest cached path for `tokens`, as blocks and nodes; at least one token is left to compute."""
        blocks: list[int] = []
        path: list[Node] = []
        node = self.root()
        if self.enabled:
            for start in range(0, len(tokens) - BLOCK, BLOCK):
                found = self._children.get((node, tuple(tokens[start : start + BLOCK])))
                if found is None:
                    break
                node, block = found
                blocks.append(block)
                path.append(node)
        return blocks, path

    def insert(self, path: list[Node], tokens: Tokens[int], blocks: list[int], full: int) -> None:
        """Extend `path` (nodes of a sequence's blocks so far) to its first `full` blocks, caching those not yet
        known."""
        if not self.enabled:
            return
        for index in range(len(path), full):
            parent = path[-1] if path else self.root()
            key = (parent, tuple(tokens[index * BLOCK : (index + 1) * BLOCK]))
            known = self._children.get(key)
            if known is None:
                known = (next(self._nodes), blocks[index])
                self._children[key] = known
                self._key_of_block[blocks[index]] = key
            path.append(known[0])

    def forget(self, block: int) -> None:
        key = self._key_of_block.pop(block, None)
        if key is not None:
            del self._children[key]

    def clear(self) -> None:
        self._children.clear()
        self._key_of_block.clear()

    def blocks(self) -> set[int]:
        return set(self._key_of_block)
