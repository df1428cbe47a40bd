"""The tasks of the training on one H200, as a file: `python benchmarks/h200/tasks.py OUT.jsonl`.

Four of reasoning-gym's with numbers as answers, of a size that SmolLM2-135M-Instruct gets right now and then. A GPU
host may be without reasoning-gym, so the rows are made elsewhere, and scored by the last number of the answer.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

SYSTEM = "Think step by step. Give the final answer as <answer>number</answer>."
DATASETS = {
    "letter_counting": "{min_words = 2, max_words = 5}",
    "products": "{max_digits = 2}",
    "gcd": "{max_value = 100}",
    "lcm": "{max_value = 20}",
}
ROWS = 2300  # of each; many are drawn twice and left out


def export(dataset: str, params: str, folder: Path) -> list[str]:
    path = folder / f"{dataset}.jsonl"
    settings = {"size": ROWS, "reward": '{name = "numeric"}', "params": params, "system": json.dumps(SYSTEM)}
    changes = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "untail.cli.main", "tasks", "export", dataset, "--out", str(path), *changes]
    subprocess.run(command, check=True)
    return path.read_text().splitlines(keepends=True)


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for dataset, params in DATASETS.items() for row in export(dataset, params, Path(folder))]
    random.Random(0).shuffle(rows)
    out.write_text("".join(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
