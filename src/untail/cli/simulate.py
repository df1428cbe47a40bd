"""`untail simulate`: recipes in virtual time, on as many devices as you like."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from untail.backends.laws import LAWS
from untail.cli.output import print_json
from untail.compare.variants import distinct
from untail.config import Recipe, load_recipe
from untail.errors import UserError
from untail.notice import say
from untail.resolve import resolved

Mode = Literal["collocated", "disaggregated", "hybrid"]
Schedule = Literal["sync", "one-off", "async"]
# Watchers look seldom: virtual time is for schedules, and simulated text has no loops.
SIMULATED = {"group": 8, "max_tokens": 32768, "watch_every": 1024}
GROUPS_PER_DEVICE = 8
MOST_GROUPS = 1024  # of a step: with more devices each has fewer, as a batch does not grow with the cluster


def simulate(
    devices: Annotated[int, typer.Option(min=1, help="Engines, one on each device.")] = 8,
    recipes: Annotated[str, typer.Option(help="Comma-separated names or TOML files.")] = "grpo,ulorl,es-grpo,untail",
    law: Annotated[str | None, typer.Option(help=f"How long responses are: {', '.join(LAWS)}.")] = None,
    trace: Annotated[str | None, typer.Option(help="A run's folder or a .jsonl file instead of a law.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are measured, after the warm-up.")] = 20,
    warmup: Annotated[int, typer.Option(min=0, help="Steps before them.")] = 6,
    update_s: Annotated[float, typer.Option(min=0, help="Seconds that an update takes.")] = 0.0,
    learn_tok_s: Annotated[
        float | None, typer.Option(min=1, help="Tokens that one device learns from in a second; unset: no limit.")
    ] = None,
    handover_s: Annotated[
        float, typer.Option(min=0, help="Seconds to hand over the devices, or new weights to engines apart.")
    ] = 0.0,
    mode: Annotated[Mode, typer.Option(help="Who has which devices.")] = "collocated",
    schedule: Annotated[Schedule, typer.Option(help="How far rollout may run ahead of learning.")] = "sync",
    staleness: Annotated[
        int | None, typer.Option(min=0, help="Versions that a trained token may be old; the recipe's if left out.")
    ] = None,
    learners: Annotated[
        int | None, typer.Option(min=1, help="Devices of the learner, unless collocated; a quarter if left out.")
    ] = None,
    imitates: Annotated[str, typer.Option(help="Whose segment boundaries are paid for: native or vllm.")] = "native",
    seed: Annotated[int, typer.Option(help="Of the law and of the rollout.")] = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change one field of all; repeatable.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The real controller and mechanisms against simulated engines; figures are those of the steady state."""
    from untail.backends.sim import SimConfig
    from untail.config import parse
    from untail.simulate.run import simulate
    from untail.simulate.scene import Scene

    if law is not None and trace is not None:
        raise UserError("--law and --trace both say how long responses are; give one of them")
    if trace is not None and not Path(trace).exists():
        raise UserError(f"--trace {trace}: there is no such run folder or file")
    names = [name for name in recipes.split(",") if name]
    if not names:
        raise UserError(f"--recipes {recipes!r} names no recipe; give one or more, comma-separated")
    loaded = [_load(name, devices, set_ or []) for name in names]
    scene = Scene(
        devices,
        trace or law or "lognormal",
        steps,
        warmup,
        update_s=update_s,
        learn_tok_s=math.inf if learn_tok_s is None else learn_tok_s,
        handover_s=handover_s,
        mode=mode,
        schedule=schedule,
        staleness=staleness,
        learners=learners,
        seed=seed,
    )
    slots = -(-loaded[0].rollout.prompts * loaded[0].rollout.group // scene.engines)
    engine = parse(SimConfig, {"slots": slots, "imitates": imitates}, "simulate")
    scene = replace(scene, engine=engine)
    began, rows = time.perf_counter(), []
    for name, recipe in zip(distinct(names), loaded, strict=True):
        rows.append(simulate(name, recipe, scene))
        rows[-1]["speedup"] = rows[0]["step_s"] / rows[-1]["step_s"]
        say(f"{name}: {rows[-1]['step_s']:.1f} s a step")
    wall = time.perf_counter() - began
    _print_table(rows)
    if json:
        print_json({"rows": rows, "wall_s": wall, "devices": devices, "slots": slots * scene.engines})


def _load(name: str, devices: int, assignments: list[str]) -> Recipe:
    """In the simulator a step is 8 x 8 trajectories a device of up to 32k tokens, and at most 1024 x 8 in all, unless
    the recipe or --set says otherwise."""
    prompts = min(MOST_GROUPS, GROUPS_PER_DEVICE * devices)
    ground = load_recipe(None, {"rollout": {"prompts": prompts, **SIMULATED}}, [])
    return resolved(load_recipe(name, {}, assignments, ground.model_dump(mode="json", exclude_none=True)))


def _print_table(rows: list[dict[str, Any]]) -> None:
    table = Table("recipe", "speedup", "step s", "bubble", "tail", "tok/s", "staleness", box=None, pad_edge=False)
    for row in rows:
        figures = (row["speedup"], row["step_s"], row["slot_bubble"], row["tail_share"])
        cells = (f"{figures[0]:.2f}", f"{figures[1]:.1f}", f"{figures[2]:.1%}", f"{figures[3]:.1%}")
        table.add_row(row["recipe"], *cells, f"{row['tok_s']:.0f}", f"{row['staleness']:.2f}")
    Console(stderr=True).print(table)
