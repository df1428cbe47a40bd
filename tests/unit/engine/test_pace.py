"""A launch is as long as the host needs to send the next, and no longer."""

import pytest

from untail.engine import pace
from untail.engine.pace import FEWEST, MOST, Pace


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(pace, "perf_counter", lambda: now[0])
    return now


def run(pace: Pace, clock: list[float], host_s: float, step_s: float, launches: int = 30) -> int:
    """The host is busy for so long between two reads, and waits for what is left of the launch under way."""
    for _ in range(launches):
        device_s = pace.steps * step_s
        waited_s = max(0.0, device_s - host_s)
        clock[0] += host_s + waited_s
        pace.read(pace.steps, device_s, waited_s)
    return pace.steps


@pytest.mark.parametrize(
    ("host_s", "steps"),
    [(0.001, FEWEST), (0.008, 10), (0.016, 20), (1.0, MOST)],
    ids=["quick", "even", "slow", "stuck"],
)
def test_as_many_steps_as_the_host_needs(clock, host_s, steps):
    assert run(Pace(), clock, host_s, step_s=0.001) == pytest.approx(steps, abs=1)


def test_a_host_that_is_quick_again_gets_short_launches_again(clock):
    pace = Pace()
    assert run(pace, clock, 0.016, 0.001) > FEWEST
    assert run(pace, clock, 0.001, 0.001) == FEWEST


def test_what_else_was_computed_is_not_the_host_s_time(clock):
    pace = Pace()
    run(pace, clock, 0.001, 0.001)
    clock[0] += 5.0
    pace.interrupt()
    assert run(pace, clock, 0.001, 0.001, launches=3) == FEWEST
