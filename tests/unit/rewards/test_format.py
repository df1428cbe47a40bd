import pytest

from untail.errors import ConfigError

from .helpers import prompt, reward


def test_the_whole_response_has_to_match() -> None:
    check = reward("format", pattern=r"<think>.*</think>\s*<answer>.*</answer>")
    assert check.score("<think>a\nb</think>\n<answer>c</answer>", prompt()) == 1.0
    assert check.score("<think>a</think><answer>c</answer> and more", prompt()) == 0.0


def test_the_default_wants_an_answer_in_tags() -> None:
    assert reward("format").score("because <answer>4</answer>\n", prompt()) == 1.0
    assert reward("format").score("because 4", prompt()) == 0.0


def test_a_broken_pattern() -> None:
    with pytest.raises(ConfigError, match=r"task.reward.pattern = '\(' is not valid: .*not a regular expression"):
        reward("format", pattern="(")
