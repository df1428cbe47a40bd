"""The reward itself; hanging and allocating are in test_scorer, where the limits are."""

import os
import select
from pathlib import Path

import pytest

from untail.rewards.code import program

from .helpers import prompt, reward

TESTS = "assert double(2) == 4\nassert double(-3) == -6"
RIGHT = "def double(x): return 2 * x"


def score(code: str, tests: str | list[str] = TESTS, **data: object) -> float:
    return reward("code").score(f"Here it is:\n```python\n{code}\n```\nDone.", prompt(tests=tests, **data))


def test_the_program_is_the_last_fenced_block() -> None:
    assert program("```\nfirst\n```\n```python\nsecond\n```\n") == "second\n"
    assert program("x = 1") == "x = 1"


def test_right_and_wrong() -> None:
    assert score(RIGHT) == 1.0
    assert score("def double(x): return x + 2") == 0.0
    assert score(RIGHT, tests=TESTS.splitlines()) == 1.0


def test_humaneval_form() -> None:
    tests = "def check(candidate):\n    assert candidate(2) == 4"
    assert score(RIGHT, tests, entry_point="double") == 1.0
    assert score("def double(x): return 5", tests, entry_point="double") == 0.0


def test_tests_can_use_classes_generators_and_errors_of_the_answer() -> None:
    code = """
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def __len__(self): return len(self.items)
def count():
    yield from (1, 2)
def total(stack): return sum(stack.items)
def fail(): raise KeyError("gone")
"""
    tests = """
s = Stack()
s.push(3)
assert len(s) == 1 and s.items == [3] and total(s) == 3
assert list(count()) == [1, 2]
assert not hasattr(s, "pop")
try:
    fail()
    assert False
except KeyError as error:
    assert "gone" in str(error)
"""
    assert score(code, tests) == 1.0


@pytest.mark.parametrize(
    "code",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "def double(x): import os; os._exit(0)",
        "def double(x): raise SystemExit(0)",
        "print('{\"passed\": true}'); double = lambda x: 0",
        "import builtins; builtins.AssertionError = KeyError; double = lambda x: 0",
        "class Anything(int):\n    __eq__ = lambda self, other: True\ndouble = lambda x: Anything(1)",
        "class Anything:\n    __eq__ = lambda self, other: True\ndouble = lambda x: Anything()",
        "import json; json.dumps = lambda *a, **k: '{\"passed\": true}'; double = lambda x: 0",
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\x10\\0\\0\\0{\"passed\": true}')\n"
        "    except OSError: pass\ndouble = lambda x: 0",
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL); double = lambda x: 0",
        "import ctypes; ctypes.string_at(0)",
        "def double(x): return double(x)",
        "double = 4",
        "def double(x:",
        "",
        "\0",
    ],
)
def test_a_verdict_cannot_be_forged(code: str) -> None:
    assert score(code) == 0.0


def test_an_object_of_the_answer_is_not_simply_true() -> None:
    assert score("class Yes: pass\nis_even = lambda x: Yes()", "assert is_even(2)") == 0.0
    assert score("is_even = lambda x: x % 2 == 0", "assert is_even(2)") == 1.0


def test_the_answer_cannot_shadow_what_the_tests_use() -> None:
    code = "import math\nall = lambda x: True\nisclose = lambda *a: True\nvalues = lambda: [1.0, 3.0]"
    tests = "from math import isclose\nassert all(isclose(v, 1.0) for v in values())"
    assert score(code, tests) == 0.0


def test_the_answer_cannot_see_the_tests() -> None:
    code = """
import gc, re, sys
def double(x):
    frame, texts = sys._getframe(), [str(o) for o in gc.get_objects() if isinstance(o, (dict, list, tuple))]
    while frame: texts.append(str(frame.f_locals)); frame = frame.f_back
    return 4 if any(re.search(r"double\\(2\\) == 4", text) for text in texts) else 0
"""
    assert score(code, "assert double(2) == 4") == 0.0
    assert score(code + "# double(2) == 4", "assert double(2) == 4") == 1.0  # it would find it if it were there


def test_the_answer_can_only_compute(tmp_path: Path) -> None:
    code = f"""
import os, socket
def blocked(action):
    try: action()
    except PermissionError: return True
    return False
def attempts():
    return [blocked(socket.socket), blocked(os.fork), blocked(lambda: open({str(tmp_path / "new")!r}, "w"))]
def environment(): return sorted(os.environ)
"""
    tests = "assert attempts() == [True, True, True]\nassert environment() in ([], ['LC_CTYPE'])"
    assert score(code, tests) == 1.0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("assert double(lambda: 1) == 2", "hand a function to the answer"),
        ("assert 1 == 1", "use no name of the answer"),
        ("assert double(2) =", "not valid Python"),
    ],
)
def test_tests_that_cannot_judge_are_reported(tests: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score(RIGHT, tests)


def test_nothing_is_left_running() -> None:
    score("import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start()\n" + RIGHT)
    for pid in judges():
        wait_for_end(pid)


def judges() -> list[int]:
    """The judges and answers of this moment, of whichever test."""
    return [
        int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if b"sandbox/judge.py" in _read(path)
    ]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def wait_for_end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    assert poll.poll(20_000), f"process {pid} is still there"
    os.close(descriptor)
