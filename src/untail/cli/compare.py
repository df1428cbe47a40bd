"""`untail compare`: recipes side by side, from the same start, on the same prompts, with the same slots and seeds."""

import asyncio
import signal
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from untail.cli.output import print_json
from untail.compare.rows import Row, make_rows
from untail.compare.variants import Variant, ablated, loader, named, varied
from untail.errors import UserError
from untail.notice import say
from untail.resolve import resolved

WIDE = 200  # columns: the table is about 80, and a long name must not squeeze the figures
UNEQUAL = 0.1  # relative difference in trained trajectories from which on a speedup needs a word


class Ablate(StrEnum):
    out = "out"
    only = "only"


def compare(
    recipes: Annotated[list[str], typer.Argument(metavar="RECIPE...", help="Recipes' names or TOML files.")],
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps of each.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from the recipe's own on.")] = 1,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change one field of all; repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A folder, a .gguf file, a hub name, tiny or smollm2.")] = None,
    task: Annotated[
        str | None, typer.Option(help="A task, a .jsonl or .parquet file, or a reasoning-gym dataset.")
    ] = None,
    ablate: Annotated[
        Ablate | None, typer.Option(help="One recipe: each of its mechanisms left out in turn, or kept alone.")
    ] = None,
    vary: Annotated[str | None, typer.Option(metavar="KEY=A,B", help="One recipe: a field swept.")] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for the runs; runs/compare-TIME if left out.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train recipes in turn, a step each, and print their figures side by side."""
    changes: dict[str, Any] = {k: v for k, v in (("model", model), ("steps", steps)) if v is not None}
    if task is not None:
        from untail.tasks.names import table_of

        changes["task"] = table_of(task)
    variants = _variants(recipes, ablate, vary, changes, set_ or [])
    for variant in variants:
        if not variant.may_fail:
            resolved(variant.recipe)
    folder = out or Path("runs") / f"compare-{time.strftime('%Y%m%d-%H%M%S')}"
    from untail.compare.train import train_all  # not before the input is known to be good: torch takes its time
    from untail.run import Run

    Run.refuse_if_taken(folder)
    first = variants[0].recipe.seed
    signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on there is something to close
    try:
        results = asyncio.run(train_all(variants, range(first, first + seeds), folder, say))
    except KeyboardInterrupt:
        if not folder.exists():
            raise
        say(f"stopped; each run in {folder} can be continued with: untail train --resume --out {folder}/RUN")
        sys.exit(130)
    rows, target = make_rows(results)
    _print_table(rows, target, folder)
    if json:
        print_json({"rows": rows, "target_score": target, "seeds": seeds, "run_dir": str(folder)})


def _variants(
    recipes: list[str], ablate: Ablate | None, vary: str | None, changes: dict[str, Any], assignments: list[str]
) -> list[Variant]:
    load = loader(changes, assignments)
    if ablate is None and vary is None:
        return named(recipes, load)
    if ablate is not None and vary is not None:
        raise UserError("--ablate and --vary ask for different rows; give one of them")
    option = "--vary" if ablate is None else "--ablate"
    if len(recipes) > 1:
        raise UserError(f"{option} takes one recipe, but {len(recipes)} are named: {', '.join(recipes)}")
    return varied(recipes[0], vary or "", load) if ablate is None else ablated(recipes[0], ablate.value, load)


def _print_table(rows: list[Row], target: float | None, folder: Path) -> None:
    headings = ("recipe", "speedup", "step s", "ETT", "bubble", "tail", "bad", "len", "score", "to score s")
    table = Table(*headings, box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["recipe"], *(["out"] if "error" in row else _cells(row)))
    Console(stderr=True, width=WIDE).print(table)
    for note in _notes(rows):
        say(note)
    reached = "" if target is None else f"to score: seconds of training to a held-out score of {target:.1%}; "
    say(f"{reached}runs: {folder}")


def _notes(rows: list[Row]) -> list[str]:
    """Who is out and why, and whose speedup is not one on equal work."""
    notes = [f"{row['recipe']} is out: {row['error']}" for row in rows if "error" in row]
    first = rows[0]
    for row in rows if "error" not in first else []:
        if "error" not in row and abs(row["trajectories"] / first["trajectories"] - 1) > UNEQUAL:
            notes.append(
                f"{row['recipe']} trained {row['trajectories']:.0f} trajectories, {first['recipe']} "
                f"{first['trajectories']:.0f}: compare their ETT rather than their speedup"
            )
    return notes


def _cells(row: Row) -> list[str]:
    low, high = row["ci95_after"]
    seconds = row["time_to_score_s"]
    return [
        "-" if row["speedup"] is None else f"{row['speedup']:.2f}x",
        f"{row['makespan_p50']:.2f}",
        f"{row['ett']:.0f}",
        *(f"{row[name]:.0%}" for name in ("slot_bubble", "tail_share", "bad_generation")),
        f"{row['mean_len']:.0f}",
        f"{100 * row['score_after']:.1f} ± {50 * (high - low):.1f} %",
        "never" if seconds is None else f"{seconds:.1f}",
    ]
