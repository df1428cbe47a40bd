"""What the rollout controller asks of an engine, whichever it is.

Invariant: time comes from the backend's clock alone, so that a simulator can run the same controller in virtual time.
An error is raised to the caller that owns the sequence and to nobody else.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from untail.types import Chunk, Forked, SequenceSpec

PauseMode = Literal["keep", "wait", "abort"]
"""What happens to sequences in a slot: they stay as they are; they run to their end first; they are aborted."""


class EngineLost(Exception):
    """The engine behind a backend is gone, and with it what it had not told yet. Its sequences can go on elsewhere,
    from what they have told. `engine` is its number, where it has one, and `life` how often it had been lost before."""

    def __init__(self, why: str, engine: int | None = None, life: int = 0):
        super().__init__(why)
        self.engine = engine
        self.life = life


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do. A recipe that asks for more is refused when it is loaded."""

    entropy: Literal["exact", "topk", "none"]
    fork: Literal["cow", "prefix", "none"]  # copy-on-write of a running sequence, or a new request over a cached prefix
    hidden: bool  # sums of hidden states
    draft: bool  # drafts from outside, per sequence
    append: bool = True  # an environment's reply to a sequence that stays resident
    logprobs: bool = True  # of the policy and of what was sampled from, for every token


@dataclass(frozen=True, slots=True)
class Load:
    """How a backend stands, as of its last step."""

    kv_used: float  # share of the KV pool held by sequences that are alive, 0 to 1
    busy_s: float  # seconds spent computing since the backend began
    computed: int  # tokens computed since the backend began: prefill, decode and recomputation
    sampled: int  # tokens sampled since the backend began
    recomputed: int  # tokens computed again because KV ran out
    preemptions: int  # sequences that lost their KV because it ran out
    overrun: int = 0  # tokens drawn ahead for sequences that had been stopped meanwhile; sampled for nobody
    # By drafter, since the backend began: proposals, drafted, accepted, unverified, failures.
    drafts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class Clock(Protocol):
    def now(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    def frozen(self) -> AbstractAsyncContextManager[None]:
        """Around work outside the backend (scoring): where time is ours, it stands still; real time goes on.

        Pre: inside, only outside work is awaited; nothing is asked of the backend or its clock, not even `frozen()`.
        Post: where time is ours, those inside leave together, in the order in which they entered.
        """
        ...


class LoopClock:
    """The event loop's time: real, or virtual under `virtual_loop.py`."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def frozen(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()


class Backend(Protocol):
    capabilities: Capabilities
    clock: Clock

    def generate(self, spec: SequenceSpec) -> AsyncGenerator[Chunk, None]:
        """Start a sequence and stream its chunks.

        Post: every chunk has at least one token, or an `end`. The stream closes after `stop` (unless `spec.hold`),
        `length` and `abort`. After `boundary`, and after a held `stop`, it waits until extend, append or release
        decides. A consumer that goes away aborts its sequence.
        """
        ...

    def stream(self, name: str) -> AsyncGenerator[Chunk, None]:
        """The chunks of a fork's child, under the same rules. Pre: `name` came from `fork` and has no other
        consumer."""
        ...

    async def extend(self, name: str, budget: int) -> None:
        """Go on for `budget` more tokens. Pre: at a boundary."""
        ...

    async def append(self, name: str, tokens: list[int], budget: int | None = None) -> None:
        """The environment's reply: context, not loss. It then goes on for `budget` tokens, or else for what is left of
        the budget it had. Pre: at a boundary, or stopped and held."""
        ...

    async def fork(self, name: str, streams: list[int], temperatures: list[float] | None = None) -> Forked:
        """One child per random stream, each going on where the parent stands. Pre: not finished.

        Post: the parent's stream has, or is about to get, all tokens up to `Forked.position`; children have what comes
        after it.
        """
        ...

    async def release(self, name: str) -> None:
        """The end of a sequence at a boundary; its stream closes."""
        ...

    async def cut(self, names: list[str]) -> None:
        """Their budget ends here: each stream yields what it has and `boundary`. One that has come to its end or to a
        boundary meanwhile is left alone."""
        ...

    async def abort(self, names: list[str]) -> None:
        """The end of sequences wherever they are; each stream yields what it has and `abort`, and closes. One that has
        come to its end meanwhile is left alone."""
        ...

    def load(self) -> Load: ...

    def step_seconds(self, batch: int) -> float:
        """What a step with `batch` running sequences takes, as measured so far (1.0 where nothing is known)."""
        ...

    async def pause(self, mode: PauseMode) -> None:
        """Post: nothing is computed until `resume`."""
        ...

    async def resume(self) -> None: ...

    async def load_weights(self, source: Any, version: int) -> None:
        """Post: every token sampled from now on carries `version`. All of it is applied, or none."""
        ...

    async def sleep(self, level: int) -> None:
        """Give device memory back: level 1 the KV pool. Sequences stay."""
        ...

    async def wake(self) -> None: ...

    async def close(self) -> None:
        """Abort everything and stop."""
        ...
