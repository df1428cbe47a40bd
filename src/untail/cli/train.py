"""`untail train`: a recipe, a model and a task become a run folder with a trained model in it."""

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from untail.cli.interrupt import quit_at_once
from untail.cli.output import print_json
from untail.config import Recipe, load_recipe
from untail.errors import UserError
from untail.notice import say

if TYPE_CHECKING:
    from untail.flow.role_base import Roles
    from untail.run import Run
    from untail.tasks.prepare import RunData


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
    changes: dict[str, Any] = {k: v for k, v in (("model", model), ("steps", steps)) if v is not None}
    if task is not None:
        from untail.tasks.names import table_of

        changes["task"] = table_of(task)
    if resume and out is None:
        raise UserError("--resume needs --out: the folder of the run to continue")
    folder = out or Path("runs") / f"{Path(recipe).stem if recipe else 'quickstart'}-{time.strftime('%Y%m%d-%H%M%S')}"

    def make_recipe(ground: dict[str, Any] | None = None) -> Recipe:
        from untail.resolve import resolved

        return resolved(load_recipe(recipe, changes, set_ or [], ground))

    result = _train(folder, make_recipe, resume)
    if json:
        print_json(result)


def _train(folder: Path, make_recipe: Callable[..., Recipe], resume: bool) -> dict[str, Any]:
    from untail.run import Run
    from untail.train import Stopped

    try:
        if resume:
            run = Run.resume(folder, lambda own: make_recipe(ground=own))
            return asyncio.run(_run(run.recipe, lambda roles: run))
        recipe = make_recipe()
        Run.refuse_if_taken(folder)

        def begin(roles: "Roles") -> Run:
            if note := roles.refuse_bad_history():
                say(note)
            return Run.begin(folder, recipe)

        return asyncio.run(_run(recipe, begin))
    except Stopped:
        say(f"stopped; continue with: untail train --resume --out {folder}")
        sys.exit(130)


async def _run(recipe: Recipe, begin: Callable[["Roles"], "Run"]) -> dict[str, Any]:
    """Load everything first: what is wrong with it must not leave a run's folder behind."""
    from untail.engine.models.load import load_model
    from untail.flow.choose import make_roles
    from untail.observe.trackers import refuse_if_missing
    from untail.tasks.prepare import prepare
    from untail.train import Moved

    refuse_if_missing(recipe)
    model = load_model(recipe.model, recipe.engine.device, recipe.engine.dtype)
    data = prepare(recipe, model.tokenizer, model.decoder.shape.context)
    for note in data.notes:
        say(note)
    roles = make_roles(recipe, model, data.rewards, data.prompts, data.partials)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, _ask_to_stop, stop)
    while True:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(roles.close)
            run = begin(roles)
            stack.callback(run.close)
            try:
                return await _watched(run, roles, data, stop)
            except Moved:
                say("what the roles take has changed: they move, and go on from the last step")
        roles = make_roles(recipe, model, data.rewards, data.prompts, data.partials, roles.auto)
        begin = _go_on_in(run.folder, recipe)


def _go_on_in(folder: Path, recipe: Recipe) -> Callable[["Roles"], "Run"]:
    from untail.run import Run

    return lambda roles: Run.resume(folder, lambda own: recipe)


async def _watched(run: "Run", roles: "Roles", data: "RunData", stop: asyncio.Event) -> dict[str, Any]:
    from untail.observe.display import Display
    from untail.observe.summary import summary
    from untail.observe.trackers import make_trackers
    from untail.train import Training

    trackers = make_trackers(run.recipe, run.folder)
    with Display(run.recipe.steps) as display:

        def show(row: dict[str, Any]) -> None:
            for listener in (display.show, *trackers):
                listener(row)

        progress = await Training(run, roles, data.held_out, show, stop, may_move=True).train()
    display.end(progress, run.folder)
    return summary(progress, run.folder)


def _ask_to_stop(stop: asyncio.Event) -> None:
    """The first signal ends the run at the last whole step; the second ends it at once."""
    say("stopping: saving the last whole step")
    stop.set()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().remove_signal_handler(number)
    signal.signal(signal.SIGINT, quit_at_once)
