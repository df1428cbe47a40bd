import pytest

from untail.errors import ConfigError

from .helpers import prompt, reward

PARTS = [{"name": "numeric", "weight": 1.0}, {"name": "format", "weight": 0.25, "pattern": ".*!"}]


@pytest.mark.parametrize(("response", "score"), [("4!", 1.25), ("4", 1.0), ("5!", 0.25), ("5", 0.0)])
def test_weighted(response: str, score: float) -> None:
    assert reward("weighted", parts=PARTS).score(response, prompt(answer="4")) == score


def test_it_needs_what_its_parts_need() -> None:
    parts = [*PARTS, {"name": "code", "weight": 1}]
    both = reward("weighted", parts=parts)
    assert both.needs == ("answer", "tests")
    assert both.truths == ("answer", "tests")
    assert both.needs_system
    assert not reward("weighted", parts=PARTS).needs_system


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], r"task.reward.parts"),
        ([{"name": "exact"}], r"task.reward.parts\[0\].weight = None is not a number"),
        ([{"name": "exact", "weight": "1"}], r"task.reward.parts\[0\].weight = '1' is not a number"),
        ([{"name": "exact", "weight": float("nan")}], r"weight = nan is not a number"),
        ([PARTS[0], {"name": "exakt", "weight": 1}], r"unknown reward 'exakt'"),
        ([{"name": "exact", "weight": 1, "extra": 1}], r"task.reward.parts\[0\].extra"),
    ],
)
def test_bad_parts(parts: list[dict[str, object]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reward("weighted", parts=parts)
