"""Which tiling of the fused products is fastest in a whole step: one product after another, the others held.

python benchmarks/h200/sweep.py 135m 1 [gate_up down ...]     (model, rows, products). Variants are compiled by several
processes first.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context

import torch
from models import SHAPES, random_decoder
from step import capture, make_kv, make_state, milliseconds

from untail.engine.fused import FusedStep, Tile, Tiling, default_tiling
from untail.engine.models.shape import Shape

CONTEXT = 1024


def candidates(shape: Shape, rows: int) -> dict[str, list]:
    """name of a product -> its tiles worth trying."""

    def tiles(inner: int, outer: int, sizes: list[int], both: int, warps: list[int], most: int) -> list[Tile]:
        blocks = [64] if inner % 128 else [256, 512] if rows <= 4 else [128]
        out = []
        for p, block, warp, in_flight in product(sizes, blocks, warps, [32, 64, 128]):
            each = p * both * block // (32 * warp)  # weights of a block that a thread holds
            early = min(in_flight // max(each, 1), -(-inner // block))
            if inner % block == 0 and outer % p == 0 and 8 <= each <= most and early:
                out.append(Tile(p, block, warp, early))
        return list(dict.fromkeys(out))

    few = rows <= 4
    return {
        "attention": [(64, 4), (64, 2), (64, 8), (128, 4), (128, 8), (32, 4), (32, 2)],
        "out": tiles(shape.q_size, shape.hidden, [1, 2, 4, 8] if few else [16], 1, [1, 2, 4, 8], 64 if few else 16),
        "gate_up": tiles(
            shape.hidden, shape.intermediate, [2, 4] if few else [8, 16], 2, [1, 2] if few else [2, 4], 32
        ),
        "down": tiles(
            shape.intermediate, shape.hidden, [1, 2, 4] if few else [8, 16], 1, [1, 2, 4] if few else [2, 4], 32
        ),
        "head": [Tile(128, *rest) for rest in [(64, 8, 4), (64, 4, 2), (128, 8, 2), (128, 16, 2), (64, 16, 6)]],
        "qkv": tiles(shape.hidden, shape.head_dim // 2, [1, 2, 4] if few else [4, 8], 2, [1, 2] if few else [2, 4], 32),
    }


def compile_one(job: tuple[str, int, Tiling]) -> str | None:
    name, rows, tiling = job
    try:
        decoder = random_decoder(replace(SHAPES[name], layers=2))
        state, blocks = make_state(decoder, rows, 32)
        FusedStep(decoder, make_kv(decoder, blocks), state, rows, True, tiling)()
        torch.cuda.synchronize()
        return None
    except Exception as error:
        return f"{tiling}: {error}"[:200]


@torch.inference_mode()
def main(name: str, rows: int, products: list[str]) -> None:
    shape = SHAPES[name]
    best = default_tiling(shape)
    options = {
        product: tiles for product, tiles in candidates(shape, rows).items() if product in products or not products
    }
    jobs = [(name, rows, best._replace(**{field: tile})) for field, tiles in options.items() for tile in tiles]
    with ProcessPoolExecutor(14, get_context("spawn")) as pool:
        errors = [error for error in pool.map(compile_one, jobs) if error]
    print(f"{len(jobs)} variants, {len(errors)} do not compile", errors[:3], flush=True)
    decoder = random_decoder(shape)
    state, blocks = make_state(decoder, rows, CONTEXT)
    kv = make_kv(decoder, blocks)

    def measured(tiling: Tiling, mode: bool = True) -> float:
        try:
            return milliseconds(capture(FusedStep(decoder, kv, state, rows, mode, tiling)), state, CONTEXT, 40)
        except Exception:
            return float("inf")

    for mode in (False, True):
        print(f"default, chained {mode}: {measured(best, mode):.4f} ms", flush=True)
    fastest = measured(best)
    for field, tiles in options.items():
        times = {tile: measured(best._replace(**{field: tile})) for tile in tiles}
        ranked = sorted(times, key=times.__getitem__)
        print(json.dumps({"model": name, "rows": rows, "product": field,
                          "best": [(tile, round(times[tile], 4)) for tile in ranked[:9]],
                          "worst": round(times[ranked[-1]], 4)}), flush=True)  # fmt: skip
        if times[ranked[0]] < fastest:
            best, fastest = best._replace(**{field: ranked[0]}), times[ranked[0]]
    print(json.dumps({"model": name, "rows": rows, "ms": fastest, "tiling": best}), flush=True)
    for mode in (False, True):
        print(f"best, chained {mode}: {measured(best, mode):.4f} ms", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
