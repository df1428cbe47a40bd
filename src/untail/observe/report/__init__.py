"""One self-contained HTML file about one or several runs: pictures of their events, and the figures made from them.

Invariant: everything on the page comes from the runs' events.jsonl; the figures are those of observe/figures.py, by the
same code. What a model or a user wrote is shown as text and never executed. The page asks no network for anything.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from untail.errors import UserError
from untail.observe.report.page import make_page
from untail.observe.report.reading import draw, read
from untail.observe.report.runs import find_runs

NAME = "report.html"
NAME_OF_SEVERAL = "untail-report.html"


def write_report(given: Sequence[Path], out: Path | None = None) -> Path:
    """Without `out`: report.html in the folder that is given, be it a run's or a comparison's; of several folders,
    untail-report.html where we are."""
    runs, notes = read(find_runs(given))
    path = out or (given[0] / NAME if len(given) == 1 else Path(NAME_OF_SEVERAL))
    page = make_page(runs, draw(runs), notes).encode("utf-8", "replace")
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(page)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise UserError(
            f"cannot write the report to {path}: {error.strerror}; choose another place with --out"
        ) from None
    return path
