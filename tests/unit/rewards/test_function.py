from pathlib import Path

import pytest

from untail.errors import ConfigError

from .helpers import prompt, reward


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rewards.py").write_text("LIMIT = 3\ndef short(response, prompt): return len(response) < LIMIT\n")
    (tmp_path / "broken_rewards.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_calls_the_function() -> None:
    check = reward("function", path="my_rewards:short")
    assert check.score("ab", prompt()) == 1.0
    assert check.score("abcd", prompt()) == 0.0


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("my_rewards.short", r"task.reward.path = 'my_rewards.short' is not valid"),
        ("no_such_module:short", r"task.reward.path = 'no_such_module:short' cannot be imported: ModuleNotFoundError"),
        ("my_rewards:long", r"cannot be imported: AttributeError"),
        ("broken_rewards:short", r"cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        ("my_rewards:LIMIT", r"is not a function but a int"),
    ],
)
def test_bad_paths(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reward("function", path=path)
