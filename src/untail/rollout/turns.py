"""How the turns of a conversation are played: who is asked, for how long, and what its reply is in tokens.

Invariant: whatever an environment does, `ask` returns, after its time limit at the latest, and `tokens_of` gives either
tokens that the engine can take or the reason why the trajectory ends here. With a reply, the tokens of the trajectory
are those that the chat template gives for the conversation.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from untail.backends.base import Capabilities, Clock
from untail.config import Recipe
from untail.envs import ENVIRONMENTS, Answer, Environment, Turn
from untail.errors import ConfigError, UserError
from untail.rewards.scorer import Score
from untail.tokenizer import Tokenizer
from untail.types import Trajectory, stream_key


class Voice(Protocol):
    """The text of a turn, and a reply as tokens that go after it."""

    def text(self, tokens: Sequence[int]) -> str: ...

    def reply(self, turn: Sequence[int], text: str, role: str) -> list[int]: ...


class ChatVoice:
    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer

    def text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens)

    def reply(self, turn: Sequence[int], text: str, role: str) -> list[int]:
        """The model has written the mark that ends its turn, unless a stop string ended it."""
        tokens = self.tokenizer.between_turns(text, role)
        return tokens[1:] if turn[-1] == tokens[0] else tokens


class Turns:
    def __init__(
        self,
        environment: Environment,
        voice: Voice,
        score: Callable[[Trajectory], Awaitable[Score]],
        clock: Clock,
        context: int,
        vocab: int,
        seed: int,
    ):
        """`context`: the most tokens of a sequence."""
        self.environment = environment
        self.limits: Environment.Config = environment.config
        self.voice = voice
        self.clock = clock
        self.context = context
        self.vocab = vocab
        self.seed = seed
        self._score = score
        self._refuse_voice_that_cannot_reply()

    def may_go_on(self, trajectory: Trajectory, left: int) -> bool:
        """Its turn is over, and another could follow. `left`: tokens of its budget."""
        return trajectory.end == "stop" and trajectory.turns < self.limits.turns and left > 0

    def room(self, trajectory: Trajectory) -> int:
        """Tokens that its sequence can still get."""
        return self.context - len(trajectory.prompt.tokens) - len(trajectory.tokens)

    async def ask(self, trajectory: Trajectory) -> Answer:
        """Pre: `may_go_on`. It takes no time where time is ours."""
        async with self.clock.frozen():
            return await self._asked(self._turn(trajectory))

    def wait_s(self, answer: Answer, asked_s: float) -> tuple[Answer, float]:
        """The answer that counts, and how long until then, if asking has taken `asked_s`: a latency over the limit is
        cut there."""
        left = max(0.0, self.limits.time_limit_s - asked_s)
        return (answer, answer.latency_s) if answer.latency_s <= left else (Answer(failure="timeout"), left)

    def tokens_of(self, trajectory: Trajectory, answer: Answer) -> list[int] | str | None:
        """The reply's tokens; None if the environment ends the trajectory; or why it ends."""
        if answer.failure is not None or answer.text is None:
            return answer.failure
        try:
            tokens = self.voice.reply(trajectory.tokens[trajectory.turn_begin :], answer.text, self.limits.role)
        except Exception as error:  # a lone surrogate, or a template that refuses the text
            return _named("not text", error)
        odd = next((token for token in tokens if not 0 <= token < self.vocab), None)
        if odd is not None:
            return f"outside the vocabulary: token {odd} of {self.vocab}"
        length = len(trajectory.prompt.tokens) + len(trajectory.tokens) + len(tokens)
        if length >= self.context:
            return f"too long: {length} tokens with the reply in a context of {self.context}"
        return tokens

    async def reply(self, trajectory: Trajectory, version: int) -> list[int] | None:
        """Ask, wait, and take the reply into the trajectory; None if it ends here, for whatever reason."""
        began = self.clock.now()
        answer, seconds = self.wait_s(await self.ask(trajectory), self.clock.now() - began)
        if seconds > 0:
            await self.clock.sleep(seconds)
        tokens = self.tokens_of(trajectory, answer)
        if not isinstance(tokens, list):
            trajectory.tool_failure = tokens
            return None
        trajectory.take_reply(tokens, version)
        return tokens

    def _turn(self, trajectory: Trajectory) -> Turn:
        async def score() -> float:
            return (await self._score(trajectory)).value

        text = self.voice.text(trajectory.tokens[trajectory.turn_begin :])
        stream = stream_key(self.seed, "environment", trajectory.id, trajectory.turns)
        return Turn(trajectory.prompt, trajectory.turns, text, stream, score)

    async def _asked(self, turn: Turn) -> Answer:
        try:
            async with asyncio.timeout(self.limits.time_limit_s) as limit:
                reply: Any = await self.environment.reply(turn)
            latency = float(self.environment.latency_s(turn))
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            # Whatever it is, it belongs to this trajectory alone.
            return Answer(failure="timeout" if limit.expired() else _named("raised", error))
        if not (reply is None or isinstance(reply, str)):
            return Answer(failure=f"not a string: {type(reply).__name__}")
        if not (math.isfinite(latency) and latency >= 0):
            return Answer(failure=f"raised: a latency of {latency} s")
        return Answer(reply, latency_s=latency)

    def _refuse_voice_that_cannot_reply(self) -> None:
        try:
            self.voice.reply([-1], "?", self.limits.role)
        except UserError:
            raise
        except Exception as error:
            raise ConfigError(
                f"environment.role = {self.limits.role!r}: the model's chat template cannot render such a reply "
                f"({error}); set another role"
            ) from error


def _is_cancelled() -> bool:
    """By us: an environment may let one through that was meant for a client of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _named(kind: str, error: BaseException) -> str:
    return f"{kind}: {type(error).__name__}: {error}"


def build_environment(recipe: Recipe, capabilities: Capabilities, backend: str) -> Environment | None:
    """The environment of the recipe, if it has one; refused if the backend cannot go on after a reply."""
    if recipe.environment is None:
        return None
    environment = ENVIRONMENTS.build(recipe.environment, "environment")
    stops = environment.stop_strings
    if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
        raise ConfigError(
            f"environment.name = {recipe.environment['name']!r}: its stop_strings are {stops!r}; they must be a tuple "
            "of strings that are not empty"
        )
    if not capabilities.append:
        raise ConfigError(
            f"environment.name = {recipe.environment['name']!r} needs replies within a sequence, which the backend "
            f"{backend!r} does not take; use another backend, or leave the environment out"
        )
    return environment


def resolved_table(table: dict[str, Any] | None) -> dict[str, Any] | None:
    """The environment's table with every field written out."""
    if table is None:
        return None
    config = ENVIRONMENTS.build(table, "environment").config
    return {"name": table["name"], **config.model_dump(mode="json", exclude_none=True)}
