"""Kernels that follow one another without a gap (programmatic dependent launch, Hopper and later).

Invariant: before `wait` a kernel reads only weights, and what no kernel of this chain writes, and it writes nothing
there; after it, everything that the kernels before it wrote is there. It lets its follower start at once (`start`), so
that the follower's programs are resident and its first weights in their registers while this one still computes. Since
every kernel of a chain waits, being after the last one is being after all.

Without CHAINED (other GPUs, the interpreter) both do nothing and kernels run one after another.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def start(CHAINED: tl.constexpr):
    if CHAINED:
        gdc_launch_dependents()


@triton.jit
def wait(CHAINED: tl.constexpr):
    if CHAINED:
        gdc_wait()
