"""`untail tasks`: what a task holds, as a file."""

import json
from pathlib import Path
from typing import Annotated

import typer

from untail.config import override
from untail.errors import UserError
from untail.notice import say
from untail.tasks import Row, read_rows, table_of

app = typer.Typer(name="tasks", help="Work with tasks.", no_args_is_help=True)


@app.callback()
def tasks() -> None:
    """Keeps `export` a command of its own: typer would merge a single one into the group."""


@app.command()
def export(
    task: Annotated[str, typer.Argument(help="A task's name, a reasoning-gym dataset, or a .jsonl or .parquet file.")],
    out: Annotated[Path, typer.Option(help="The .jsonl file to write.")],
    settings: Annotated[list[str] | None, typer.Option("--set", help="A field of the task: size=100.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object as the last line.")] = False,
) -> None:
    """Write a task's rows to a .jsonl file that the task `file` reads back as the same prompts, data and rewards."""
    if out.suffix != ".jsonl":
        raise UserError(f"--out {out} is not a .jsonl file; name it {out.with_suffix('.jsonl')}")
    rows, dropped = read_rows(override(table_of(task), settings or []), where="task")
    _write(rows, out)
    for reason, count in dropped.items():
        say(f"{count} rows left out: {reason}")
    say(f"{len(rows)} rows in {out}")
    if as_json:
        print(json.dumps({"path": str(out), "n": len(rows)}))


def _write(rows: list[Row], out: Path) -> None:
    """All of it or nothing: a full disk leaves what was there before."""
    aside = out.with_name(out.name + ".part")
    try:
        with aside.open("w") as file:
            file.writelines(json.dumps(_record(row)) + "\n" for row in rows)
        aside.replace(out)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UserError(f"--out {out} cannot be written: {error.strerror}") from None


def _record(row: Row) -> dict[str, object]:
    return {"prompt": row.prompt, "task": row.task, "reward": row.reward, "data": row.data}
