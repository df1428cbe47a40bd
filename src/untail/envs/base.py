"""What an environment is: text of the model's turn in, a reply or the end out.

Invariant: an environment keeps nothing between two calls, so that a turn may be asked about again: that is what a run
does that was broken off while a reply was on its way. What it raises, returns or takes too long for costs its own
trajectory and no other (see rollout/turns.py). It shares the trainer's event loop: work that blocks belongs into
`asyncio.to_thread`, or else nothing can cut it short; a thread that hangs cannot be ended either, only left behind.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from untail.config import PositiveFloat, PositiveInt, Strict
from untail.registry import Registry
from untail.types import Prompt


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the model that is over."""

    prompt: Prompt
    number: int  # of the trajectory's turns, from 1
    text: str  # what the model wrote in it
    stream: int  # a random stream of its own: the same for the same seed, trajectory and turn
    score: Callable[[], Awaitable[float]]
    """What the scorer of the prompt's task gives for the text."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of asking: the reply's text, or None for the end. `failure` is why there is none, if the environment
    failed; `latency_s`, how long it is to seem to have taken."""

    text: str | None = None
    failure: str | None = None
    latency_s: float = 0.0


class Environment(ABC):
    class Config(Strict):
        turns: PositiveInt = 4  # of the model, at most
        time_limit_s: PositiveFloat = 10.0  # per reply
        role: Literal["user", "tool"] = "user"  # whose turn a reply is to the chat template

    stop_strings: ClassVar[tuple[str, ...]] = ()
    """What ends the model's turn besides its own stop tokens."""

    def __init__(self, config: Any):
        self.config = config

    @abstractmethod
    async def reply(self, turn: Turn) -> str | None:
        """None ends the trajectory. Not asked after the last turn, nor where no budget is left for another."""

    def latency_s(self, turn: Turn) -> float:
        """Seconds by the backend's clock, on top of what `reply` takes: to imitate a slow tool. Finite, 0 or more."""
        return 0.0


ENVIRONMENTS: Registry[Environment] = Registry("environment")
