"""Ctrl-C while the program starts, and a second one while it stops: one line and exit 130, wherever it comes."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import SMALL, start

STUCK_S = 60


def has_mapped(library: str):
    """It has loaded this shared library: so far have its imports come."""
    return lambda pid: library in Path(f"/proc/{pid}/maps").read_text()


def has_children(pid: int) -> bool:
    """The scoring processes start."""
    return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text().strip())


POINTS = {
    "first imports": has_mapped("pydantic_core"),
    "torch": has_mapped("libtorch"),
    "the scoring processes": has_children,
}


def wait_until(process: subprocess.Popen, is_there) -> None:
    deadline = time.monotonic() + STUCK_S
    while not is_there(process.pid):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it does not get on"
        time.sleep(0.001)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("command", ["train", "compare"])
def test_an_interrupted_start_is_one_line(command, point, tmp_path):
    named = ["grpo"] if command == "compare" else []
    process = start(command, *named, "--steps=3", *SMALL, "--out", tmp_path / "run")
    wait_until(process, POINTS[point])
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=STUCK_S)
    assert (process.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    last = err.strip().splitlines()[-1]
    assert last == "interrupted" or last.startswith("stopped; "), err


def test_a_second_interrupt_ends_it_at_once(tmp_path):
    """While the first is being followed: what it saves takes a moment."""
    folder = tmp_path / "run"
    process = start("train", "--steps=300", *SMALL, "--set=rollout.max_tokens=400", "--out", folder)
    wait_until(process, lambda pid: (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").read_text())
    process.send_signal(signal.SIGINT)
    for line in process.stderr:
        if line.startswith("stopping: "):
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=STUCK_S)
    assert process.returncode == 130, err
    assert "Traceback" not in err
