"""Ours and vLLM on the same work, interleaved: for every workload one run of each, in turn, all in one go.

python benchmarks/h200/compare.py --models 135m 1.5b 7b --repeats 2 --out benchmarks/h200/data/compare.jsonl

Every run goes to the file as a JSON line; the table of ratios is printed after each repeat. All engines are loaded and
warm before the first run, which takes 120 GiB for the three models. Without vLLM (--only ours) our side alone is
measured.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from models import SHAPES, read_limit_of

HERE = Path(__file__).parent
WORKLOADS = ("longtail+logprobs", "group", "single", "uniform")
Row = dict[str, Any]
BARS = {"135m": (2.0, 2.0, 2.5, 1.2), "1.5b": (1.6, 1.6, 2.0, 1.0), "7b": (1.0, 1.0, 1.1, 0.95)}


class Process:
    """A side in a process of its own; it is not read from until it is asked."""

    def __init__(self, side: str, model: str):
        self.side, self.model = side, model
        command = [sys.executable, str(HERE / "sides.py"), side, model]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answer(self) -> dict[str, float]:
        """The next line of JSON; libraries print other lines too."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{self.side} {self.model} ended with {self._process.wait()}")

    def run(self, workload: str) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(workload + "\n")
        self._process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def measure(model: str, sides: list[Process], workloads: list[str], repeat: int, out: Path) -> list[Row]:
    rows = []
    for workload in workloads:
        for side in sides:
            row = {"model": model, "workload": workload, "side": side.side, "repeat": repeat, **side.run(workload)}
            rows.append(row)
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
    return rows


def table(rows: list[Row]) -> str:
    """tok/s of both, the medians of the repeats, and their ratio beside its bar."""
    lines = [
        "| model | workload | ours | vLLM | ratio | bar | share of the read limit |",
        "|---|---|---|---|---|---|---|",
    ]
    speeds: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        of_work = speeds.setdefault((row["model"], row["workload"]), {})
        of_work.setdefault(row["side"], []).append(row["tok_s"])
    for (model, workload), by_side in speeds.items():
        speed = {side: statistics.median(found) for side, found in by_side.items()}
        ratio = f"{speed['ours'] / speed['vllm']:.2f}" if "vllm" in speed else ""
        vllm = f"{speed['vllm']:,.0f}" if "vllm" in speed else ""
        bar = BARS[model][WORKLOADS.index(workload)] if workload in WORKLOADS else ""
        share = f"{speed['ours'] / read_limit_of(SHAPES[model]):.0%}" if workload == "single" else ""
        lines.append(f"| {model} | {workload} | {speed['ours']:,.0f} | {vllm} | {ratio} | {bar} | {share} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", choices=["ours"])
    parser.add_argument("--out", type=Path, default=HERE / "data" / "compare.jsonl")
    args = parser.parse_args()
    names = ["ours"] if args.only else ["ours", "vllm"]
    processes = {model: [Process(side, model) for side in names] for model in args.models}
    for process in [one for sides in processes.values() for one in sides]:
        process.answer()
        print(f"{process.side} {process.model} is ready", flush=True)
    rows: list[Row] = []
    for repeat in range(args.repeats):
        for model, sides in processes.items():
            rows += measure(model, sides, args.workloads, repeat, args.out)
        print(table(rows), flush=True)
    for process in [one for sides in processes.values() for one in sides]:
        process.close()


if __name__ == "__main__":
    main()
