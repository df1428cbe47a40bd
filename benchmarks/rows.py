"""What a product of a few rows with a matrix costs against that of one row: `python benchmarks/rows.py OUT.json`.

A step that verifies drafts multiplies as many rows as it has tokens. Matrices as SmolLM2's, more of them than a cache
holds; seconds are the least of ten rounds, in which all counts take their turn.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

ROWS = (1, 2, 3, 4, 5, 9, 16)
MATRICES, OUT, IN = 60, 1536, 576


@torch.inference_mode()
def main(out: Path) -> None:
    weights = [torch.randn(OUT, IN) for _ in range(MATRICES)]
    best = dict.fromkeys(ROWS, float("inf"))
    for _ in range(10):
        for rows in ROWS:
            x = torch.randn(rows, IN)
            start = time.perf_counter()
            for weight in weights:
                F.linear(x, weight)
            best[rows] = min(best[rows], time.perf_counter() - start)
    found = [{"rows": rows, "ms": 1e3 * s, "against_one": s / best[1]} for rows, s in best.items()]
    out.write_text(json.dumps({"threads": torch.get_num_threads(), "rows": found}) + "\n")
    print(*found, sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
