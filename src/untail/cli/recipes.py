"""`untail recipes`: what ships, and what each is made of."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from untail.cli.output import print_json
from untail.config import DraftConfig, LearnConfig, Recipe, dump_toml, load_recipe, recipe_names

app = typer.Typer(help="List recipes; print one resolved.", invoke_without_command=True)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.callback()
def recipes(context: typer.Context, json: Json = False) -> None:
    """List the recipes that ship with untail: what each reproduces, and the sections of docs/mechanisms.md."""
    if context.invoked_subcommand is not None:
        return
    listed = [_entry(name, load_recipe(name, {}, [])) for name in recipe_names()]
    if json:
        print_json({"recipes": listed})
        return
    table = Table("recipe", "what it reproduces", "sections", box=None)
    for entry in listed:
        table.add_row(entry["name"], entry["reproduces"], ", ".join(entry["sections"]))
    Console().print(table)


@app.command()
def show(name: Annotated[str, typer.Argument(help="A recipe's name or a TOML file.")], json: Json = False) -> None:
    """Print a recipe, fully resolved, as TOML."""
    from untail.resolve import resolved

    recipe = resolved(load_recipe(name, {}, []))
    entry = _entry(name, recipe)
    if json:
        print_json({"recipes": [entry], "resolved": recipe.model_dump(mode="json")})
    else:
        print(dump_toml(recipe), end="")


def _entry(name: str, recipe: Recipe) -> dict[str, Any]:
    used = [mechanism for mechanism, table in recipe.mechanisms.items() if table is not False]
    sections = dict.fromkeys(map(_section, used)) or ["6.1"]  # with nothing else, a step waits for all
    return {
        "name": name,
        "reproduces": recipe.reproduces,
        "sections": [*sections, *_sections_of_drafting(recipe.draft), *_sections_of_learning(recipe.learn)],
    }


def _sections_of_drafting(draft: DraftConfig) -> list[str]:
    from untail.draft.build import CHOOSERS, DRAFTERS

    drafters = [DRAFTERS.get(name).section for name, table in draft.drafters.items() if table is not False]
    chooser = CHOOSERS.get(draft.choose["name"]).section
    return [*drafters, *([chooser] if drafters and chooser else [])]


def _sections_of_learning(learn: LearnConfig) -> list[str]:
    """What a recipe says about learning; where it leaves a rule to the default, that is not listed."""
    from untail.learn.mask import MASKS

    credit, masks = learn.credit["name"], [name for name, table in learn.masks.items() if table is not False]
    return [
        f"8.1 {str(learn.advantage['name']).upper().replace('_', ' ')}",
        *([f"8.2 {learn.importance['name']}"] if learn.importance else []),
        *dict.fromkeys(MASKS.get(name).section for name in masks),
        *([f"8.4 {learn.prune.how}"] if learn.prune else []),
        *(["8.7"] if learn.bridge else []),
        *([f"5 credit {credit}"] if credit != "once" else []),
    ]


def _section(mechanism: str) -> str:
    """Where a section describes several, as 4 does all watchers, which of them: "4 loop"."""
    from untail.rollout.mechanisms import MECHANISMS  # the module that registers all of them

    section = MECHANISMS.get(mechanism).sections
    return section if "." in section else f"{section} {mechanism}"
