"""Figures of a whole run, from its events.jsonl alone."""

import json

import pytest
from tests.helpers.events import Log, member

from untail.observe.figures import over_steps, read_run, run_figures, to_score
from untail.observe.metrics import step_metrics
from untail.observe.summary import summary
from untail.types import Progress


def one_step(log: Log, step: int, t: float, rollout: float, wall: float, lengths: tuple[int, int]) -> None:
    """One group of two, the second rewarded; the update takes what is left of the wall. In two slots."""
    log.begin(step, t)
    first, second = f"{step}a", f"{step}b"
    log.whole(first, t, t + rollout / 2, lengths[0], 0.0)
    log.whole(second, t, t + rollout, lengths[1], 1.0)
    versions = (step - 1, step - 1) if step < 3 else (0, 0)
    log.train(t + rollout, member(first, lengths[0], 0.0, versions=versions), member(second, lengths[1], 1.0))
    load = {"busy_s": rollout / 2, "computed": 100, "recomputed": step, "kv_used": step / 10, "peak_mem": step}
    log.over(t + rollout, t + wall, t + wall, generated=sum(lengths), **load)


@pytest.fixture
def log() -> Log:
    log = Log()
    log.run(concurrency=2)
    log.validation(5, 0.2)
    one_step(log, 1, 10, rollout=4, wall=8, lengths=(10, 10))
    log.validation(30, 0.4)
    one_step(log, 2, 100, rollout=2, wall=4, lengths=(10, 30))
    one_step(log, 3, 200, rollout=6, wall=20, lengths=(20, 40))
    log.validation(230, 0.6)
    return log


@pytest.fixture
def path(log, tmp_path):
    return log.write(tmp_path / "events.jsonl")


def test_sums_and_ratios_of_sums(path):
    figures = run_figures(path)
    assert (figures["steps"], figures["wall_s"], figures["rollout_s"], figures["tokens"]) == (3, 32, 12, 120)
    assert figures["ett"] == 120 / 32
    assert figures["etr"] == 80 / 120
    assert figures["throughput"] == (120 + 6 * 5) / 32
    assert figures["mean_len"] == 20
    assert figures["preemption"] == 6 / 300
    assert (figures["makespan_p50"], figures["makespan_p95"], figures["makespan_max"]) == (8, 20, 20)
    assert figures["slot_bubble"] == pytest.approx(0.25)
    assert figures["tail_share"] == 0.0
    assert figures["device_bubble"] == pytest.approx(1 - (6 + 32 - 12) / 32)
    assert (figures["kv_used"], figures["peak_mem"]) == (0.3, 3)
    assert figures["phases"]["rollout_s"] == 12
    assert sum(figures["phases"].values()) == pytest.approx(32)
    assert figures["accounts"]["trained"] == 120
    assert figures["accounts"]["unaccounted"] == 0


def test_who_was_pruned_over_all_steps(log, tmp_path):
    log.begin(4, 300)
    for name in ("4a", "4b"):
        log.start(name, 300)
    log.stop("4a", 301, 10, "tournament", segments=2)
    log("fork", 301, id="4c", parent="4b", group="4", tokens=10, temperature=1.2, engine=0)
    log.stop("4c", 302, 30, "tournament", segments=10)
    log.over(302, 302, 302, generated=30)
    figures = run_figures(log.write(tmp_path / "events.jsonl"))
    assert figures["pruning"] == {"tournament": {"stopped": 2, "ratio": 2 / 9, "by_segment": {"2": 1, "10": 1}}}
    assert figures["forks"] == 1
    assert figures["zero_variance"] == 0.0
    assert figures["false_kills"]["tournament"]["stopped"] == 2


def test_staleness_over_all_tokens(path):
    """The second member's tokens are of version 0 throughout; those of the first are fresh but for the last step."""
    ages = {0: 10 + 10 + 10, 1: 30, 2: 20 + 40}
    staleness = run_figures(path)["staleness"]
    assert staleness == {"mean": pytest.approx(sum(age * n for age, n in ages.items()) / 120), "max": 2}


def test_pass1_is_of_the_last_quarter(path):
    rows = read_run(path).rows
    early = [{**rows[0], "pass1": 0.0} for _ in range(4)]
    assert over_steps([*early, {**rows[0], "pass1": 0.5}, {**rows[0], "pass1": 1.0}])["pass1"] == 0.75


def test_time_to_score_counts_training_alone(path):
    validations = run_figures(path)["validations"]
    assert to_score(validations, 0.1) == (0, 0)
    assert to_score(validations, 0.4) == (8, 20)
    assert to_score(validations, 0.5) == (32, 120)
    assert to_score(validations, 0.7) == (None, None)


def test_false_kills_and_what_was_kept(log, tmp_path):
    log.begin(4, 300)
    log.start("4a", 300)
    log.stop("4a", 301, 10, "loop", audited=True)
    log.audit("4a", 302, "loop", 80, 70, 1.0)
    figures = run_figures(log.write(tmp_path / "events.jsonl"))
    assert figures["steps"] == 3  # the fourth is not over
    assert figures["false_kills"]["loop"]["false"] == 1
    assert figures["kept_vs_all"]["kept_len"] == 20
    assert figures["kept_vs_all"]["all_len"] == pytest.approx((120 + 80) / 7)


def test_rows_are_those_of_the_metrics_file_and_a_resume_is_no_step(log, tmp_path):
    log.run(concurrency=2)
    one_step(log, 4, 300, rollout=6, wall=20, lengths=(20, 40))
    path = log.write(tmp_path / "events.jsonl")
    with path.open("a") as file:
        file.write('{"e": "step", "t"')  # a crash
    rows = read_run(path).rows
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    last = next(i for i, event in enumerate(log.events) if event["e"] == "step" and event["step"] == 4)
    assert rows[-1] == step_metrics(log.events[last:], 2)


def test_a_run_in_a_few_numbers(path, tmp_path):
    rows = read_run(path).rows
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    validations = {step: {"score": score, "ci95": [0, 1]} for step, score in (("0", 0.2), ("3", 0.6))}
    result = summary(Progress(3, 120, 99.0, validations), tmp_path)
    assert (result["steps"], result["wall_s"], result["tokens"]) == (3, 99.0, 120)
    assert (result["score_before"], result["score_after"]) == (0.2, 0.6)
    assert result["ett"] == 120 / 32
    assert result["slot_bubble"] == pytest.approx(0.25)
