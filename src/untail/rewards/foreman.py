"""The foreman: one process that forks the scoring workers, hands them answers, and kills and replaces those that go
wrong.

Invariant: an answer handed in gets exactly one reply, in about the time limit at most once a worker has it; a worker
that hangs, dies, runs out of memory or talks nonsense costs the one answer it holds. A forked replacement costs
milliseconds, since what the rewards import is imported here, once, before any answer arrives. The foreman itself
never looks into an answer. It keeps its own clock, so that a trainer that is busy for seconds makes nobody time out.
It ends when the trainer's end of the socket closes, and its workers with it; orphans of workers fall to it and are
killed.

Run as: python -m untail.rewards.foreman SOCKET_FD. The first message holds the settings; each that follows is a
number (8 bytes) and a pickled (kind, Prompt, response) that only the workers open. Every reply is JSON: a worker's
word is never unpickled.
"""

import asyncio
import contextlib
import gc
import json
import math
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

from untail.errors import UserError
from untail.rewards import build_reward, worker
from untail.rewards.partial import build_partial
from untail.rewards.sandbox import confine, wire

NUMBER = struct.Struct("<Q")
TICKET_BYTES = 8
LONGEST_REPLY = 16 * 1024  # a worker's reply is a number and a short reason
FATAL = ("timeout", "died", "memory")  # after these the worker is replaced
Reply = dict[str, Any]


class Worker:
    """The foreman's side of one worker process."""

    def __init__(self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.pid = pid
        self.reader = reader
        self.writer = writer

    async def score(self, job: bytes, time_limit_s: float) -> Reply:
        """The reply to this very job: what a worker says unasked carries an old ticket and is passed over."""
        ticket = os.urandom(TICKET_BYTES)
        try:
            async with asyncio.timeout(time_limit_s):
                self.writer.write(wire.framed(ticket) + wire.framed(job))
                while True:
                    message = await receive(self.reader, LONGEST_REPLY)
                    if message.startswith(ticket):
                        return _checked(message[len(ticket) :])
        except TimeoutError:
            return failed("timeout")
        except Exception:  # whatever a hostile worker sends, down to JSON that is nested too deeply
            return failed("died")


class Foreman:
    def __init__(self, scorers: worker.Scorers, workers: int, time_limit_s: float, memory_limit_mb: int):
        self.scorers = scorers
        self.slots = workers
        self.time_limit_s = time_limit_s
        self.memory_limit_mb = memory_limit_mb
        self.workers: dict[int, Worker] = {}  # the living, by pid
        self.jobs: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()

    async def run(self, trainer: asyncio.StreamReader, replies: asyncio.StreamWriter) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        slots = [asyncio.create_task(self._slot(replies)) for _ in range(self.slots)]
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                message = await receive(trainer)
                self.jobs.put_nowait((message[: NUMBER.size], message[NUMBER.size :]))
        for slot in slots:
            slot.cancel()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        self._kill_all()

    async def _slot(self, replies: asyncio.StreamWriter) -> None:
        member: Worker | None = None
        while True:
            number, job = await self.jobs.get()
            try:
                if member is None or member.pid not in self.workers:  # it may have died between two answers
                    member = await self._hire()
            except OSError as error:
                reply = failed(f"died: no worker could be started: {error}")
            else:
                reply = await member.score(job, self.time_limit_s)
            if member is not None and reply["failure"] in FATAL:
                self._dismiss(member)
                member = None
            replies.write(wire.framed(number + json.dumps(reply).encode()))

    async def _hire(self) -> Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            foreman_pid = os.getpid()
            pid = os.fork()
            if pid == 0:
                worker.run(theirs, foreman_pid, self.scorers, self.memory_limit_mb)
            self.workers[pid] = Worker(pid, reader, writer)  # at once: `_kill_strays` knows its workers by this
        return self.workers[pid]

    def _dismiss(self, member: Worker) -> None:
        member.writer.close()
        if self.workers.pop(member.pid, None) is not None:  # else it is reaped, and the pid may be another's by now
            for kill in (os.killpg, os.kill):  # its group too; a worker that just started has none yet
                with contextlib.suppress(ProcessLookupError):
                    kill(member.pid, signal.SIGKILL)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                member = self.workers.pop(pid, None)
                if member is not None:
                    member.reader.feed_eof()  # its own children may hold the socket open
                self._kill_strays()

    def _kill_all(self) -> None:
        for member in list(self.workers.values()):
            self._dismiss(member)
        with contextlib.suppress(ChildProcessError):  # raised when the last one is gone
            while True:
                self._kill_strays()
                os.waitpid(-1, 0)

    def _kill_strays(self) -> None:
        """Kill what ended workers left behind: whoever is our child and no worker."""
        with contextlib.suppress(FileNotFoundError):  # a kernel without CONFIG_PROC_CHILDREN
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
            for pid in set(map(int, children.split())) - set(self.workers):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def failed(reason: str) -> Reply:
    return {"value": 0.0, "failure": reason}


async def receive(reader: asyncio.StreamReader, longest: int | None = None) -> bytes:
    """The next message; an EOFError at the end, a ValueError if it is longer than it may be."""
    (length,) = wire.HEADER.unpack(await reader.readexactly(wire.HEADER.size))
    if longest is not None and length > longest:
        raise ValueError(f"a message of {length} bytes, where at most {longest} are expected")
    return await reader.readexactly(length)


def _checked(message: bytes) -> Reply:
    """A worker may have been taken over by what it scored: believe nothing but the form."""
    reply = json.loads(message)
    value = reply.get("value") if isinstance(reply, dict) else "nonsense"
    if value is not None and not (isinstance(value, float) and math.isfinite(value)):
        raise ValueError("not a reply")
    if reply.get("failure") is None:
        return {"value": value, "failure": None}
    return failed(str(reply["failure"])[: worker.LONGEST_REASON])


def prepare(rewards: dict[str, dict[str, Any]], partials: dict[str, dict[str, Any]]) -> worker.Scorers:
    scorers: worker.Scorers = {
        "reward": {task: build_reward(table, f"the reward of task {task!r}") for task, table in rewards.items()},
        "partial": {task: build_partial(table, f"the partial of task {task!r}") for task, table in partials.items()},
    }
    for of_kind in scorers.values():
        for scorer in of_kind.values():
            scorer.prepare()
    gc.collect()
    gc.freeze()  # the workers share these pages for as long as no collection touches them
    return scorers


async def serve(sock: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=sock)
    try:
        settings = json.loads(await receive(reader))
    except (EOFError, ConnectionError):  # the trainer was interrupted before it could say a word
        writer.close()
        return
    try:
        scorers = prepare(settings.pop("rewards"), settings.pop("partials"))
    except UserError as error:
        ready = {"error": str(error)}
    else:
        ready = {"error": ""}
    writer.write(wire.framed(json.dumps(ready).encode()))
    if not ready["error"]:
        await Foreman(scorers, **settings).run(reader, writer)
    writer.close()


if __name__ == "__main__":
    confine.adopt_orphans()
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))
