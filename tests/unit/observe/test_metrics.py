"""Every figure against its definition, on a step small enough to compute by hand."""

import pytest

from untail.observe.interval import mean_interval, wilson
from untail.observe.metrics import step_metrics


def trajectory(name, prompt, begin, end, tokens, reward, why="stop", failure=None):
    common = {"step": 3, "id": name}
    return [
        {"e": "start", "t": begin, "prompt": prompt, **common},
        {"e": "end", "t": end, "tokens": tokens, "prompt_tokens": 5, "end": why, "entropy": 0.5, **common},
        {"e": "score", "t": end, "reward": reward, "failure": failure, **common},
    ]


@pytest.fixture
def events():
    middle = [
        *trajectory("a0", "a", 0, 2, 20, 1.0),
        *trajectory("a1", "a", 0, 10, 100, 0.0, "length"),
        *trajectory("b0", "b", 0, 1, 10, 0.0, failure="timeout"),
        *trajectory("b1", "b", 1, 4, 30, 0.0),
    ]
    begin = {"e": "step", "t": 0, "step": 3}
    return [
        begin,
        *middle,
        {"e": "rolled_out", "t": 10, "step": 3},
        {"e": "update", "t": 14, "step": 3, "loss": 0.25},
        {"e": "done", "t": 16, "step": 3},
    ]


def test_figures(events):
    metrics = step_metrics(events, concurrency=2)
    assert metrics["reward"] == 0.25
    assert metrics["tokens"] == 160
    assert metrics["throughput"] == (160 + 20) / 16
    assert metrics["effective_tokens"] == 120  # group a alone has variance
    assert metrics["ett"] == 120 / 16
    assert metrics["etr"] == 20 / 160
    assert metrics["slot_bubble"] == pytest.approx(1 - (2 + 10 + 1 + 3) / (2 * 10))
    assert metrics["tail_share"] == 0.0  # nine tenths of four are all four
    assert metrics["ends"] == {"stop": 3, "length": 1}
    assert metrics["score_failures"] == {"timeout": 1}
    assert (metrics["wall_s"], metrics["rollout_s"], metrics["update_s"]) == (16, 10, 4)
    assert metrics["learn"] == {"loss": 0.25}


def test_tail_share_begins_when_nine_tenths_have_finished():
    events = [{"e": "step", "t": 0, "step": 1}]
    for number in range(10):
        events += trajectory(str(number), "p", 0, 100 if number == 9 else number + 1, 10, number % 2)
    events += [{"e": e, "t": 100, "step": 1} for e in ("rolled_out", "update", "done")]
    assert step_metrics(events, 10)["tail_share"] == pytest.approx((100 - 9) / 100)


def test_intervals():
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-4)
    assert wilson(0.0, 10)[0] == pytest.approx(0.0, abs=1e-9)
    assert mean_interval([0.0, 1.0] * 50) == wilson(0.5, 100)
    low, high = mean_interval([-1.0, 3.0] * 50)
    assert low < 1.0 < high
    assert high - low == pytest.approx(2 * 1.96 * 2.01 / 10, rel=1e-2)
