"""The calculator computes and never executes."""

import pytest

from untail.envs import ENVIRONMENTS, Turn
from untail.envs.calculator import calculate
from untail.types import Prompt


async def no_score() -> float:
    raise AssertionError("a calculator scores nothing")


def turn(text: str) -> Turn:
    return Turn(Prompt("p", "t", "", (1,)), 1, text, 0, no_score)


async def reply(text: str, **fields) -> str | None:
    return await ENVIRONMENTS.build({"name": "calculator", **fields}, "environment").reply(turn(text))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12*34", "408"),
        ("-3 + 2*(4 - 9)", "-13"),
        ("7 / 2", "3.5"),
        ("7 // 2 % 2", "1"),
        ("2**100", str(2**100)),
        ("2**-2", "0.25"),
        ("1/3", "0.333333333333"),
        ("+5", "5"),
    ],
)
def test_what_it_computes(expression, value):
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        *("", "1 +", "2 3", "x", "abs(3)", "__import__('os')", "().__class__", "1 if 1 else 2", "'a' * 3", "True + 1"),
        *("1j", "(-8) ** 0.5", "9**9**9", "2**1000", "10.0**400", "1e999", "1/0", "5 % 0", "0**-1", "[1][0]", "1 < 2"),
        *("(" * 90 + "1" + ")" * 90, "9" * 199, "\0", "lambda: 1", "1;2"),
    ],
)
async def test_what_it_cannot_compute_gets_a_reason(expression):
    answer = await reply(f"<calc>{expression}</calc>")
    assert answer is not None
    assert answer.startswith("error: ") or expression.startswith("((")  # deep brackets alone are no fault


async def test_a_turn_that_ends_otherwise_is_the_last():
    assert await reply("so <calc>6*7</calc>\n") == "42"
    assert await reply("<calc>1</calc> and <calc>2+2</calc>") == "4"
    for text in ("#### 42", "", "<calc>1+1</calc> = 2", "1+1</calc>", "<calc>1+1"):
        assert await reply(text) is None


async def test_an_expression_may_be_too_long():
    assert await reply("<calc>1+1+1</calc>", longest=4) == "error: longer than 4 characters"
