"""Mechanisms from their tables, and a past for prompts."""

from typing import Any

from tests.helpers.rollout import FakeView, make_plan

import untail.rollout.admit  # noqa: F401  (they register themselves)
from untail.history.stats import Record
from untail.rollout.points import MECHANISMS
from untail.types import Prompt


def build(name: str, **fields: Any) -> Any:
    return MECHANISMS.build({"name": name, **fields}, f"mechanisms.{name}")


def remember(view: FakeView, prompt: Prompt, rewards: list[float], length: int = 100) -> None:
    """One group that ended with these rewards."""
    view.history.add([Record(prompt.id, prompt.task, 1, 0, length, "stop", reward) for reward in rewards])


def plan_for(view: FakeView, prompt: Prompt, **more: Any):
    """What a controller hands to the first mechanism."""
    return make_plan(prompt, view.group, view.budget, predicted=view.predictor.predict(prompt), **more)
