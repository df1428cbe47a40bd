"""A weighted sum of other rewards.

`parts` holds one table per reward, with its `weight` beside its own fields. If one part fails, the answer fails.
"""

from typing import Annotated, Any

from pydantic import Field

from untail.config import Strict
from untail.errors import ConfigError
from untail.rewards.base import REWARDS, Reward, build_reward
from untail.types import Prompt


@REWARDS.register("weighted")
class Weighted(Reward):
    class Config(Strict):
        parts: Annotated[list[dict[str, Any]], Field(min_length=1)]

    config: Config

    def __init__(self, config: Config, where: str):
        super().__init__(config, where)
        self._parts = [_part(table, f"{where}.parts[{index}]") for index, table in enumerate(config.parts)]
        self.needs = tuple(dict.fromkeys(key for _, reward in self._parts for key in reward.needs))
        self.truths = tuple(dict.fromkeys(key for _, reward in self._parts for key in reward.truths))
        self.needs_system = any(reward.needs_system for _, reward in self._parts)

    def prepare(self) -> None:
        for _, reward in self._parts:
            reward.prepare()

    def score(self, response: str, prompt: Prompt) -> float:
        return sum(weight * reward.score(response, prompt) for weight, reward in self._parts)


def _part(table: dict[str, Any], where: str) -> tuple[float, Reward]:
    rest = dict(table)
    weight = rest.pop("weight", None)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not abs(weight) < float("inf"):
        raise ConfigError(
            f"{where}.weight = {weight!r} is not a number; give each part its weight, such as weight = 1.0"
        )
    return float(weight), build_reward(rest, where)
