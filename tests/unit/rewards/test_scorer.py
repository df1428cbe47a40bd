"""Hostile scorers: each test hands in answers whose text says what the scorer does with them."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from untail.errors import ConfigError
from untail.rewards.scorer import Score, Scorer
from untail.types import Prompt

from .test_code import judges, wait_for_end

HOSTILE = """
import ctypes, math, os, re, struct, sys, time

def act(response, prompt):
    if len(response) > 1000:
        return len(response * 2) > 0
    return globals()["do_" + response]()

def do_right(): return 1.0
def do_true(): return True
def do_hang():
    while True: pass
def do_hang_in_c(): return re.match("(a+)+$", "a" * 64 + "b")
def do_leave(): os._exit(0)
def do_exit(): sys.exit(0)
def do_crash(): ctypes.string_at(0)
def do_allocate():
    hoard = []
    while True: hoard.append(bytearray(10**7))
def do_recurse(): return do_recurse()
def do_print():
    print("garbage" * 1000, flush=True)
    os.write(1, b"{}")
    os.write(2, b"{}")
    return 1.0
def do_raise(): raise ValueError("no such thing")
def do_raise_badly():
    class Bad(Exception):
        def __str__(self): raise RuntimeError
    raise Bad
def do_nan(): return math.nan
def do_infinity(): return -math.inf
def do_text(): return "1.0"
def do_none(): return None
def do_list(): return [1.0]
def do_huge(): return 10 ** 400
def do_garbage():
    for fd in range(3, 64):
        try: os.write(fd, b"\\xff" * 100)
        except OSError: pass
    return 1.0
def do_close():
    os.closerange(0, 64)
    return 1.0
def do_say_twice():
    reply = b"12345678" + b'{"value": 1.0, "failure": null}'
    os.write(3, (struct.pack("<I", len(reply)) + reply) * 3)
    return 0.5
def do_daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            with open("daemon.pid.part", "w") as file: file.write(str(os.getpid()))
            os.rename("daemon.pid.part", "daemon.pid")
            while True: time.sleep(1000)
        os._exit(0)
    while not os.path.exists("daemon.pid"): pass
    os._exit(0)
"""

EXPECTED = {
    "right": Score(1.0),
    "true": Score(1.0),
    "hang": Score(0.0, "timeout"),
    "hang_in_c": Score(0.0, "timeout"),
    "leave": Score(0.0, "died"),
    "exit": Score(0.0, "raised: SystemExit: 0"),
    "crash": Score(0.0, "died"),
    "allocate": Score(0.0, "memory"),
    "recurse": Score(0.0, "raised: RecursionError: maximum recursion depth exceeded"),
    "print": Score(1.0),
    "raise": Score(0.0, "raised: ValueError: no such thing"),
    "raise_badly": Score(0.0, "raised: Bad: Bad"),
    "nan": Score(0.0, "not a number: nan"),
    "infinity": Score(0.0, "not a number: -inf"),
    "text": Score(0.0, "not a number: '1.0'"),
    "none": Score(0.0, "not a number: None"),
    "list": Score(0.0, "not a number: [1.0]"),
    "huge": Score(0.0, "raised: OverflowError: int too large to convert to float"),
    "garbage": Score(0.0, "died"),
    "close": Score(0.0, "died"),
    "say_twice": Score(0.5),
    "x" * 300_000_000: Score(0.0, "memory"),
}


def prompt(task: str = "t", **data: Any) -> Prompt:
    return Prompt("p", task, "What?", (1, 2), data)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    (tmp_path / "hostile_rewards.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    return {"t": {"name": "function", "path": "hostile_rewards:act"}}


def foreman_of(scorer: Scorer) -> int:
    assert scorer._foreman is not None
    return scorer._foreman.pid


def workers_of(foreman: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{foreman}/task/{foreman}/children").read_text().split()]


async def test_each_failure_costs_one_answer(hostile: dict[str, dict[str, Any]]) -> None:
    answers = [answer for name in EXPECTED for answer in (name, "right", "right")]
    async with Scorer(hostile, workers=2, memory_limit_mb=256) as scorer:
        scores = await asyncio.gather(*(scorer.score(prompt(), answer) for answer in answers))
    wrong = {answer[:20]: score for answer, score in zip(answers, scores, strict=True) if score != EXPECTED[answer]}
    assert wrong == {}
    assert scorer.failures == {"timeout": 2, "died": 4, "memory": 2, "raised": 5, "not a number": 5}


async def test_what_a_worker_leaves_behind_is_killed(hostile: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    async with Scorer(hostile, workers=1) as scorer:
        assert await scorer.score(prompt(), "daemon") == Score(0.0, "died")
        wait_for_end(int((tmp_path / "daemon.pid").read_text()))
        assert await scorer.score(prompt(), "right") == Score(1.0)


async def test_a_busy_trainer_makes_nobody_time_out(hostile: dict[str, dict[str, Any]]) -> None:
    async with Scorer(hostile, workers=1, time_limit_s=1.0) as scorer:
        await scorer.start()
        under_way = [asyncio.create_task(scorer.score(prompt(), "right")) for _ in range(3)]
        await asyncio.wait(under_way, timeout=0)
        time.sleep(1.5)  # the event loop stands still, as it does during an update
        assert await asyncio.gather(*under_way) == [Score(1.0)] * 3


async def test_a_killed_foreman_is_replaced(hostile: dict[str, dict[str, Any]]) -> None:
    async with Scorer(hostile, workers=1, time_limit_s=100.0) as scorer:
        await scorer.start()
        under_way = asyncio.create_task(scorer.score(prompt(), "hang"))
        await asyncio.wait([under_way], timeout=0)
        os.kill(foreman_of(scorer), signal.SIGKILL)
        assert await under_way == Score(0.0, "died")
        assert await scorer.score(prompt(), "right") == Score(1.0)


async def test_a_cancelled_answer_disturbs_nobody(hostile: dict[str, dict[str, Any]]) -> None:
    async with Scorer(hostile, workers=1, time_limit_s=1.0) as scorer:
        under_way = asyncio.create_task(scorer.score(prompt(), "hang"))
        await asyncio.wait([under_way], timeout=0)
        under_way.cancel()
        assert await scorer.score(prompt(), "right") == Score(1.0)
        assert scorer.failures == {}


async def test_close_ends_everything(hostile: dict[str, dict[str, Any]]) -> None:
    scorer = Scorer(hostile, workers=2, time_limit_s=100.0)
    await scorer.score(prompt(), "right")
    under_way = asyncio.create_task(scorer.score(prompt(), "hang"))
    await asyncio.wait([under_way], timeout=0)
    pid = foreman_of(scorer)
    children = workers_of(pid)
    assert children
    await scorer.close()
    for child in [pid, *children]:
        wait_for_end(child)
    assert await under_way == Score(0.0, "died")
    with pytest.raises(RuntimeError, match="closed"):
        await scorer.score(prompt(), "right")
    await scorer.close()


def test_a_killed_trainer_leaves_nothing_behind(hostile: dict[str, dict[str, Any]]) -> None:
    program = f"""
import asyncio
from untail.rewards.scorer import Scorer
from untail.types import Prompt
async def main():
    scorer = Scorer({hostile!r}, workers=1)
    await scorer.score(Prompt("p", "t", "", (), {{}}), "right")
    pid = scorer._foreman.pid
    print(pid, open(f"/proc/{{pid}}/task/{{pid}}/children").read(), flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    trainer.kill()
    trainer.communicate()
    assert len(pids) == 2
    for pid in pids:
        wait_for_end(pid)


async def test_workers_that_need_no_system_give_it_up(hostile: dict[str, dict[str, Any]]) -> None:
    for rewards, filtered in (({"t": {"name": "numeric"}}, "2"), (hostile, "0")):
        async with Scorer(rewards, workers=1) as scorer:
            await scorer.score(prompt(answer="1"), "right")
            (worker,) = workers_of(foreman_of(scorer))
            status = Path(f"/proc/{worker}/status").read_text()
        assert f"Seccomp:\t{filtered}\n" in status


async def test_tasks_have_their_own_rewards() -> None:
    rewards = {"sums": {"name": "numeric"}, "words": {"name": "exact"}}
    async with Scorer(rewards) as scorer:
        assert await scorer.score(prompt("sums", answer="4"), "so 4.0") == Score(1.0)
        assert await scorer.score(prompt("words", answer="4"), "so 4.0") == Score(0.0)
        with pytest.raises(ConfigError, match="no reward for the task 'other'; there are rewards for: sums, words"):
            await scorer.score(prompt("other"), "4")


async def test_hundreds_at_once_each_get_their_own_score() -> None:
    async with Scorer({"t": {"name": "numeric"}}, workers=2) as scorer:
        scores = await asyncio.gather(*(scorer.score(prompt(answer=i % 7), f"it is {i % 5}") for i in range(700)))
    assert [score.value for score in scores] == [float(i % 7 == i % 5) for i in range(700)]


async def test_a_slow_expression_times_out_and_the_next_is_scored() -> None:
    async with Scorer({"t": {"name": "math_verify"}}, workers=1, time_limit_s=1.0) as scorer:
        slow, quick = await asyncio.gather(
            scorer.score(prompt(answer="1"), r"\boxed{9^{9^{9^{9}}}}"), scorer.score(prompt(answer="1"), r"\boxed{1}")
        )
    assert (slow, quick) == (Score(0.0, "timeout"), Score(1.0))


async def test_code_is_limited_in_time_and_memory() -> None:
    tests = "assert f() == 1"
    async with Scorer({"t": {"name": "code"}}, workers=2) as scorer:
        hang, allocate, right = await asyncio.gather(
            scorer.score(prompt(tests=tests), "def f():\n    while True: pass"),
            scorer.score(prompt(tests=tests), "def f(): return len(bytearray(2**40)) and 1"),
            scorer.score(prompt(tests=tests), "def f(): return 1"),
        )
        assert (hang, allocate, right) == (Score(0.0, "timeout"), Score(0.0), Score(1.0))
        for pid in judges():
            wait_for_end(pid)


async def test_a_reward_that_cannot_be_prepared_is_the_users_error() -> None:
    scorer = Scorer({"t": {"name": "function", "path": "no_such_module:f"}})
    with pytest.raises(ConfigError, match=r"the reward of task 't'.path = 'no_such_module:f' cannot be imported"):
        await scorer.score(prompt(), "x")
    await scorer.close()


def test_bad_settings() -> None:
    with pytest.raises(ConfigError, match="unknown reward 'numerik'"):
        Scorer({"t": {"name": "numerik"}})
    with pytest.raises(ConfigError, match="0 workers"):
        Scorer({"t": {"name": "numeric"}}, workers=0)


def test_a_foreman_whose_trainer_is_gone_ends_without_a_word():
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "untail.rewards.foreman", str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)
    ours.close()
    theirs.close()
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, "")
