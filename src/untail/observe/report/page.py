"""The page: a template, a table of figures made here, and data that page.js draws.

Invariant: what comes from a run is either escaped or packed (gzip, base64), so that it cannot end a script or begin
one; the page's policy lets nothing run but our script and plotly's, and nothing be fetched.
"""

import base64
import gzip
import hashlib
import importlib.util
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

from untail import __version__
from untail.errors import UserError
from untail.observe.report.reading import Pictures, Run, tail_s
from untail.observe.report.table import figures_table, stops_table
from untail.observe.report.timeline import columns

POINTS = 400  # of a length curve: more than pixels can show
PERCENTILES = (50, 90, 99)


def make_page(runs: Sequence[Run], pictures: Pictures, notes: Sequence[str]) -> str:
    plotly, script = _plotly(), _file("page.js")
    policy = f"default-src 'none'; script-src {_hash(plotly)} {_hash(script)}; style-src 'unsafe-inline'; img-src data:"
    parts = {
        "policy": policy,
        "title": escape(f"untail: {', '.join(run.label for run in runs)}"),
        "lead": escape(_lead(runs)),
        "notes": "".join(f"<p>{escape(note)}</p>" for note in [*notes, *_left_out(runs, pictures)]),
        "figures": figures_table(runs),
        "stops": stops_table(runs),
        "version": escape(__version__),
        "style": _file("page.css"),
        "data": _packed(_overview(runs, pictures)),
        "pictures": "\n".join(
            f'<script type="application/octet-stream" id="picture-{step}-{number}">{_packed(columns(picture))}</script>'
            for step, by_run in pictures.items()
            for number, picture in by_run.items()
        ),
        "plotly": plotly,
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _file("page.html"))


def _plotly() -> str:
    if importlib.util.find_spec("plotly") is None:
        raise UserError("a report needs plotly, which is not installed; pip install 'untail[report]'")
    return (resources.files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8").strip()


def _file(name: str) -> str:
    return (resources.files("untail.observe.report") / name).read_text(encoding="utf-8").strip()


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _packed(data: Any) -> str:
    return base64.b64encode(gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 6, mtime=0)).decode()


def _lead(runs: Sequence[Run]) -> str:
    fewest, most = min(len(run.rows) for run in runs), max(len(run.rows) for run in runs)
    steps = f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"
    word = "step" if most == 1 else "steps"
    if len(runs) == 1:
        return f"{runs[0].label}: {steps} training {word}."
    return f"{len(runs)} runs side by side, {steps} training {word} each: {', '.join(run.label for run in runs)}."


def _left_out(runs: Sequence[Run], pictures: Pictures) -> list[str]:
    steps = {row["step"] for run in runs for row in run.rows}
    if len(pictures) == len(steps):
        return []
    return [
        f"Timelines and trees are drawn for {len(pictures):,} of {len(steps):,} steps, so that the file stays small: "
        "every so many, and those with the longest tails. Everything else counts all steps."
    ]


def _overview(runs: Sequence[Run], pictures: Pictures) -> dict[str, Any]:
    tails: dict[int, float] = dict.fromkeys(pictures, 0.0)
    for run in runs:
        for row in run.rows:
            if row["step"] in tails:
                tails[row["step"]] = max(tails[row["step"]], tail_s(row))
    return {
        "steps": [{"step": step, "tail_s": _short(tails[step])} for step in pictures],
        "start": max(tails, key=lambda step: tails[step]),
        "runs": [_run(run) for run in runs],
    }


def _run(run: Run) -> dict[str, Any]:
    phases = {name: [_short(row["phases"][name]) for row in run.rows] for name in run.rows[0]["phases"]}
    return {
        "label": run.label,
        "concurrency": run.concurrency,
        "engines": run.engines,
        "steps": [row["step"] for row in run.rows],
        "phases": phases,
        "tail_s": [_short(tail_s(row)) for row in run.rows],
        "lengths": survival(run.lengths),
    }


def survival(lengths: Counter[int]) -> dict[str, Any]:
    """For each length the share of responses that are at least as long, and some percentiles (nearest rank)."""
    total = sum(lengths.values())
    left, curve = total, []
    for length in sorted(lengths):
        curve.append((length, left / total))
        left -= lengths[length]
    every = max(1, math.ceil(len(curve) / POINTS))
    thinned = curve[:-1:every] + curve[-1:]
    ranked = sorted(lengths.elements())
    marks = [ranked[math.ceil(percent / 100 * total) - 1] for percent in PERCENTILES] if total else []
    shares = [next(share for length, share in curve if length == mark) for mark in marks]
    return {
        "n": total,
        "tokens": [length for length, _ in thinned],
        "share": [_short(share) for _, share in thinned],
        "percent": list(PERCENTILES) if total else [],
        "mark": marks,
        "mark_share": [_short(share) for share in shares],
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")
