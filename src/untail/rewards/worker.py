"""A scoring worker: a process forked by the foreman that scores one answer after the other and says so.

Invariant: whatever scoring an answer does, this process sends one well-formed reply for it or ends; it cannot reach
the parent's files, terminal or sockets, and its memory is limited to what it had at its birth plus the limit.
"""

import json
import math
import os
import pickle
import resource
import signal
import socket
from typing import Any, NoReturn

from untail.rewards.base import Reward
from untail.rewards.partial.base import Partial
from untail.rewards.sandbox import confine, wire

LONGEST_REASON = 300
_MEMORY = (
    b'{"value": 0.0, "failure": "memory"}'  # made beforehand: there is no memory left to make it when it is needed
)
_CANNOT_TELL = b'{"value": null, "failure": null}'
_SOCKET_FD = 3


Scorers = dict[str, dict[str, Reward] | dict[str, Partial]]
"""By kind, "reward" or "partial", and by task."""


def run(sock: socket.socket, foreman_pid: int, scorers: Scorers, memory_limit_mb: int) -> NoReturn:
    """Everything a worker ever does; it never returns into the foreman's code."""
    try:
        os.setsid()
        confine.die_with_parent()
        if os.getppid() == foreman_pid:
            sock = _shut_out_the_rest(sock)
            _limit(memory_limit_mb)
            need_system = any(scorer.needs_system for of_kind in scorers.values() for scorer in of_kind.values())
            if not need_system and confine.supported():
                confine.confine()
            _serve(sock, scorers)
    finally:
        os._exit(1)


def _shut_out_the_rest(sock: socket.socket) -> socket.socket:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.dup2(sock.fileno(), _SOCKET_FD)
    os.closerange(_SOCKET_FD + 1, os.sysconf("SC_OPEN_MAX"))
    sock.detach()
    sock = socket.socket(fileno=_SOCKET_FD)
    sock.setblocking(True)
    return sock


def _limit(memory_limit_mb: int) -> None:
    with open("/proc/self/statm") as statm:
        baseline = int(statm.read().split()[0]) * resource.getpagesize()
    limit = baseline + memory_limit_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _serve(sock: socket.socket, scorers: Scorers) -> None:
    while (ticket := wire.receive(sock)) is not None:  # a message of its own: it arrives even if the job does not fit
        try:
            job = wire.receive(sock)
            if job is None:
                return
            reply = _score(scorers, job)
        except MemoryError:
            reply = _MEMORY
        wire.send(sock, ticket + reply)


def _score(scorers: Scorers, job: bytes) -> bytes:
    try:
        kind, prompt, response = pickle.loads(job)  # from the trainer, by way of the foreman
        value = scorers[kind][prompt.task].score(response, prompt)
        return _CANNOT_TELL if value is None and kind == "partial" else _reply(value)
    except MemoryError:
        raise
    except BaseException as error:  # SystemExit and KeyboardInterrupt cost an answer too, not a worker
        return _failure(f"raised: {type(error).__name__}: {_text(error)}")


def _reply(value: Any) -> bytes:
    if value is None or isinstance(value, str | bytes):
        return _failure(f"not a number: {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        return _failure(f"not a number: {_text(value)}")
    if not math.isfinite(number):
        return _failure(f"not a number: {number}")
    return json.dumps({"value": number, "failure": None}).encode()


def _failure(reason: str) -> bytes:
    return json.dumps({"value": 0.0, "failure": reason[:LONGEST_REASON]}).encode()


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # an object that cannot even say what it is
        return type(value).__name__
