"""Checkpoints are whole or not there, whatever fails while one is written."""

import errno
import os
import subprocess
import sys

import pytest
import torch
from safetensors import SafetensorError

from untail.errors import UserError
from untail.learn import checkpoint
from untail.learn.checkpoint import CheckpointError, latest, load, save

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
STATE = {"seed": 7, "lr": 0.1 + 0.2, "order": [3, 1, 2], "name": "run"}


def full_disk(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_round_trip(tmp_path):
    path = save(tmp_path / "new" / "checkpoints", 12, TENSORS, STATE)
    assert latest(tmp_path / "new" / "checkpoints") == path
    read = load(path)
    assert (read.step, read.state) == (12, STATE)
    for name, tensor in TENSORS.items():
        assert torch.equal(read.tensors[name], tensor)
        assert read.tensors[name].dtype == tensor.dtype


def test_only_safetensors_and_json_are_written(tmp_path):
    assert names(save(tmp_path, 1, TENSORS, STATE)) == ["state.json", "tensors.safetensors"]


def test_views_and_transposes_are_written_as_they_look(tmp_path):
    transposed = torch.arange(6.0).view(2, 3).T
    assert torch.equal(load(save(tmp_path, 1, {"t": transposed}, {})).tensors["t"], transposed)


def test_the_newest_is_the_one_with_the_highest_step(tmp_path):
    for step in (9, 1_000_000, 10):
        save(tmp_path, step, TENSORS, {}, keep=5)
    assert latest(tmp_path).name == "step-1000000"


def test_the_last_n_are_kept(tmp_path):
    for step in range(1, 6):
        save(tmp_path, step, TENSORS, {}, keep=2)
    assert names(tmp_path) == ["step-000004", "step-000005"]


def test_none_yet(tmp_path):
    assert latest(tmp_path) is None
    assert latest(tmp_path / "missing") is None


def test_leftovers_are_never_picked_up_and_are_cleared_away(tmp_path):
    for name in (".tmp-step-000009", ".tmp-old-step-000001", "step-old", "step-"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.json").write_text("{")
    assert latest(tmp_path) is None
    path = save(tmp_path, 3, TENSORS, STATE)
    assert latest(tmp_path) == path
    assert names(tmp_path) == ["step-", "step-000003", "step-old"]


def test_a_step_is_written_once(tmp_path):
    first = save(tmp_path, 4, TENSORS, {"first": True})
    assert save(tmp_path, 4, TENSORS, {"first": False}) == first
    assert load(first).state == {"first": True}


FAULTS = {
    "making the folder": (checkpoint.Path, "mkdir"),
    "writing tensors": (checkpoint, "save_file"),
    "writing state": (checkpoint.Path, "write_text"),
    "syncing": (checkpoint.os, "fsync"),
    "renaming": (checkpoint.os, "rename"),
}


@pytest.mark.parametrize(("owner", "function"), FAULTS.values(), ids=FAULTS)
def test_a_full_disk_leaves_the_previous_one_and_says_so(tmp_path, monkeypatch, owner, function):
    previous = save(tmp_path, 1, TENSORS, STATE)
    monkeypatch.setattr(owner, function, full_disk)
    with pytest.raises(CheckpointError) as raised:
        save(tmp_path, 2, TENSORS, STATE, keep=1)
    monkeypatch.undo()
    assert isinstance(raised.value, UserError)
    for part in (str(tmp_path / "step-000002"), "No space left on device", f"{previous} is intact", "--resume"):
        assert part in str(raised.value)
    assert names(tmp_path) == ["step-000001"]
    assert load(latest(tmp_path)).state == STATE


@pytest.mark.parametrize("failing_call", [1, 2, 3])
def test_each_sync_before_the_rename_counts(tmp_path, monkeypatch, failing_call):
    calls, real = [], os.fsync

    def fail_late(handle):
        calls.append(handle)
        return full_disk() if len(calls) == failing_call else real(handle)

    monkeypatch.setattr(checkpoint.os, "fsync", fail_late)
    with pytest.raises(CheckpointError, match="there is no earlier one"):
        save(tmp_path, 2, TENSORS, STATE)
    assert names(tmp_path) == []


def test_everything_is_synced_before_it_is_renamed_and_the_folder_after(tmp_path, monkeypatch):
    log, fsync, rename = [], os.fsync, os.rename
    synced_path = lambda handle: os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))
    monkeypatch.setattr(checkpoint.os, "fsync", lambda handle: (log.append(synced_path(handle)), fsync(handle)))
    monkeypatch.setattr(checkpoint.os, "rename", lambda a, b: (log.append("rename"), rename(a, b)))
    save(tmp_path, 1, TENSORS, STATE)
    assert log == ["tensors.safetensors", "state.json", ".tmp-step-000001", "rename", tmp_path.name]


def test_safetensors_reports_a_full_disk_in_its_own_way(tmp_path, monkeypatch):
    def fail(*args):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", fail)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save(tmp_path, 2, TENSORS, STATE)
    assert names(tmp_path) == []


def test_an_interrupt_passes_through_and_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.os, "rename", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2, TENSORS, STATE)
    assert names(tmp_path) == []


def test_a_process_that_dies_before_the_rename_leaves_the_previous_one(tmp_path):
    previous = save(tmp_path, 1, TENSORS, STATE)
    script = (
        "import os, sys, torch; from pathlib import Path; from untail.learn import checkpoint\n"
        "checkpoint.os.rename = lambda *a: os.kill(os.getpid(), 9)\n"
        "checkpoint.save(Path(sys.argv[1]), 2, {'a': torch.zeros(3)}, {})"
    )
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False).returncode == -9
    assert names(tmp_path) == [".tmp-step-000002", "step-000001"]
    assert latest(tmp_path) == previous
    save(tmp_path, 2, TENSORS, STATE)
    assert names(tmp_path) == ["step-000001", "step-000002"]


@pytest.mark.parametrize("damage", ["tensors.safetensors", "state.json"])
@pytest.mark.parametrize("how", ["truncate", "remove"])
def test_a_damaged_one_is_named(tmp_path, damage, how):
    path = save(tmp_path, 1, TENSORS, STATE)
    if how == "remove":
        (path / damage).unlink()
    else:
        (path / damage).write_bytes((path / damage).read_bytes()[:9])
    with pytest.raises(CheckpointError, match=f"{path} cannot be read .* remove that folder"):
        load(path)
