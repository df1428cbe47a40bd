"""What a product of a few rows with a matrix costs, by torch and by ours: `python benchmarks/rows.py OUT.json`.

A step that verifies drafts multiplies as many rows as it has tokens. Matrices as SmolLM2's, more of them than a cache
holds; seconds are the least of ten rounds, in which all counts take their turn, torch and ours side by side.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from untail.engine.models import few_rows

ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 32)
MATRICES, OUT, IN = 60, 1536, 576
PRODUCTS = {"torch": F.linear, "ours": few_rows.linear}


def seconds_of(product, x: Tensor, weights: list[Tensor]) -> float:
    start = time.perf_counter()
    for weight in weights:
        product(x, weight)
    return time.perf_counter() - start


@torch.inference_mode()
def main(out: Path) -> None:
    if not few_rows.IS_ARM or few_rows._kernel() is None:
        sys.exit("there is no kernel of ours for this machine: nothing to compare")
    few_rows.MOST = max(ROWS)  # also where the engine leaves it to torch
    weights = [torch.randn(OUT, IN) for _ in range(MATRICES)]
    best = {(rows, name): float("inf") for rows in ROWS for name in PRODUCTS}
    for _ in range(10):
        for rows, name in best:
            seconds = seconds_of(PRODUCTS[name], torch.randn(rows, IN), weights)
            best[rows, name] = min(best[rows, name], seconds)
    found = [
        {"rows": rows, **{f"{name}_ms": 1e3 * best[rows, name] for name in PRODUCTS}}
        | {f"{name}_against_one": best[rows, name] / best[1, name] for name in PRODUCTS}
        for rows in ROWS
    ]
    out.write_text(json.dumps({"threads": torch.get_num_threads(), "rows": found}) + "\n")
    for row in found:
        print("{rows:3} rows   torch {torch_ms:6.1f} ms   ours {ours_ms:6.1f} ms".format(**row))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
