"""The file: whole transactions, the same figures after every way of coming back, and clear refusals."""

import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.unit.history.helpers import bound, history, record

from untail.errors import UserError
from untail.history.store import APPLICATION_ID, FORMAT, History

ROOT = Path(__file__).parents[3]
PROMPTS = [f"p{number}" for number in range(12)]
TASKS = ["even", "odd"]


def random_group(rng, prompt, step):
    return [
        record(
            rng.randrange(1, 500),
            prompt,
            task=TASKS[int(prompt[1:]) % 2],
            step=step,
            reward=rng.choice([None, -1.0, 0.0, 0.0, 0.0, 1.0]),
            is_bound=rng.random() < 0.2,
            tokens=tuple(rng.randrange(50_000) for _ in range(rng.randrange(1, 5))),
        )
        for _ in range(4)
    ]


def random_calls(steps, seed=0):
    """What `add` is called with: a step's groups one by one, or all together and mixed."""
    rng, calls = random.Random(seed), []
    for step in range(1, steps + 1):
        groups = [random_group(rng, prompt, step) for prompt in rng.sample(PROMPTS, 5)]
        if rng.random() < 0.5:
            calls += groups
        else:
            mixed = [member for group in groups for member in group]
            rng.shuffle(mixed)
            calls.append(mixed)
    return calls


def run(store, calls):
    for call in calls:
        store.add(call)


def figures(store):
    tasks = [store.task_lengths(task) for task in TASKS]
    quantiles = [[task.quantile(tenth / 10) for tenth in range(11)] for task in tasks if task is not None]
    return [store.stats(prompt) for prompt in PROMPTS], quantiles


def open_file(path, **options):
    return contextlib.closing(History.open(path, "m", "t", **options))


def test_a_file_opened_again_says_the_same(tmp_path):
    path = tmp_path / "history.db"
    with open_file(path) as store:
        run(store, random_calls(20))
        through = figures(store)
        responses = {prompt: store.responses(prompt) for prompt in PROMPTS}
    assert any(responses.values())
    with open_file(path) as store:
        assert figures(store) == through
        assert {prompt: store.responses(prompt) for prompt in PROMPTS} == responses
        run(store, random_calls(5, seed=1))
        through = figures(store)
    with open_file(path) as store:
        assert figures(store) == through


@pytest.mark.parametrize("kept", [0, 1, 13, 19, 20])
def test_cut_back_it_says_the_same_as_one_that_came_that_far(tmp_path, kept):
    short = history()
    run(short, [call for call in random_calls(20) if call[0].step <= kept])
    with open_file(tmp_path / "history.db") as store:
        run(store, random_calls(20))
        store.truncate(kept)
        assert figures(store) == figures(short)
        assert [store.responses(p) for p in PROMPTS] == [short.responses(p) for p in PROMPTS]
        run(store, random_calls(5, seed=3))
    run(short, random_calls(5, seed=3))
    with open_file(tmp_path / "history.db") as store:
        assert figures(store) == figures(short)


def test_responses_come_back_as_they_were_added_newest_first():
    old = record(3, tokens=(1, 2, 4_000_000_000), reward=None, entropy=None, step=1, version=4)
    new = bound(1, tokens=(7,), step=2)
    store = history([old, record(5)], [new], [record(1, "q", tokens=(9,))])
    assert store.responses("p") == [new, old]
    assert store.responses("nobody") == []


def test_token_ids_are_capped_and_the_least_recently_used_prompt_goes_first():
    store = history(*[[record(4, name, tokens=(1, 2, 3, 4))] for name in "abc"], cap_tokens=12)
    store.responses("a")
    store.add([record(4, "d", tokens=(1, 2, 3, 4))])
    assert [len(store.responses(name)) for name in "abcd"] == [1, 0, 1, 1]
    assert store.stats("b").count == 1


def test_adding_to_a_prompt_is_a_use_of_it_too():
    store = history(*[[record(4, name, tokens=(1, 2, 3, 4))] for name in "ab"], cap_tokens=8)
    store.add([record(9, "a")])
    store.add([record(4, "c", tokens=(1, 2, 3, 4))])
    assert [len(store.responses(name)) for name in "abc"] == [1, 0, 1]


def test_of_a_prompt_the_oldest_responses_go_first():
    store = history([record(3, tokens=(n, n, n)) for n in range(5)], cap_tokens=7)
    assert [response.tokens[0] for response in store.responses("p")] == [4, 3]
    store.add([record(8, "q", tokens=(1,) * 8)])
    assert store.responses("q") == store.responses("p") == []


def test_without_a_cap_to_fill_nothing_is_stored():
    assert history([record(1, tokens=(1,))], cap_tokens=0).responses("p") == []


def test_the_order_of_use_outlives_the_process(tmp_path):
    path = tmp_path / "history.db"
    with open_file(path) as store:
        for name in "abc":
            store.add([record(4, name, tokens=(1, 2, 3, 4))])
        store.responses("a")
    with open_file(path, cap_tokens=8) as store:
        assert [len(store.responses(name)) for name in "abc"] == [1, 0, 1]


def test_the_cap_holds_and_the_counts_are_right_whatever_happens(tmp_path):
    path, rng = tmp_path / "history.db", random.Random(5)
    with open_file(path, cap_tokens=40) as store:
        for number, call in enumerate(random_calls(30)):
            store.add(call)
            store.responses(rng.choice(PROMPTS))
            if number % 40 == 39:
                store.truncate(number // 10)
            held = {p: sum(len(r.tokens) for r in store.responses(p)) for p in PROMPTS}
            assert {p: n for p, n in held.items() if n} == store._shelf.held
            assert sum(held.values()) == store._shelf.total <= 40


def test_another_model_or_tokenizer_is_refused(tmp_path):
    path = tmp_path / "history.db"
    History.open(path, "qwen", "bpe").close()
    with pytest.raises(
        UserError, match=r"history\.db was made with the model 'qwen', but this run has 'llama'; choose"
    ):
        History.open(path, "llama", "bpe")
    with pytest.raises(UserError, match="made with the tokenizer 'bpe', but this run has 'bytes'"):
        History.open(path, "qwen", "bytes")
    History.open(path, "qwen", "bpe").close()


def test_a_newer_format_is_refused(tmp_path):
    path = tmp_path / "history.db"
    History.open(path, "m", "t").close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'format'", (str(FORMAT + 1),))
    with pytest.raises(UserError, match="has format 2, but this untail knows formats up to 1; upgrade untail"):
        History.open(path, "m", "t")


@pytest.mark.parametrize("garbage", [b"hello", b'{"n": 1}\n' * 1000])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path, garbage):
    path = tmp_path / "history.db"
    path.write_bytes(garbage)
    with pytest.raises(UserError, match=r"history\.db cannot be read as a history: .*; choose another file"):
        History.open(path, "m", "t")
    assert path.read_bytes() == garbage
    assert [entry.name for entry in tmp_path.iterdir()] == ["history.db"]


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "history.db"
    with open_file(path) as store:
        run(store, random_calls(20))
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    with pytest.raises(UserError, match="cannot be read as a history"):
        History.open(path, "m", "t")


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "history.db"
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE meta (key, value)")
    before = path.read_bytes()
    with pytest.raises(UserError, match="is a database of another program; choose another file"):
        History.open(path, "m", "t")
    assert path.read_bytes() == before


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="unable to open database file; make sure that its folder exists"):
        History.open(tmp_path / "nowhere" / "history.db", "m", "t")


def test_one_writer(tmp_path):
    path = tmp_path / "history.db"
    with open_file(path), pytest.raises(UserError, match="is in use by another run; wait for it, or choose another"):
        History.open(path, "m", "t")
    History.open(path, "m", "t").close()


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path):
    path = tmp_path / "history.db"
    store = History.open(path, "m", "t")
    store.add([record(1, "a")])
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(UserError, match=r"cannot use the history .*history\.db: database or disk is full; make sure"):
        store.add([record(1, "b", tokens=(1,) * 100_000)])
    assert store.stats("b") is None
    store.close()
    with open_file(path) as store:
        assert (store.stats("a").count, store.stats("b")) == (1, None)


def test_the_file_is_known_by_its_header(tmp_path):
    path = tmp_path / "history.db"
    History.open(path, "m", "t").close()
    assert path.read_bytes()[68:72] == APPLICATION_ID.to_bytes(4, "big") == b"unta"


ADD_FOREVER = """
import sys
from tests.unit.history.helpers import record
from untail.history.store import History
store = History.open(sys.argv[1], "m", "t")
number = store.stats("p").count // 8 if store.stats("p") else 0
while True:
    store.add([record(number, prompt, step=number, tokens=(number,) * 50) for prompt in ("p", "q") for _ in range(8)])
    print(number, flush=True)
    number += 1
"""

DIE_BEFORE_COMMIT = """
import os, signal, sys
from tests.unit.history.helpers import record
from untail.history.store import History
store = History.open(sys.argv[1], "m", "t")
store.add([record(1, tokens=(1,) * 500) for _ in range(8)])
store._db.set_trace_callback(lambda sql: os.kill(os.getpid(), signal.SIGKILL) if sql.startswith("COMMIT") else None)
store.add([record(2, tokens=(2,) * 500) for _ in range(8)])
"""


def assert_whole_groups(store, adds):
    for prompt in "pq":
        lengths = [response.length for response in store.responses(prompt)]
        assert lengths == [number for number in reversed(range(adds)) for _ in range(8)]
        assert store.stats(prompt).count == 8 * adds


def test_kill_9_leaves_whole_transactions_and_loses_none_that_was_done(tmp_path):
    path = tmp_path / "history.db"
    for patience in (0.0, 0.05, 0.1):
        command = [sys.executable, "-c", ADD_FOREVER, str(path)]
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        seen = [int(child.stdout.readline()) for _ in range(3)][-1]
        time.sleep(patience)
        child.kill()
        seen = max([seen, *map(int, child.stdout.read().split())])
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
        with open_file(path) as store:
            adds = store.stats("p").count // 8
            assert adds in (seen + 1, seen + 2)  # the one under way may have been done, and not yet said so
            assert_whole_groups(store, adds)


def test_kill_9_before_the_commit_leaves_nothing_of_it(tmp_path):
    path = tmp_path / "history.db"
    child = subprocess.run([sys.executable, "-c", DIE_BEFORE_COMMIT, str(path)], cwd=ROOT)
    assert child.returncode == -signal.SIGKILL
    with open_file(path) as store:
        assert [response.length for response in store.responses("p")] == [1] * 8
        assert store.stats("p").count == 8


def test_a_commit_brings_everything_into_the_file_itself(tmp_path):
    path = tmp_path / "history.db"
    with open_file(path) as store:
        store.add([record(5)])
        store.commit()
        (tmp_path / "copy.db").write_bytes(path.read_bytes())
    with open_file(tmp_path / "copy.db") as copy:
        assert copy.stats("p").count == 1
