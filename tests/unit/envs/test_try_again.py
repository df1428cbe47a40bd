"""Wrong answers get another turn, and a latency that follows its law."""

import math
from statistics import NormalDist

import pytest

from untail.envs import ENVIRONMENTS, Turn
from untail.errors import ConfigError
from untail.types import Prompt, stream_key


def build(**fields):
    return ENVIRONMENTS.build({"name": "try_again", **fields}, "environment")


def turn(score: float = 0.0, stream: int = 0) -> Turn:
    async def give() -> float:
        return score

    return Turn(Prompt("p", "t", "", (1,)), 1, "text", stream, give)


async def test_the_scorer_of_the_task_says_what_is_right():
    assert await build().reply(turn(0.0)) == "wrong, try again"
    assert await build().reply(turn(0.4)) == "wrong, try again"
    assert await build().reply(turn(1.0)) is None
    assert await build(right=0.3, text="no").reply(turn(0.4)) is None
    assert await build(text="no").reply(turn(0.4)) == "no"


def test_its_latency_is_lognormal_and_a_function_of_the_stream():
    slow = build(latency_s=0.2, latency_sigma=1.5)
    drawn = sorted(slow.latency_s(turn(stream=stream_key(0, number))) for number in range(2000))
    for share in (0.1, 0.5, 0.9):
        expected = 0.2 * math.exp(1.5 * NormalDist().inv_cdf(share))
        assert drawn[int(share * 2000)] == pytest.approx(expected, rel=0.15)
    assert slow.latency_s(turn(stream=7)) == slow.latency_s(turn(stream=7))
    assert build().latency_s(turn(stream=7)) == 0
    assert build(latency_s=0.2).latency_s(turn(stream=7)) == 0.2


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"turns": 0}, "turns"), ({"time_limit_s": 0}, "time_limit_s"), ({"latency_s": -1}, "latency_s"),
     ({"role": "god"}, "role"), ({"latencies": 1}, "latencies")],
)  # fmt: skip
def test_a_bad_field_is_named(fields, field):
    with pytest.raises(ConfigError, match=rf"environment\.{field}"):
        build(**fields)


def test_an_unknown_environment_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"unknown environment 'tryagain'; did you mean 'try_again'\?.*calculator"):
        ENVIRONMENTS.build({"name": "tryagain"}, "environment")
