"""How long a decode step takes inside a graph, and whether it computes what the reference does.

python benchmarks/h200/step.py --models 135m 1.5b --rows 1 2 4 8 16 32 64 128 256 --context 1024
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from models import SHAPES, random_decoder, read_limit

from untail.engine import fused
from untail.engine.attention.base import operand_dtype
from untail.engine.attention.sdpa import PagedSdpa, Span, make_scratch
from untail.engine.blocks import BLOCK, blocks_for
from untail.engine.decode_state import DecodeState
from untail.engine.fused import FusedStep, PlainStep, can_fuse
from untail.engine.models.decoder import Decoder

ROOM = 1024  # tokens that a timed run may move on
KERNELS = ("qkv", "attention", "residual", "gate_up", "head", "draw")  # of a fused step


def make_kv(decoder: Decoder, blocks: int) -> torch.Tensor:
    shape = decoder.shape
    size = (shape.layers, 2, blocks, BLOCK, shape.kv_heads, shape.head_dim)
    return torch.randn(size, device=decoder.embed.device, dtype=torch.float32).to(operand_dtype(decoder.embed.dtype))


def make_state(decoder: Decoder, rows: int, context: int, steps: int = 8) -> tuple[DecodeState, int]:
    """Rows at that context with room to go on; the state and how many KV blocks it needs."""
    device, per_row = decoder.embed.device, blocks_for(context + ROOM)
    state = DecodeState.make(rows, per_row, steps, device)
    state.tables.copy_(torch.randperm(rows * per_row, device=device).view(rows, per_row))
    state.ids.copy_(torch.randint(decoder.shape.vocab, (rows,), device=device))
    state.streams.copy_(torch.arange(rows, device=device))
    reset(state, context)
    return state, rows * per_row


def reset(state: DecodeState, context: int) -> None:
    state.positions.fill_(context)
    state.left.fill_(2**30)
    state.live.fill_(1)


def capture(step: Callable[[], None], count: int = 1) -> torch.cuda.CUDAGraph:
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            step()
    return graph


def milliseconds(graph: torch.cuda.CUDAGraph, state: DecodeState, context: int, replays: int = 60) -> float:
    """A replay's median of five runs."""
    times = []
    for _ in range(5):
        reset(state, context)
        graph.replay()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / replays)
    return sorted(times)[2]


def parity(decoder: Decoder, make, rows: int, context: int) -> dict[str, float]:
    """Relative error of the logits against the reference in the same precision, and in float32."""
    state, blocks = make_state(decoder, rows, context)
    state.positions.copy_(torch.randint(1, context, (rows,), device=state.positions.device))
    kv = make_kv(decoder, blocks)
    spans = [
        Span(1, position + 1, table[: blocks_for(position + 1)])
        for position, table in zip(state.positions.tolist(), state.tables.tolist(), strict=True)
    ]
    order = sorted(range(rows), key=lambda row: spans[row].context)
    spans = [spans[row] for row in order]
    slots = torch.tensor([s.blocks[-1] * BLOCK + (s.context - 1) % BLOCK for s in spans], device=kv.device)
    group = decoder.shape.heads // decoder.shape.kv_heads
    ids, positions = state.ids[order].clone(), state.positions[order].clone()

    def reference(decoder: Decoder, kv: torch.Tensor) -> torch.Tensor:
        attention = PagedSdpa(kv, make_scratch(kv), slots, spans, group)
        return decoder.logits(decoder(ids, positions, attention)).float()

    same = reference(decoder, kv.clone())
    exact_decoder = Decoder(decoder.shape, kv.device, torch.float32).requires_grad_(False)
    for mine, theirs in zip(exact_decoder.parameters(), decoder.parameters(), strict=True):
        mine.copy_(theirs)
    exact = reference(exact_decoder, kv.float())
    step = make(decoder, kv, state, rows)
    step.logits.fill_(float("nan"))
    step()
    ours = step.logits.float()[order]
    error = lambda a, b: ((a - b).norm() / b.norm()).item()
    agree = (ours.argmax(-1) == exact.argmax(-1)).float().mean().item()
    return {"ours_vs_float32": error(ours, exact), "torch_vs_float32": error(same, exact),
            "ours_vs_torch": error(ours, same), "argmax_agreement": agree}  # fmt: skip


def steps_for(decoder: Decoder, rows: int, chained: bool):
    """name -> maker of a step."""
    makers = {}
    if can_fuse(decoder.shape) and rows in (1, 2, 4):
        makers["fused"] = lambda d, kv, state, rows: FusedStep(d, kv, state, rows, chained)
    if rows > 1:
        makers["plain"] = lambda d, kv, state, rows: PlainStep(d, kv, state, rows, chained)
    return makers


@contextmanager
def without(kernel: str) -> Iterator[None]:
    """A fused step that leaves it out: the rest overlaps as before, so that what is missing is what it cost."""
    nothing = lambda *given, **more: None
    name = "decode_attention" if kernel == "attention" else f"{kernel}_kernel"
    real = getattr(fused, name)
    setattr(fused, name, nothing if kernel == "attention" else defaultdict(lambda: nothing))
    try:
        yield
    finally:
        setattr(fused, name, real)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", default=["135m", "1.5b"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--parity", action="store_true")
    parser.add_argument("--unchained", action="store_true")
    parser.add_argument("--without", nargs="*", default=[], choices=KERNELS, help="what each costs in a fused step")
    args = parser.parse_args()
    with torch.inference_mode():
        for name in args.models:
            decoder = random_decoder(SHAPES[name])
            for rows in args.rows:
                for kind, make in steps_for(decoder, rows, not args.unchained).items():
                    row = {"model": name, "rows": rows, "kind": kind, "context": args.context}
                    try:
                        if args.parity:
                            row |= parity(decoder, make, rows, args.context)
                        state, blocks = make_state(decoder, rows, args.context)
                        kv = make_kv(decoder, blocks)
                        ms = milliseconds(capture(make(decoder, kv, state, rows)), state, args.context)
                        row |= {"ms": ms, "tok_s": rows * 1e3 / ms, "limit_share": 1e3 / ms / read_limit(decoder)}
                        for kernel in args.without if kind == "fused" else []:
                            with without(kernel):
                                left = milliseconds(capture(make(decoder, kv, state, rows)), state, args.context)
                            row[f"{kernel}_us"] = 1e3 * (ms - left)
                    except Exception as error:
                        row["error"] = f"{type(error).__name__}: {error}"[:300]
                    print(json.dumps(row), flush=True)
            del decoder
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
