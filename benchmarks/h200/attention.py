"""How long the attention of a decode step takes, by how it is cut: `python benchmarks/h200/attention.py MODEL ROWS ...`

Contexts like those of training: most of the sequences are short, one or two in a hundred are at their limit (`mixed`);
or all the same (`even`). A layer's own keys and values, eight layers one after another inside a graph.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product

import torch
from models import SHAPES

from untail.engine.attention.triton_paged import Scratch, paged_kernel, rows_for, scale_log2
from untail.engine.blocks import BLOCK
from untail.engine.models.shape import Shape

CUTS = [cut for cut in product((1, 2, 4, 8), (64, 128), (2, 4), (2, 3)) if cut[1:] != (128, 2, 3)]
"""Splits, keys at once, warps, stages."""
LONGEST, LAYERS, REPLAYS = 1152, 8, 20


def contexts(rows: int, kind: str) -> torch.Tensor:
    if kind == "even":
        return torch.full((rows,), 512)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.empty(rows).log_normal_(5.1, 0.9, generator=generator)
    return lengths.clamp(60, LONGEST - 1).long()


def launch(shape: Shape, rows: int, cut: tuple[int, int, int, int], inputs, layer: int) -> None:
    splits, keys_at_once, warps, stages = cut
    q, kv, out, tables, positions, scratch = inputs
    group = shape.heads // shape.kv_heads
    paged_kernel[rows, shape.kv_heads, splits](
        q, kv[layer, 0], kv[layer, 1], out, tables, positions, positions, positions, positions, *scratch,
        tables.stride(0), scale_log2(shape.head_dim), 0,
        GROUP=group, KV_HEADS=shape.kv_heads, HEAD=shape.head_dim, PAGE=BLOCK, ROWS=rows_for(1, group),
        KEYS=keys_at_once, SPLITS=splits, WIDTH=1, STAGES=stages, EARLY=False, TWICE=False, CHAINED=False,
        num_warps=warps,
    )  # fmt: skip


def make_inputs(shape: Shape, rows: int, kind: str):
    per_row, group = LONGEST // BLOCK, shape.heads // shape.kv_heads
    kv = torch.randn(LAYERS, 2, rows * per_row, BLOCK, shape.kv_heads, shape.head_dim, device="cuda").half()
    q = torch.randn(rows, shape.q_size, device="cuda").half()
    tables = torch.randperm(rows * per_row, device="cuda").view(rows, per_row).int()
    scratch = Scratch.make(rows, shape.kv_heads, 16, rows_for(1, group), shape.head_dim, q.device)
    return q, kv, torch.empty_like(q), tables, contexts(rows, kind).cuda(), scratch


def microseconds(shape: Shape, rows: int, cut, inputs) -> float:
    graph = torch.cuda.CUDAGraph()
    launch(shape, rows, cut, inputs, 0)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for layer in range(LAYERS):
            launch(shape, rows, cut, inputs, layer)
    times = []
    for _ in range(3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / REPLAYS / LAYERS)
    return sorted(times)[1]


def compile_one(name: str, cut) -> None:
    """In a process of its own: what is compiled is found on disk."""
    launch(SHAPES[name], 2, cut, make_inputs(SHAPES[name], 2, "even"), 0)


def main(name: str, rows: list[int]) -> None:
    shape = SHAPES[name]
    with ProcessPoolExecutor(8, mp_context=torch.multiprocessing.get_context("spawn")) as pool:
        list(pool.map(compile_one, [name] * len(CUTS), CUTS))
    for count, kind in product(rows, ("mixed", "even")):
        inputs = make_inputs(shape, count, kind)
        read = int(inputs[4].sum() + count) * 2 * shape.kv_size * 2
        found = {",".join(map(str, cut)): round(microseconds(shape, count, cut, inputs), 2) for cut in CUTS}
        best = dict(sorted(found.items(), key=lambda pair: pair[1]))
        row = {"model": name, "rows": count, "contexts": kind, "limit_us": round(read / 4.2e6, 2), "us": best}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], [int(rows) for rows in sys.argv[2:]])
