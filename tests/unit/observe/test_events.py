"""Append-only lines: cut back on resume, readable after a crash, clear about a full disk."""

import errno
from pathlib import Path

import pytest

from untail.errors import UserError
from untail.observe.events import JsonLines, read_lines


def test_resume_cuts_back_to_where_the_checkpoint_was(tmp_path):
    path = tmp_path / "events.jsonl"
    log = JsonLines(path)
    log.write({"n": 1})
    size = log.size
    log.write({"n": 2})
    log.close()
    again = JsonLines(path, keep=size)
    again.write({"n": 3})
    assert read_lines(path) == [{"n": 1}, {"n": 3}]
    assert read_lines(path, size) == [{"n": 3}]


def test_a_file_shorter_than_its_checkpoint_says_is_refused(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"n": 1}\n')
    with pytest.raises(UserError, match="has 9 bytes, but the checkpoint was written when it had 100"):
        JsonLines(path, keep=100)
    assert read_lines(path) == [{"n": 1}]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_disk_that_is_really_full():
    log = JsonLines(Path("/dev/full"))
    with pytest.raises(UserError, match="No space left on device"):
        log.write({"n": 1})
    log.close()


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"n": 1}\n{"n": ')
    assert read_lines(path) == [{"n": 1}]


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    log = JsonLines(tmp_path / "events.jsonl")
    log.write({"n": 1})

    class Full:
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self):
            pass

    monkeypatch.setattr(log, "_file", Full())
    with pytest.raises(UserError, match=r"cannot write .*events\.jsonl: No space left on device.*--resume"):
        log.write({"n": 2})
    assert read_lines(log.path) == [{"n": 1}]
