"""The tables of benchmarks/README.md, from the files in benchmarks/data.

python benchmarks/tables.py
"""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

DATA = Path(__file__).parent / "data"
SEEDS = (0, 1, 2)
Row = dict[str, Any]


def rows_of(name: str) -> list[Row]:
    return json.loads((DATA / f"{name}.json").read_text())["rows"]


def show(title: str, head: list[str], lines: list[list[str]]) -> None:
    print(f"\n## {title}\n")
    for line in (head, ["---"] * len(head), *lines):
        print("| " + " | ".join(line) + " |")


def percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def compared(name: str) -> None:
    """Means over seeds of what each recipe is against the first, and every seed's ratio."""
    seeds = [rows_of(f"{name}-seed{seed}") for seed in SEEDS]
    lines = []
    for number, first in enumerate(seeds[0]):
        rows = [rows[number] for rows in seeds]
        ratios = [row["ett"] / rows[0]["ett"] for row, rows in zip(rows, seeds, strict=True)]
        mean = lambda key, rows=rows: fmean(row[key] for row in rows)
        lines.append(
            [
                f"`{first['recipe']}`",
                f"{fmean(row['speedup'] for row in rows):.2f}",
                f"{mean('ett'):.0f}",
                f"{fmean(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})",
                percent(mean("slot_bubble")),
                percent(mean("tail_share")),
                percent(mean("zero_variance")),
                f"{mean('score_after'):.1%} ({', '.join(percent(row['score_after'], 1) for row in rows)})",
            ]
        )
    head = ["recipe", "speed", "ETT", "against `grpo` (each seed)", "slot bubble", "tail", "flat groups", "score after"]
    show(name, head, lines)


def plain(name: str, title: str) -> None:
    rows = [row for row in rows_of(name) if "error" not in row]
    lines = [
        [
            row["recipe"],
            f"{row['speedup']:.2f}",
            f"{row['ett']:.0f}",
            percent(row["slot_bubble"]),
            percent(row["tail_share"]),
            percent(row["bad_generation"], 1),
            percent(row["zero_variance"]),
            str(round(row["forks"])),
            percent(row["score_after"], 1),
            str(round(row["tokens"])),
            "-" if row["tokens_to_score"] is None else str(round(row["tokens_to_score"])),
        ]
        for row in rows
    ]
    head = [
        "row",
        "speed",
        "ETT",
        "bubble",
        "tail",
        "bad",
        "flat groups",
        "forks",
        "score",
        "tokens",
        "tokens to score",
    ]
    show(title, head, lines)


def simulated(name: str) -> None:
    lines = [
        [
            row["recipe"],
            f"{row['step_s']:.1f}",
            f"{row['speedup']:.2f}",
            percent(row["slot_bubble"]),
            percent(row["tail_share"]),
            percent(row["first_segment"]),
            f"{row['staleness']:.2f}",
        ]
        for row in rows_of(name)
    ]
    head = ["recipe", "s a step", "speed", "slot bubble", "tail", "end in first segment", "staleness"]
    show(name, head, lines)


def main() -> None:
    for name in ("compare", "grpo-untail"):
        if (DATA / f"{name}-seed{SEEDS[-1]}.json").exists():
            compared(name)
    for name, title in (
        ("ablate-es-grpo", "es-grpo, each part left out"),
        ("turns", "Turns with a slow tool"),
        ("easy", "Short responses only"),
        ("prune-fork", "Prune and fork"),
        ("vary-dygs", "dygs, share of the outliers that is pruned"),
        ("vary-adaseg", "adaseg, share that is pruned"),
        ("fork-or-not", "dygs, each part left out"),
        ("mastered", "Mastered tokens"),
    ):
        if (DATA / f"{name}.json").exists():
            plain(name, title)
    for path in sorted(DATA.glob("sim-*.json")):
        simulated(path.stem)


if __name__ == "__main__":
    main()
