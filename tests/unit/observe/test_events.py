"""Append-only lines: cut back on resume, readable after a crash, clear about a full disk."""

import errno

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

    monkeypatch.setattr(log, "_file", Full())
    with pytest.raises(UserError, match=r"cannot write .*events\.jsonl: No space left on device.*--resume"):
        log.write({"n": 2})
    assert read_lines(log.path) == [{"n": 1}]
