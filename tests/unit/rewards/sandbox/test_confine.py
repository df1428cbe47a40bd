"""One process is confined and tries everything; what it could do and what not it says on the pipe it already has."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from untail.rewards.sandbox.confine import supported

pytestmark = pytest.mark.skipif(not supported(), reason="needs Linux on x86_64 or aarch64")

FORBIDDEN = [
    "open(target, 'w')",
    "open(target, 'a')",
    "open(target, 'r+')",
    "os.unlink(target)",
    "os.rename(target, target + '2')",
    "os.truncate(target, 0)",
    "os.chmod(target, 0)",
    "os.mkdir(target + '2')",
    "os.symlink(target, target + '2')",
    "os.fork()",
    "subprocess.run(['true'])",
    "os.execv('/bin/true', ['true'])",
    "os.posix_spawn('/bin/true', ['true'], {})",
    "os.kill(os.getppid(), 0)",
    "os.setsid()",
    "socket.socket()",
    "socket.socket(socket.AF_UNIX)",
    "os.memfd_create('x')",
    "os.sched_setaffinity(os.getppid(), {0})",
    "check(ctypes.CDLL(None, use_errno=True).prctl(1, 0, 0, 0, 0))",  # PR_SET_PDEATHSIG: to outlive its parent
]
ALLOWED = [
    "open(target).read().index('kept')",
    "__import__('decimal')",
    "(lambda thread: (thread.start(), thread.join()))(threading.Thread(target=int))",
    "mmap.mmap(-1, 2**20)",
    "os.pipe()",
]
START = """
import ctypes, json, mmap, os, socket, subprocess, sys, threading
from untail.rewards.sandbox.confine import confine
target = sys.argv[1]
def check(result):
    if result == -1: raise OSError(ctypes.get_errno(), "failed")
confine()
"""
TRY_ALL = (
    START
    + """
for attempt in json.loads(sys.argv[2]):
    try:
        eval(attempt)
        outcome = "done"
    except PermissionError:
        outcome = "forbidden"
    print(json.dumps([attempt, outcome]), flush=True)
"""
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("confine") / "precious"
    path.write_text("kept")
    return path


@pytest.fixture(scope="module")
def outcomes(target: Path) -> dict[str, str]:
    command = [sys.executable, "-c", TRY_ALL, str(target), json.dumps(FORBIDDEN + ALLOWED)]
    lines = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()
    return dict(json.loads(line) for line in lines)


@pytest.mark.parametrize("attempt", FORBIDDEN)
def test_forbidden(attempt: str, outcomes: dict[str, str]) -> None:
    assert outcomes[attempt] == "forbidden"


@pytest.mark.parametrize("attempt", ALLOWED)
def test_allowed(attempt: str, outcomes: dict[str, str]) -> None:
    assert outcomes[attempt] == "done"


def test_the_file_is_as_it_was(target: Path, outcomes: dict[str, str]) -> None:
    assert target.read_text() == "kept"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to lose")
def test_root_loses_its_capabilities() -> None:
    read = "print([line for line in open('/proc/self/status') if line.startswith('CapEff')])"
    shown = subprocess.run([sys.executable, "-c", START + read, ""], stdout=subprocess.PIPE, check=True).stdout
    assert b"0000000000000000" in shown


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the other machines have one kind of system call")
def test_a_system_call_of_the_32_bit_kind_kills() -> None:
    """An x86_64 kernel answers those too, by other numbers: the filter would read them wrongly."""
    attempt = r"""
page = mmap.mmap(-1, 4096, prot=7)
page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20 (getpid); int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
    assert subprocess.run([sys.executable, "-c", START + attempt, ""]).returncode < 0
