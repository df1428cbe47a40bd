import subprocess
import sys

import pytest

from untail.errors import ConfigError
from untail.rewards import REWARDS, build_reward


def test_all_rewards_are_registered() -> None:
    names = {"code", "exact", "format", "function", "math_verify", "numeric", "reasoning_gym", "weighted"}
    assert names <= set(REWARDS.names())


def test_an_unknown_reward_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown reward 'numerik'; did you mean 'numeric'"):
        build_reward({"name": "numerik"}, "task.reward")


def test_an_unknown_field_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'task.reward.tolerence'; did you mean 'tolerance'"):
        build_reward({"name": "numeric", "tolerence": 1}, "task.reward")


def test_importing_rewards_brings_in_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'sympy', 'reasoning_gym', 'math_verify', 'transformers'}"
    code = f"import sys, untail.rewards.scorer; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
