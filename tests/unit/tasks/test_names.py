import pytest

from untail.errors import ConfigError
from untail.tasks import table_of


def test_a_name_is_a_task_a_file_or_a_dataset() -> None:
    assert table_of("mixture") == {"name": "mixture"}
    assert table_of("reasoning_gym") == {"name": "reasoning_gym"}
    assert table_of("data/train.jsonl") == {"name": "file", "path": "data/train.jsonl"}
    assert table_of("chain_sum") == {"name": "reasoning_gym", "dataset": "chain_sum"}


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"'chain_sun' is neither a task, nor a .* did you mean 'chain_sum'"):
        table_of("chain_sun")
