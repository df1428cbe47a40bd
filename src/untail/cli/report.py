"""`untail report`: one self-contained HTML file that shows where a run's time went."""

from pathlib import Path
from typing import Annotated

import typer

from untail.cli.output import print_json
from untail.notice import say


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs; a comparison's means all runs in it.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The file; report.html in RUN if left out, untail-report.html here for several."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Draw every slot's timeline, the lengths, the phases and the fork trees of one run or several side by side."""
    from untail.observe.report import write_report

    path = write_report(runs, out)
    say(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
    if json:
        print_json({"path": str(path)})
