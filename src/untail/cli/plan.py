"""`untail plan`: who runs where, how finely, in turn or side by side, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from untail.cli.output import print_json
from untail.config import Recipe, load_recipe, read_toml
from untail.errors import UserError
from untail.notice import say

if TYPE_CHECKING:
    from untail.flow.plan import Plan
    from untail.flow.profile import Profile


def plan(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe's name or a TOML file; that of --run, or the quickstart.")
    ] = None,
    devices: Annotated[int, typer.Option(min=1, help="Devices to plan for.")] = 1,
    profile: Annotated[Path | None, typer.Option(help="A profile made earlier, with --save.")] = None,
    run: Annotated[Path | None, typer.Option(help="A finished run's folder to take the times from.")] = None,
    save: Annotated[Path | None, typer.Option(help="Keep the profile that was made in this file.")] = None,
    overlap: Annotated[
        bool, typer.Option("--overlap", help="A step may begin before the last is learned from (one-off, async).")
    ] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change one field; repeatable.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Plan a recipe's step. Times come from a profile, a run, or else from this machine, which is measured first."""
    from untail.flow.planner import make_plan
    from untail.flow.profile import training_work
    from untail.resolve import resolved

    if profile is not None and run is not None:
        raise UserError("--profile and --run both say what the roles take; give one of them")
    if profile is not None and save is not None:
        raise UserError(
            f"--profile {profile} is kept already; leave out --save, or let --run or this machine be measured"
        )
    loaded = resolved(load_recipe(recipe, {}, set_ or [], ground=_recipe_of(run) if recipe is None else None))
    found = _profile(loaded, profile, run)
    if save is not None:
        found.save(save)
        say(f"the profile is in {save}")
    made = make_plan(training_work(found, loaded, devices, overlap))
    _print(made, found, f"{loaded.rollout.prompts} x {loaded.rollout.group} responses")
    if json:
        print_json({**made.as_json(), "devices": devices, "made_on": found.made_on})


def _recipe_of(run: Path | None) -> dict[str, Any] | None:
    path = None if run is None else run / "recipe.toml"
    return read_toml(path) if path is not None and path.is_file() else None


def _profile(recipe: Recipe, path: Path | None, run: Path | None) -> "Profile":
    from untail.flow.profile import Profile

    if path is not None:
        return Profile.load(path)
    if run is not None:
        from untail.flow.recorded import profile_of_run

        return profile_of_run(run)
    from untail.engine.models.load import load_model
    from untail.flow.measure import measure
    from untail.tasks.prepare import prepare

    say("measuring this machine: a few groups are rolled out and learned from")
    model = load_model(recipe.model, recipe.engine.device, recipe.engine.dtype)
    return measure(recipe, model, prepare(recipe, model.tokenizer, model.decoder.shape.context).prompts)


def _print(plan: "Plan", profile: "Profile", batch: str) -> None:
    say(f"{plan.mode}: {plan.predicted_step_s:.3g} s a step of {batch}, by times from {profile.made_on}")
    for line in plan.root.lines("  "):
        say(line)
    if plan.alternatives:
        table = Table("rejected", "s a step", "what", "why", box=None, pad_edge=False)
        for other in plan.alternatives:
            seconds = "-" if other.seconds is None else f"{other.seconds:.3g}"
            table.add_row(other.mode, seconds, other.what, other.why)
        Console(stderr=True).print(table)
    say(f"found in {plan.search_ms:.0f} ms")
