"""The trainer's side of scoring: hand in a response, get a number.

Invariant: `score` returns a finite number for every response, whatever it makes its scorer do; where the scorer
failed the number is 0, the reason is named and counted, and no other answer is touched. All work is done in other
processes (see `foreman`).
"""

import asyncio
import itertools
import json
import os
import pickle
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

from untail.errors import ConfigError
from untail.rewards.base import build_reward
from untail.rewards.foreman import NUMBER, receive
from untail.rewards.partial import build_partial
from untail.rewards.sandbox import wire
from untail.types import Prompt

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Score:
    """`failure` is None, "timeout", "died", "memory", "raised: ..." or "not a number: ..."."""

    value: float
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class PartialScore:
    """None: it cannot tell yet, or it failed."""

    value: float | None
    failure: str | None = None


class Scorer:
    """Belongs to the event loop it is first used in. The processes start with the first answer, or with `start`."""

    def __init__(
        self,
        rewards: dict[str, dict[str, Any]],
        workers: int = 2,
        time_limit_s: float = 2.0,
        memory_limit_mb: int = 512,
        partials: dict[str, dict[str, Any]] | None = None,
    ):
        """`rewards` and `partials`: a table per task; a task need not have a partial score."""
        if min(workers, time_limit_s, memory_limit_mb) <= 0:
            raise ConfigError(f"{workers} workers, {time_limit_s} s and {memory_limit_mb} MB: all have to be positive")
        for task, table in rewards.items():
            build_reward(table, f"the reward of task {task!r}")  # a wrong table is found here, not at the first answer
        self._partials = partials or {}
        for task, table in self._partials.items():
            build_partial(table, f"the partial of task {task!r}")
        self.failures: Counter[str] = Counter()  # by kind: "raised", "timeout", ...
        self._rewards = rewards
        limits = {"workers": workers, "time_limit_s": time_limit_s, "memory_limit_mb": memory_limit_mb}
        self._settings = {"rewards": rewards, "partials": self._partials, **limits}
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[PartialScore]] = {}
        self._starting = asyncio.Lock()
        self._foreman: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self._closed = False

    async def __aenter__(self) -> "Scorer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the processes if they do not run; a `ConfigError` if a reward lacks something to work with."""
        async with self._starting:
            if self._closed:
                raise RuntimeError("the scorer is closed")
            if self._writer is None:
                await self._start_foreman()

    async def score(self, prompt: Prompt, response: str) -> Score:
        if prompt.task not in self._rewards:
            raise ConfigError(
                f"no reward for the task {prompt.task!r}; there are rewards for: {', '.join(self._rewards)}"
            )
        reply = await self._ask("reward", prompt, response)
        # A reward that cannot tell is a failure already: a worker that says so is no longer itself.
        score = Score(0.0, reply.failure or "died") if reply.value is None else Score(reply.value, reply.failure)
        if score.failure is not None:
            self.failures[score.failure.partition(":")[0]] += 1
        return score

    async def partial(self, prompt: Prompt, text: str) -> PartialScore:
        """What the text so far is worth; a task without a partial score cannot tell."""
        if prompt.task not in self._partials:
            return PartialScore(None)
        reply = await self._ask("partial", prompt, text)
        return reply if reply.failure is None else PartialScore(None, reply.failure)

    async def _ask(self, kind: str, prompt: Prompt, text: str) -> PartialScore:
        while self._writer is None:
            await self.start()
        number = next(self._numbers)
        self._pending[number] = asyncio.get_running_loop().create_future()
        payload = NUMBER.pack(number) + pickle.dumps((kind, prompt, text), pickle.HIGHEST_PROTOCOL)
        self._writer.write(wire.framed(payload))  # not drained: the caller bounds what is under way
        try:
            return await self._pending[number]
        finally:
            self._pending.pop(number, None)

    async def close(self) -> None:
        """End all processes; answers still under way fail with "died"."""
        async with self._starting:
            self._closed = True
            if self._writer is not None:
                self._writer.close()
            if self._listener is not None:
                await self._listener

    async def _start_foreman(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._foreman = subprocess.Popen(
                [sys.executable, "-P", "-m", "untail.rewards.foreman", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # Ctrl-C is for the trainer, which still wants its scores
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(wire.framed(json.dumps(self._settings).encode()))
        try:
            error = json.loads(await receive(reader))["error"]
        except EOFError:
            error = "the scoring process ended while it started; standard error says why"
        if error:
            writer.close()
            await asyncio.to_thread(self._foreman.wait)
            raise ConfigError(error)
        self._writer = writer
        self._listener = asyncio.create_task(self._listen(reader, self._foreman))

    async def _listen(self, reader: asyncio.StreamReader, foreman: subprocess.Popen[bytes]) -> None:
        try:
            while True:
                message = await receive(reader)
                future = self._pending.get(NUMBER.unpack(message[: NUMBER.size])[0])
                if future is not None and not future.done():  # it is gone if the caller was cancelled
                    future.set_result(PartialScore(**json.loads(message[NUMBER.size :])))
        except (EOFError, ConnectionError):  # closed by us, or the foreman was killed; the next answer starts another
            self._writer = None
            for future in self._pending.values():
                if not future.done():
                    future.set_result(PartialScore(None, "died"))
            await asyncio.to_thread(foreman.wait)
