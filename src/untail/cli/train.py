"""`untail train`: a recipe, a model and a task become a run folder with a trained model in it."""

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from untail.cli.output import print_json, say
from untail.config import Recipe, load_recipe
from untail.errors import UserError


def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe's name or a TOML file; the quickstart if left out.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change one field; repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A folder, a .gguf file, a hub name, tiny or smollm2.")] = None,
    task: Annotated[
        str | None, typer.Option(help="A task, a .jsonl or .parquet file, or a reasoning-gym dataset.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME-TIME if left out.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a model; without an argument the quickstart: the tiny model on the CPU."""
    given = any(value is not None for value in (recipe, set_, model, task))
    changes: dict[str, Any] = {k: v for k, v in (("model", model), ("steps", steps)) if v is not None}
    if task is not None:
        from untail.tasks.names import table_of

        changes["task"] = table_of(task)
    wanted = load_recipe(recipe, changes, set_ or [])
    if resume and out is None:
        raise UserError("--resume needs --out: the folder of the run to continue")
    folder = out or Path("runs") / f"{(recipe and Path(recipe).stem) or 'quickstart'}-{time.strftime('%Y%m%d-%H%M%S')}"
    result = _train(folder, wanted if given or not resume else None, steps, resume)
    if json:
        print_json(result)


def _train(folder: Path, recipe: Recipe | None, steps: int | None, resume: bool) -> dict[str, Any]:
    from untail.run import Run
    from untail.train import Stopped

    if resume:
        run = Run.resume(folder, recipe, steps)
    else:
        assert recipe is not None
        run = Run.begin(folder, recipe)
    try:
        return asyncio.run(_run(run))
    except Stopped:
        say(f"stopped; continue with: untail train --resume --out {folder}")
        sys.exit(130)
    finally:
        run.close()


async def _run(run: Any) -> dict[str, Any]:
    from untail.engine.models.load import load_model
    from untail.flow.roles import LocalRoles
    from untail.observe.display import Display
    from untail.observe.summary import summary
    from untail.observe.trackers import make_trackers
    from untail.tasks.prepare import prepare
    from untail.train import Training

    recipe = run.recipe
    model = load_model(recipe.model, recipe.engine.device, recipe.engine.dtype)
    data = prepare(recipe, model.tokenizer, model.decoder.shape.context)
    for note in data.notes:
        say(note)
    trackers = make_trackers(recipe, run.folder)
    roles = LocalRoles(recipe, model, data.rewards)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, _ask_to_stop, stop)
    try:
        with Display(recipe.steps) as display:

            def show(row: dict[str, Any]) -> None:
                for listener in (display.show, *trackers):
                    listener(row)

            progress = await Training(run, roles, data.prompts, data.held_out, show, stop).train()
        display.end(progress, run.folder)
    finally:
        await roles.close()
    return summary(progress, run.folder)


def _ask_to_stop(stop: asyncio.Event) -> None:
    """The first signal ends the run at the last whole step; the second is the usual one and ends it at once."""
    say("stopping: saving the last whole step")
    stop.set()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().remove_signal_handler(number)
