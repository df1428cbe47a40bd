"""The work that every engine is given: prompts and forced lengths, the same draws in the same order."""

from typing import NamedTuple

import numpy as np


class Work(NamedTuple):
    prompts: list[list[int]]
    lengths: list[int]
    logprobs: bool  # asked of an engine that gives them only if asked


def workloads(vocab: int) -> dict[str, Work]:
    random = np.random.default_rng(0)
    prompts = lambda count: [random.integers(0, vocab, 128).tolist() for _ in range(count)]
    tail = np.minimum(random.lognormal(5.5, 0.9, 256).astype(int) + 16, 2048).tolist()
    group = np.minimum(random.lognormal(6.0, 1.0, 512).astype(int) + 16, 6144).tolist()
    return {
        "warm": Work(prompts(32), [64] * 32, False),
        "longtail": Work(prompts(256), tail, False),
        "longtail+logprobs": Work(prompts(256), tail, True),
        "uniform": Work(prompts(256), [512] * 256, False),
        "group": Work([prompt for prompt in prompts(64) for _ in range(8)], group, True),
        "single": Work(prompts(1), [1024], False),
    }
