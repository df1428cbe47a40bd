"""The program's commands, one module per verb, gathered here."""

import os

import typer

# Threads that spin while they wait make torch ten times slower as soon as anything else wants a core (our own scoring
# processes, say). It must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from untail import __version__
from untail.cli import bench, compare, doctor, evaluate, generate, plan, recipes, report, simulate, tasks, train

app = typer.Typer(
    name="untail",
    help="Reinforcement-learning post-training for reasoning LLMs, without the long tail.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("train")(train.train)
app.command("compare")(compare.compare)
app.command("eval")(evaluate.evaluate)
app.command("generate")(generate.generate)
app.command("plan")(plan.plan)
app.command("simulate")(simulate.simulate)
app.command("report")(report.report)
app.command("doctor")(doctor.doctor)
app.add_typer(bench.app, name="bench")
app.add_typer(recipes.app, name="recipes")
app.add_typer(tasks.app, name="tasks")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"untail {__version__}")
        raise typer.Exit


@app.callback()
def _root(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print it.")) -> None:
    pass
