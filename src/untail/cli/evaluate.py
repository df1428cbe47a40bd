"""`untail eval`: score a model on a task."""

import asyncio
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from untail.cli.output import print_json
from untail.config import load_recipe, override
from untail.errors import UserError
from untail.notice import say


def evaluate(
    model: Annotated[str, typer.Option(help="A folder, a .gguf file, a hub name, tiny or smollm2.")],
    task: Annotated[str, typer.Option(help="A task, a .jsonl or .parquet file, or a reasoning-gym dataset.")],
    n: Annotated[int | None, typer.Option("--n", min=1, help="At most so many prompts.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="The longest response.")] = 512,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same answers.")] = 0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A=B", help="A field of the task's table, or environment.NAME=B."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The mean score of a model on a task's prompts, with a 95 % interval."""
    result = asyncio.run(_evaluate(model, task, n, max_tokens, temperature, seed, set_ or []))
    low, high = result["ci95"]
    say(f"score {result['score']:.1%} (95 % {low:.1%} to {high:.1%}) on {result['n']} prompts")
    if json:
        print_json(result)


async def _evaluate(
    model: str, task: str, n: int | None, max_tokens: int, temperature: float, seed: int, assignments: list[str]
) -> dict[str, Any]:
    from untail.engine.models.load import load_model
    from untail.flow.roles import LocalJudge
    from untail.observe.interval import mean_interval
    from untail.tasks.load import load_tasks
    from untail.tasks.names import table_of

    table = override(table_of(task), assignments)
    changes: dict[str, Any] = {"model": model, "seed": seed, "rollout": {"max_tokens": max_tokens}}
    if "environment" in table:
        changes["environment"] = table.pop("environment")
    recipe = load_recipe(None, changes, [])
    loaded = load_model(model, recipe.engine.device, recipe.engine.dtype)
    room = loaded.decoder.shape.context - max_tokens
    if room < 1:
        raise UserError(f"--max-tokens {max_tokens} leaves no room for a prompt in a context of {room + max_tokens}")
    tasks = load_tasks(table, loaded.tokenizer, room)
    for note in tasks.notes:
        say(note)
    roles = LocalJudge(recipe, loaded, tasks.rewards)
    try:
        await roles.start()
        trajectories = await roles.validate(0, tasks.prompts[:n], temperature)
    finally:
        await roles.close()
    scores = [trajectory.reward for trajectory in trajectories]
    return {
        "score": fmean(scores),
        "n": len(scores),
        "mean_len": fmean(trajectory.length for trajectory in trajectories),
        "ci95": list(mean_interval(scores)),
        "score_failures": dict(roles.scorer.failures),
        "model": str(Path(model)),
    }
