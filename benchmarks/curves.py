"""Step by step, what some runs' policies were like: `python benchmarks/curves.py OUT.json RUN...`.

Writes, for each run folder, the columns of its metrics that a plot needs, and the mean of the last ten steps of each.
The entropy is that of all responses that ended in a step, not that of the loss: a mask takes sure tokens out of the
loss, so that what is left there has more of it whatever the policy is like.
"""

import json
import sys
from pathlib import Path
from statistics import fmean

LAST = 10


def curves_of(folder: Path) -> dict:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    columns = {
        "entropy": [row["entropy"] for row in rows],
        "pass1": [row["pass1"] for row in rows],
        "masked_tokens": [row["learn"]["masked_tokens"] for row in rows],
    }
    means = {name: fmean(known) for name, values in columns.items() if (known := present(values[-LAST:]))}
    return {"run": folder.name, "steps": [row["step"] for row in rows], **columns, f"mean_of_last_{LAST}": means}


def present(values: list) -> list[float]:
    return [value for value in values if value is not None]


def main(out: Path, folders: list[Path]) -> None:
    curves = [curves_of(folder) for folder in folders]
    out.write_text(json.dumps({"curves": curves}) + "\n")
    for curve in curves:
        print(curve["run"], {name: round(value, 4) for name, value in curve[f"mean_of_last_{LAST}"].items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
