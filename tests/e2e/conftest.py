"""Run the program as a user does: its arguments, its exit code, its output.

`untail` runs it in this process, which saves the imports; `start` in one of its own, for what must be killed.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest

from untail.cli.main import main

# Steps of the tiny model that take a second: few prompts, short responses.
SMALL = [
    "--set=rollout.prompts=4",
    "--set=rollout.group=4",
    "--set=rollout.max_tokens=48",
    "--set=validation.prompts=8",
    "--set=task.size=16",
    "--set=checkpoint_every=2",
    "--set=engine.max_seqs=8",
    "--set=engine.kv_gib=0.05",
]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out.strip().splitlines()[-1])

    @property
    def lines_of_error(self) -> list[str]:
        return self.err.strip().splitlines()


def untail(*arguments: str | Path) -> Outcome:
    out, err = io.StringIO(), io.StringIO()
    argv, sys.argv = sys.argv, ["untail", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = _exit_code()
    finally:
        sys.argv = argv
    return Outcome(code, out.getvalue(), err.getvalue())


def _exit_code() -> int:
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def start(*arguments: str | Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "untail.cli.main", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> tuple[Path, Outcome]:
    """A finished run of four small steps, deterministic."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    outcome = untail("train", "--steps=4", *SMALL, "--set=deterministic=true", "--out", folder, "--json")
    assert outcome.code == 0, outcome.err
    return folder, outcome
