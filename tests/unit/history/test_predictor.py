"""Lengths predicted from the best source, what remains, and how near it comes to knowing the law."""

import random
from statistics import fmean, stdev

import pytest
from tests.unit.history.helpers import bound, history, prompt, record

from untail.history.predictor import Prediction, Predictor
from untail.history.quality import prediction_quality


def predictor(*groups, budget=8192):
    return Predictor(history(*groups), budget)


def test_nothing_is_known():
    assert predictor().predict(prompt()) == Prediction(0.0, 0.0, 0, "unknown")
    assert predictor([record(5, "other", task="other")]).predict(prompt()).source == "unknown"


def test_own_history_comes_first():
    knows = predictor([record(100), record(300)])
    assert knows.predict(prompt(), [5000]) == Prediction(200.0, pytest.approx(stdev([100, 300])), 2, "own")


def test_bounds_alone_are_own_history_with_nothing_finished():
    assert predictor([bound(700)], [record(5, "other")]).predict(prompt()) == Prediction(700.0, 0.0, 0, "own")


def test_then_the_longest_finished_sibling():
    knows = predictor([record(10, "other")])
    assert knows.predict(prompt(), [90, 400, 50]) == Prediction(
        400.0, pytest.approx(stdev([90, 400, 50])), 3, "siblings"
    )
    assert knows.predict(prompt(), [90]) == Prediction(90.0, 0.0, 1, "siblings")


def test_then_the_task():
    knows = predictor([record(length, "other") for length in range(1, 101)])
    assert knows.predict(prompt()) == Prediction(50.0, (84 - 16) / 2, 100, "task")


def test_what_remains():
    knows = predictor([record(1000)])
    assert knows.remaining(prompt(), 0) == 1000
    assert knows.remaining(prompt(), 990) == 10
    assert knows.remaining(prompt(), 1000) == 500
    assert knows.remaining(prompt(), 3000) == 1500


def test_what_has_outlived_a_short_estimate_gets_the_floor():
    knows = predictor([record(20)])
    assert knows.remaining(prompt(), 20) == 64
    assert knows.remaining(prompt(), 127) == 64
    assert knows.remaining(prompt(), 200) == 100


def test_what_is_unknown_is_treated_as_outlived():
    assert predictor().remaining(prompt(), 0) == 64
    assert predictor().remaining(prompt(), 400) == 200
    assert predictor().remaining(prompt(), 100, siblings_done=[300]) == 200


@pytest.mark.parametrize(("budget", "floor"), [(100_000, 64), (8192, 64), (512, 4), (100, 1), (1, 1)])
def test_the_floor_scales_with_a_small_budget(budget, floor):
    assert predictor(budget=budget).remaining(prompt(), 0) == floor


@pytest.mark.parametrize("spread", [0.2, 0.5, 1.0])
def test_after_one_epoch_it_is_nearly_as_good_as_an_oracle(spread):
    """On prompts with a long tail, each with its own law of lengths: against the mean of 32 fresh samples."""
    rng = random.Random(7)
    centres = {f"p{number}": rng.lognormvariate(4, 0.8) for number in range(400)}

    def samples(name, count):
        return [max(1, round(centres[name] * rng.lognormvariate(0, spread))) for _ in range(count)]

    knows = predictor(*[[record(length, name) for length in samples(name, 8)] for name in centres])
    own, oracle = [], []
    for name in centres:
        mean = fmean(samples(name, 32))
        for actual in samples(name, 8):
            own.append((knows.predict(prompt(name)).mean, actual))
            oracle.append((mean, actual))
    assert prediction_quality(own)["auc_top10"] >= 0.95 * prediction_quality(oracle)["auc_top10"]
