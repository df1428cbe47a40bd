"""Recipes as a user runs them: those that carry work over to the next step can be killed, stopped and resumed like any
other; a validation is never cut short; what cannot work is refused in one sentence."""

import shutil
import signal
import sqlite3
from contextlib import closing

import pytest

from tests.e2e.conftest import SMALL, rows, start, untail
from tests.e2e.test_train import timeless, wait_for
from untail.config import recipe_names
from untail.history.store import History
from untail.rollout.mechanisms import MECHANISMS
from untail.rollout.points import Mechanism

# Few and short steps that still have everything in them: segments, watchers that fire, ghosts of the audit; and an
# engine that cannot take up all at once what was carried over, so that the order in which it does so matters.
BUSY = [
    *SMALL,
    "--steps=4",
    "--set=checkpoint_every=1",
    "--set=keep_checkpoints=9",
    "--set=validation.prompts=4",
    "--set=deterministic=true",
    "--set=engine.max_batch_tokens=24",
    "--set=engine.kv_blocks=24",
    "--set=rollout.patience=8",
    "--set=rollout.watch_every=8",
    "--set=rollout.audit=0.5",
    "--set=rollout.max_false_kills=1.0",
    "--set=mechanisms.router={warmup_steps = 0, threshold = 8192, max_spread = 9}",
    "--set=mechanisms.loop={window = 12, period = 4, repeats = 2, cycle_tokens = 4, ngram = 2, share = 0.1}",
]


def history(folder) -> list[tuple]:
    """Every record, with its token ids."""
    with closing(sqlite3.connect(folder / "history.sqlite")) as db:
        return db.execute("SELECT * FROM records LEFT JOIN tokens ON record = id ORDER BY id").fetchall()


def events(folder) -> list[dict]:
    """What happened, up to times; a resumed run says once more who it is."""
    return [
        timeless({key: value for key, value in event.items() if key not in ("t", "peak_mem")})
        for event in rows(folder, "events.jsonl")
        if event["e"] != "run"
    ]


FORKS = [
    "--set=mechanisms.fixed={segments = 12}",
    "--set=mechanisms.tournament={}",
    "--set=mechanisms.fork={}",
    "--set=mechanisms.defer={}",
    "--set=learn.importance=segment",
    "--set=task.partial={name = 'endless_wait', words = ['1', '2', '3'], most = 50}",
]


@pytest.mark.slow
def test_copies_come_back_from_a_checkpoint(tmp_path):
    """A recipe that prunes, forks, scores partial texts and defers is the same run when it is resumed."""
    outcome = untail("train", "grpo", *BUSY, *FORKS, "--out", tmp_path / "whole")
    assert outcome.code == 0, outcome.err
    happened = rows(tmp_path / "whole", "events.jsonl")
    forked = {event["id"] for event in happened if event["e"] == "fork"}
    deferred = {event["id"] for event in happened if event["e"] == "resume" and event["id"] in forked}
    assert len(deferred) > 0
    shutil.copytree(tmp_path / "whole", tmp_path / "crashed")
    for later in (3, 4):
        shutil.rmtree(tmp_path / "crashed" / "checkpoints" / f"step-{later:06}")
    resumed = untail("train", "--resume", "--out", tmp_path / "crashed")
    assert resumed.code == 0, resumed.err
    assert_same_run(tmp_path / "crashed", tmp_path / "whole")


def test_a_partial_score_that_hangs_is_contained_and_named(tmp_path, monkeypatch):
    (tmp_path / "hanging_partial.py").write_text("import time\ndef wait(text, prompt):\n    time.sleep(1000)\n")
    monkeypatch.chdir(tmp_path)
    few = ["--steps=1", "--set=rollout.prompts=1", "--set=rollout.max_tokens=16", "--set=mechanisms.fixed={}"]
    hangs = ["--set=task.partial={name = 'function', path = 'hanging_partial:wait'}", "--set=mechanisms.tournament={}"]
    quick = ["--set=reward.time_limit_s=0.2", "--set=reward.workers=4"]
    outcome = untail("train", *SMALL, *few, *hangs, *quick, "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    (row,) = rows(tmp_path / "run")
    assert row["partial_failures"]["timeout"] > 0
    assert row["accounts"]["unaccounted"] == 0


@pytest.fixture(scope="module", params=["es-grpo", "untail", "dynaseg"])
def whole(request, tmp_path_factory):
    """A run of a deferring recipe that nobody interrupted."""
    folder = tmp_path_factory.mktemp("recipes") / request.param
    outcome = untail("train", request.param, *BUSY, "--out", folder)
    assert outcome.code == 0, outcome.err
    return request.param, folder


def assert_same_run(folder, whole) -> None:
    assert [timeless(row) for row in rows(folder)] == [timeless(row) for row in rows(whole)]
    assert events(folder) == events(whole)
    assert history(folder) == history(whole)


def test_there_is_something_to_carry_over(whole):
    """Otherwise the tests below would say nothing."""
    _, folder = whole
    accounts = [row["accounts"] for row in rows(folder)]
    assert all(books["carried_out"] > 0 for books in accounts)
    assert sum(books["stopped"] for books in accounts) > 0
    assert sum(books["audited"] for books in accounts) > 0
    assert sum(books["unaccounted"] for books in accounts) == 0
    assert max(row["staleness"]["max"] for row in rows(folder)) > 0
    lanes = {event["lane"] for event in rows(folder, "events.jsonl") if event["e"] == "start"}
    assert lanes == {"fast", "segment"}


@pytest.mark.parametrize("whole", ["dynaseg"], indirect=True)
def test_segments_are_trained_ahead(whole):
    """Otherwise a resumed bridge would have nothing to remember."""
    _, folder = whole
    learned = [row["learn"] for row in rows(folder)]
    assert sum(figures["bridged_tokens"] for figures in learned) > 0
    assert sum(figures["bridge_ends_read"] for figures in learned) > 0


@pytest.mark.parametrize("step", [1, 3])
def test_resumed_from_any_step_it_is_the_same_run(whole, tmp_path, step):
    """As after a crash: the files are ahead of the newest checkpoint that there is."""
    _, folder = whole
    shutil.copytree(folder, tmp_path / "crashed")
    for later in range(step + 1, 5):
        shutil.rmtree(tmp_path / "crashed" / "checkpoints" / f"step-{later:06}")
    resumed = untail("train", "--resume", "--out", tmp_path / "crashed")
    assert resumed.code == 0, resumed.err
    assert_same_run(tmp_path / "crashed", folder)


@pytest.mark.slow
def test_killed_and_resumed_it_is_the_same_run(whole, tmp_path):
    name, folder = whole
    process = start("train", name, *BUSY, "--set=checkpoint_every=2", "--out", tmp_path / "killed")
    wait_for(tmp_path / "killed" / "metrics.jsonl", 3, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    resumed = untail("train", "--resume", "--out", tmp_path / "killed")
    assert resumed.code == 0, resumed.err
    assert_same_run(tmp_path / "killed", folder)


@pytest.mark.parametrize("whole", ["untail", pytest.param("es-grpo", marks=pytest.mark.slow)], indirect=True)
def test_interrupted_and_resumed_it_is_the_same_run(whole, tmp_path):
    """What it carried over is saved as it was before the step that was interrupted."""
    name, folder = whole
    process = start("train", name, *BUSY, "--set=checkpoint_every=100", "--out", tmp_path / "stopped")
    wait_for(tmp_path / "stopped" / "metrics.jsonl", 1, process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130, error
    resumed = untail("train", "--resume", "--out", tmp_path / "stopped")
    assert resumed.code == 0, resumed.err
    assert_same_run(tmp_path / "stopped", folder)


def test_validation_never_cancels(tmp_path):
    """Over-sampling cancels in training alone: a validation has an answer for every prompt."""
    outcome = untail("train", "oversample", *SMALL, "--steps=1", "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    happened = rows(tmp_path / "run", "events.jsonl")
    assert {event["id"].partition("/")[0][0] for event in happened if event["e"] == "cancel"} == {"g"}
    assert [event["n"] for event in happened if event["e"] == "validation"] == [8, 8]


@pytest.mark.slow
@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_trains(name, tmp_path):
    outcome = untail("train", name, *SMALL, "--steps=3", "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    assert [row["accounts"]["unaccounted"] for row in rows(tmp_path / "run")] == [0, 0, 0]
    assert outcome.json["steps"] == 3


REFUSED = {
    "unknown mechanism": (["train", "--set=mechanisms.lop={}"], "unknown mechanism 'lop'; did you mean 'loop'?"),
    "unknown key": (
        ["train", "ulorl", "--set=mechanisms.fixed.segment=2"],
        "unknown key 'mechanisms.fixed.segment'; did you mean 'segments'?",
    ),
    "a rate of 1": (["train", "oversample", "--set=mechanisms.oversample.rate=1"], "mechanisms.oversample.rate = 1 is"),
    "a stride over the budget": (
        ["train", "untail", "--set=mechanisms.remainder.cap=10000"],
        "mechanisms.remainder.cap = 10000 is longer than the longest response, rollout.max_tokens = 512",
    ),
    "more segments than tokens": (
        ["train", "ulorl", "--set=rollout.max_tokens=3"],
        "mechanisms.fixed.segments = 4 is more than the longest response has tokens, rollout.max_tokens = 3",
    ),
    "two that set strides": (
        ["train", "es-grpo", "--set=mechanisms.fixed={}"],
        "mechanisms.unfinished and mechanisms.fixed contradict each other: each sets strides",
    ),
    "two that rank prompts": (
        ["train", "vade", "--set=mechanisms.utility={}"],
        "mechanisms.vade and mechanisms.utility contradict each other: each ranks prompts",
    ),
    "a prune share out of range": (
        ["train", "adaseg", "--set=mechanisms.tournament.share=1.5"],
        "mechanisms.tournament.share = 1.5 is not valid",
    ),
    "a group that is too small for the floor": (
        ["train", "dygs", "--set=rollout.group=2"],
        "rollout.group = 2 is too small for mechanisms.outliers: it has to keep 2 members",
    ),
    "patience that is no number": (["train", "--set=rollout.patience=soon"], "rollout.patience"),
    "an unknown partial score": (
        ["train", "--set=task.partial.name=tags"],
        "unknown partial score 'tags'",
    ),
    "a bridge to nowhere": (["train", "ppo", "--set=learn.bridge={}"], "learn.bridge trains segments of what goes on"),
    "a critic that nobody asks": (
        ["train", "--set=learn.critic={}"],
        "learn.critic is set, but learn.advantage = 'grpo' asks no critic",
    ),
    "a critic of an unknown kind": (["train", "ppo", "--set=learn.critic.kind=tail"], "learn.critic.kind = 'tail' is"),
    "all tokens pruned": (["train", "g2tp", "--set=learn.prune.share=1"], "learn.prune.share = 1 is"),
    "a mechanism that is a number": (["train", "--set=mechanisms.loop=3"], "mechanisms.loop"),
    "dropped or deferred": (
        ["train", "untail", "--set=mechanisms.oversample.rest=drop"],
        "mechanisms.oversample and mechanisms.defer contradict each other",
    ),
    "a contradiction in a simulation": (
        ["simulate", "--recipes=es-grpo", "--set=mechanisms.fixed={}"],
        "mechanisms.unfinished and mechanisms.fixed contradict each other",
    ),
    "a contradiction in a comparison": (
        ["compare", "grpo", "es-grpo", "--model=nowhere", "--set=mechanisms.fixed={}"],
        "mechanisms.unfinished and mechanisms.fixed contradict each other",
    ),
    "unknown importance": (["train", "--set=learn.importance=tiss"], "unknown importance 'tiss'; did you mean 'tis'?"),
    "an importance without a name": (["train", "--set=learn.importance={}"], "learn.importance has no name; set"),
    "a mask that is no table": (["train", "--set=learn.masks.mastered=true"], "learn.masks.mastered = True is neither"),
    "unknown mask": (["train", "--set=learn.masks.masterd={}"], "unknown mask 'masterd'; did you mean 'mastered'?"),
    "a bad field of a mask": (
        ["train", "ulorl", "--set=learn.masks.mastered.p=2"],
        "learn.masks.mastered.p = 2 is not valid",
    ),
    "a drift that drops everything": (["train", "--set=learn.max_drift=1"], "learn.max_drift = 1 is not valid"),
    "unknown mechanism in a simulation": (["simulate", "--set=mechanisms.lop={}"], "unknown mechanism 'lop'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_recipe_that_cannot_work_is_refused(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, sentence = REFUSED[case]
    assert_refused(untail(*arguments), sentence)
    assert not (tmp_path / "runs").exists(), "it left a run behind"


def test_what_train_refuses_is_not_shown(tmp_path):
    (tmp_path / "odd.toml").write_text("[mechanisms.fixed]\n[mechanisms.remainder]\n")
    shown = untail("recipes", "show", tmp_path / "odd.toml")
    assert_refused(shown, "mechanisms.fixed and mechanisms.remainder contradict each other")


def test_a_recipe_named_twice_has_two_rows_with_names_of_their_own():
    small = ["--devices=1", "--steps=1", "--warmup=0", "--set=rollout.max_tokens=64"]
    outcome = untail("simulate", "--recipes=grpo,grpo", *small, "--law=short", "--json")
    assert outcome.code == 0, outcome.err
    first, second = outcome.json["rows"]
    assert (first.pop("recipe"), second.pop("recipe")) == ("grpo", "grpo (2)")
    assert first == second


class SamplesFromSomethingElse(Mechanism):
    is_lossy = True


def test_tokens_that_the_importance_rule_cannot_correct_for_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(MECHANISMS._classes, "skipping", SamplesFromSomethingElse)
    asks = ["train", *SMALL, "--steps=1", "--set=mechanisms.skipping={}"]
    assert_refused(untail(*asks), "mechanisms.skipping samples tokens from something else than the policy")
    assert not (tmp_path / "runs").exists(), "it left a run behind"
    assert untail(*asks, "--set=learn.importance=tis").code == 0


def assert_refused(outcome, sentence: str) -> None:
    assert outcome.code == 2, outcome.err
    assert sentence in outcome.err
    assert len(outcome.lines_of_error) == 1, outcome.err


def of_another_model(path) -> None:
    path.unlink()
    History.open(path, "somebody/else-7b", "other").close()


def of_a_newer_untail(path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'format'")


def that_is_text(path) -> None:
    path.write_text("not a database, but long enough to be looked at " * 100)


HISTORIES = {
    "of another model": (of_another_model, "was made with the model 'somebody/else-7b', but this run has 'tiny'"),
    "of a newer untail": (of_a_newer_untail, "has format 99, but this untail knows formats up to 1; upgrade untail"),
    "that is text": (that_is_text, "cannot be read as a history"),
}


@pytest.mark.parametrize("case", HISTORIES)
def test_a_history_that_does_not_belong_to_the_run(case, trained, tmp_path):
    damage, sentence = HISTORIES[case]
    shutil.copytree(trained[0], tmp_path / "run")
    before = rows(tmp_path / "run")
    damage(tmp_path / "run" / "history.sqlite")
    assert_refused(untail("train", "--resume", "--steps=5", "--out", tmp_path / "run"), sentence)
    assert rows(tmp_path / "run") == before
