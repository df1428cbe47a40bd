"""Checkpoints that are complete or not there: `FOLDER/step-000120/` with state.json and tensors.safetensors, no pickle;
or, of a learner with several ranks, with the folder `shards` in the place of the tensors (sharded_checkpoint.py).

Invariant: a folder named `step-...` is complete and on the disk. It is written aside as `.tmp-...`, every file and
folder is synced, then it is renamed. Whatever goes wrong before the rename leaves the earlier checkpoints as they
were. A step is written once: saving it again returns what is there.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from untail.errors import UserError

TENSORS, SHARDS, STATE = "tensors.safetensors", "shards", "state.json"


class CheckpointError(UserError):
    """A checkpoint that cannot be written or read."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def save(folder: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any], keep: int = 2) -> Path:
    """Write the checkpoint of `step`, then remove all but the newest `keep`."""
    final = folder / f"step-{step:06d}"
    if not final.exists():
        with written_aside(final, keep) as aside:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, aside / TENSORS)
            write_state(aside, step, state)
    return final


def write_state(aside: Path, step: int, state: dict[str, Any]) -> None:
    (aside / STATE).write_text(json.dumps({"step": step, "state": state}) + "\n")


@contextmanager
def written_aside(final: Path, keep: int) -> Iterator[Path]:
    """A new folder to be filled, which becomes `final`; then all but the newest `keep` are removed."""
    folder = final.parent
    previous = latest(folder)
    aside = folder / f".tmp-{final.name}"
    try:
        _remove_leftovers(folder)
        aside.mkdir(parents=True)
        yield aside
        for path in (*sorted(aside.rglob("*"), reverse=True), aside):
            _sync(path)
        os.rename(aside, final)
        _sync(folder)
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if isinstance(error, OSError | SafetensorError):
            raise CheckpointError(_why(error, final, previous)) from error
        raise
    _forget_old(folder, keep)


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint, if there is any."""
    return max(_complete(folder), key=step_of, default=None)


def is_sharded(path: Path) -> bool:
    return (path / SHARDS).is_dir()


def load(path: Path) -> Checkpoint:
    """Of either form, with whole tensors."""
    if is_sharded(path):
        from untail.learn.sharded_checkpoint import read_whole  # costs a second to import, which few need to pay

        return Checkpoint(step_of(path), read_whole(path), read_state(path))
    try:
        return Checkpoint(step_of(path), load_file(path / TENSORS), read_state(path))
    except (OSError, SafetensorError) as error:
        raise unreadable(path, error) from error


def read_state(path: Path, *needed: str) -> dict[str, Any]:
    """What `save` was given as `state`, without the tensors; `needed` are the keys it must have."""
    try:
        state = json.loads((path / STATE).read_text())["state"]
        return {**state, **{key: state[key] for key in needed}}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise unreadable(path, error) from error


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def unreadable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {path} cannot be read ({error}); remove that folder to resume from the one before it"
    )


def _complete(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name) and path.is_dir()]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _forget_old(folder: Path, keep: int) -> None:
    """An old checkpoint is renamed before it is emptied: half of one must not look whole."""
    with suppress(OSError):  # one too many does no harm, and the next save tries again
        for path in sorted(_complete(folder), key=step_of)[:-keep]:
            path.rename(folder / f".tmp-old-{path.name}")
    _remove_leftovers(folder)


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob(".tmp-*"):
        shutil.rmtree(path, ignore_errors=True)


def _why(error: Exception, final: Path, previous: Path | None) -> str:
    """A sentence with the path, the reason, and what a resumed run would start from."""
    reason = error.strerror if isinstance(error, OSError) else str(error)
    kept = f"{previous} is intact" if previous else "there is no earlier one"
    return f"cannot write the checkpoint {final}: {reason}; {kept}. Make room or mend the disk, then run with --resume"
