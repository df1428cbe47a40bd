"""The prompts of a run: those it trains on, and those it is judged by.

Invariant: no prompt is in both. Held-out prompts come from `validation.task`; without one they are taken out of the
training task, the same ones every time.
"""

from dataclasses import dataclass, field
from typing import Any

from untail.config import Recipe
from untail.errors import ConfigError, DataError
from untail.tasks.load import TaskSet, load_tasks
from untail.tokenizer import Tokenizer
from untail.types import Prompt


@dataclass(frozen=True, slots=True)
class RunData:
    prompts: list[Prompt]
    held_out: list[Prompt]
    rewards: dict[str, dict[str, Any]]
    notes: list[str]
    partials: dict[str, dict[str, Any]] = field(default_factory=dict)  # of the training task: nobody watches the others


def prepare(recipe: Recipe, tokenizer: Tokenizer, context: int) -> RunData:
    context = min(context, recipe.engine.context or context)
    room = context - recipe.rollout.max_tokens
    if room < 1:
        raise ConfigError(
            f"rollout.max_tokens = {recipe.rollout.max_tokens} leaves no room for a prompt in a context of {context}; "
            "lower it"
        )
    train = load_tasks(recipe.task, tokenizer, room)
    count = recipe.validation.prompts
    if recipe.validation.task is None:
        held_out, prompts, valid = _take_out(train.prompts, count), train.prompts, train
    else:
        valid = load_tasks(_validation_table(recipe), tokenizer, room, "validation.task")
        prompts, held_out = train.prompts, valid.prompts[:count]
        _refuse_two_rewards(train, valid)
    judged_by = {prompt.id for prompt in held_out}
    kept = [prompt for prompt in prompts if prompt.id not in judged_by]
    notes = [*train.notes, *(valid.notes if valid is not train else [])]
    if recipe.validation.task is not None and len(kept) < len(prompts):
        notes.append(f"{len(prompts) - len(kept)} training prompts left out: they are in the validation task too")
    if len(kept) < recipe.rollout.prompts:
        raise DataError(
            f"{len(kept)} training prompts are left, fewer than rollout.prompts = {recipe.rollout.prompts}; "
            "lower it, or give the task more rows"
        )
    return RunData(kept, held_out, train.rewards | valid.rewards, notes, train.partials)


def _validation_table(recipe: Recipe) -> dict[str, Any]:
    """The validation task; where it is the training task again, it is judged by the same reward unless it says else."""
    table = dict(recipe.validation.task or {})
    if table.get("name") == recipe.task.get("name") and "reward" in recipe.task:
        table.setdefault("reward", recipe.task["reward"])
    return table


def _refuse_two_rewards(train: TaskSet, valid: TaskSet) -> None:
    for name in train.rewards.keys() & valid.rewards.keys():
        if train.rewards[name] != valid.rewards[name]:
            raise ConfigError(
                f"task and validation.task are both labelled {name!r} but have different rewards; "
                "give validation.task.label another name"
            )


def _take_out(prompts: list[Prompt], count: int) -> list[Prompt]:
    """`count` of them, at most half, chosen by their ids, which are as good as random and the same in every run."""
    return sorted(prompts, key=lambda prompt: prompt.id)[: min(count, len(prompts) // 2)]
