"""Rows of a comparison: means over seeds, pooled intervals, speedups, the score to be reached."""

import math
from pathlib import Path

import pytest
from tests.helpers.events import Log, member

from untail.compare.rows import Result, SeedRun, make_rows, pooled
from untail.observe.figures import run_figures

FIELDS = {  # what the command line promises
    *("recipe", "wall_s", "rollout_s", "tokens", "ett", "etr", "slot_bubble", "tail_share", "makespan_p50"),
    *("makespan_p95", "bad_generation", "mean_len", "entropy", "pass1", "score_after", "time_to_score_s"),
    *("tokens_to_score", "peak_mem", "phases", "speedup"),
}


@pytest.fixture
def run(tmp_path):
    """A run of one step that takes `wall` seconds, with scores before and after."""

    def make(seed: int, wall: float, before: float, after: float) -> SeedRun:
        log = Log()
        log.run(concurrency=2)
        log.validation(0, before)
        log.begin(1, 0)
        log.whole("a0", 0, wall / 2, 10, 1.0)
        log.whole("a1", 0, wall / 2, 30, 0.0)
        log.train(wall / 2, member("a0", 10, 1.0), member("a1", 30, 0.0))
        log.over(wall / 2, wall, wall, generated=40, peak_mem=7)
        log.validation(100, after)
        folder = tmp_path / f"{wall}-{seed}"
        folder.mkdir()
        return SeedRun(seed, folder, run_figures(log.write(folder / "events.jsonl")))

    return make


def test_one_seed(run):
    rows, target = make_rows([Result("grpo", [run(0, 8, 0.2, 0.5)]), Result("quick", [run(0, 2, 0.2, 0.4)])])
    assert target == pytest.approx(0.45)  # the interval of the first is 0.45 to 0.55
    for row in rows:
        assert set(row) >= FIELDS
        assert "seeds" not in row
    first, quick = rows
    assert (first["speedup"], quick["speedup"]) == (1.0, 4.0)
    assert (first["time_to_score_s"], first["tokens_to_score"]) == (8, 40)
    assert (quick["time_to_score_s"], quick["tokens_to_score"]) == (None, None)
    assert (quick["wall_s"], quick["ett"], quick["etr"], quick["mean_len"]) == (2, 20, 0.25, 20)
    assert (quick["score_before"], quick["score_after"]) == (0.2, 0.4)
    assert (quick["seed"], Path(quick["run_dir"]).name) == (0, "2-0")


def test_means_over_seeds(run):
    grpo = Result("grpo", [run(0, 8, 0.2, 0.5), run(1, 12, 0.2, 0.7)])
    quick = Result("quick", [run(0, 2, 0.2, 0.9), run(1, 6, 0.2, 0.3)])
    rows, target = make_rows([grpo, quick])
    half = 0.05 / math.sqrt(2)
    assert target == pytest.approx(0.6 - half)
    first, second = rows
    assert set(first) >= FIELDS
    assert (first["wall_s"], second["wall_s"], second["speedup"]) == (10, 4, 2.5)
    assert first["phases"]["rollout_s"] == 5
    assert (first["score_before"], first["score_after"]) == pytest.approx((0.2, 0.6))
    assert first["ci95_after"] == pytest.approx([0.6 - half, 0.6 + half])
    assert first["time_to_score_s"] is None  # the first seed never reached it
    assert [row["time_to_score_s"] for row in second["seeds"]] == [2, None]
    assert [row["seed"] for row in second["seeds"]] == [0, 1]


def test_a_row_that_is_out(run):
    rows, _ = make_rows([Result("grpo", [run(0, 8, 0.2, 0.5)]), Result("+ x", error="makes no sense")])
    assert rows[1] == {"recipe": "+ x", "error": "makes no sense", "speedup": None}
    rows, target = make_rows([Result("grpo", error="no"), Result("quick", [run(0, 2, 0.2, 0.4)])])
    assert target is None
    assert (rows[1]["speedup"], rows[1]["time_to_score_s"], rows[1]["score_after"]) == (None, None, 0.4)


def test_pooling_counts_every_answer():
    few = {"score": 0.0, "ci95": (0.0, 0.2), "n": 10}
    many = {"score": 1.0, "ci95": (0.9, 1.0), "n": 30}
    score, (low, high) = pooled([few, many])
    assert score == 0.75
    centre, half = (0.1 * 10 + 0.95 * 30) / 40, math.hypot(0.1 * 10, 0.05 * 30) / 40
    assert (low, high) == pytest.approx((centre - half, centre + half))
