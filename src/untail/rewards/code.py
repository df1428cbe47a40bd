"""Program answers, judged by the row's unit tests: 1 if all of them pass, else 0.

A row carries `tests`, Python statements that use the answer's functions (`assert add(1, 2) == 3`; a text, or a list
of them), and may carry `entry_point`, the name of a function that is passed to the tests' `check` (HumanEval's form).
The program is the last fenced code block of the response, or the whole response if it has none.

Answer and tests run in two fresh `python -I` processes with nothing but the right to read and compute. What is
guaranteed of them is said in `sandbox/judge.py` and `sandbox/confine.py`; time and memory are the scorer's to limit.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from untail.errors import ConfigError
from untail.rewards.base import REWARDS, Reward
from untail.rewards.sandbox import confine, wire
from untail.types import Prompt

_JUDGE = Path(__file__).parent / "sandbox" / "judge.py"
FENCE = re.compile(r"^```[^\n`]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


@REWARDS.register("code")
class Code(Reward):
    needs = ("tests",)
    truths = ("tests",)
    needs_system = True  # it starts the sandbox

    def prepare(self) -> None:
        if not _can_confine():
            raise ConfigError(
                f"{self.where}: code answers need a sandbox, which needs Linux with seccomp on x86_64 or aarch64; "
                "train on such a machine or choose another reward"
            )

    def score(self, response: str, prompt: Prompt) -> float:
        tests = prompt.data["tests"]
        source = tests if isinstance(tests, str) else "\n".join(tests)
        verdict = _judge(program(response), source, prompt.data.get("entry_point"))
        if "failure" in verdict:
            raise ValueError(verdict["failure"])
        return float(verdict["passed"])


def program(response: str) -> str:
    """The last fenced block, or all of it."""
    blocks = FENCE.findall(response)
    return blocks[-1] if blocks else response


def _judge(code: str, tests: str, entry_point: str | None) -> dict[str, Any]:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-I", str(_JUDGE), str(theirs.fileno()), str(os.getpid())]
    quiet = subprocess.DEVNULL
    judge = subprocess.Popen(
        command,
        pass_fds=[theirs.fileno()],
        stdin=quiet,
        stdout=quiet,
        stderr=quiet,
        cwd="/",
        env={},
        start_new_session=True,
    )
    try:
        theirs.close()
        wire.send(ours, code.encode(errors="replace"))
        wire.send(ours, json.dumps({"tests": tests, "entry_point": entry_point}).encode())
        message = wire.receive(ours)
    except OSError:  # a judge that ends while it is written to
        message = None
    finally:
        ours.close()
        os.killpg(judge.pid, signal.SIGKILL)  # not reaped yet, so the group is still its own; the answer is in it
        judge.wait()
    return {"passed": False} if message is None else json.loads(message)


def _can_confine() -> bool:
    """Try it, in a process of its own: there is no way back."""
    if not confine.supported():
        return False
    pid = os.fork()
    if pid == 0:
        try:
            confine.confine()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
