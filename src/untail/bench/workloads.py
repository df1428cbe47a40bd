"""Identical work for every engine: random prompts, and response lengths that are forced.

No engine may stop early, so tokens per second compare like with like. The shapes are those of RL rollouts: a long tail,
the same length for all, groups that share a prompt, and one sequence alone.
"""

from dataclasses import dataclass

import numpy as np

from untail.errors import UserError, nearest


@dataclass(frozen=True)
class Workload:
    name: str
    prompts: list[list[int]]
    lengths: list[int]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


def make_workload(name: str, vocab: int, sequences: int, median: int) -> Workload:
    """`median` response tokens; the long tail is lognormal (sigma 0.9), cut at 8 times that."""
    random = np.random.default_rng(0)
    prompts = lambda count: random.integers(0, vocab, (count, 32)).tolist()
    tail = lambda count: np.clip(random.lognormal(np.log(median), 0.9, count), 4, 8 * median).astype(int).tolist()
    match name:
        case "longtail":
            return Workload(name, prompts(sequences), tail(sequences))
        case "uniform":
            return Workload(name, prompts(sequences), [median] * sequences)
        case "group":
            shared = prompts(max(1, sequences // 8))
            return Workload(name, [prompt for prompt in shared for _ in range(8)], tail(8 * len(shared)))
        case "single":
            return Workload(name, prompts(1), [4 * median])
    raise UserError(f"unknown workload {name!r}; {nearest(name, ['longtail', 'uniform', 'group', 'single'])}")
