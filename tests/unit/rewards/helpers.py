from typing import Any

from untail.rewards import Reward, build_reward
from untail.types import Prompt


def prompt(**data: Any) -> Prompt:
    return Prompt(id="p", task="t", text="What?", tokens=(1, 2, 3), data=data)


def reward(name: str, **fields: Any) -> Reward:
    built = build_reward({"name": name, **fields}, "task.reward")
    built.prepare()
    return built
