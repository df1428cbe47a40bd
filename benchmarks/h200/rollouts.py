"""Whole rollouts through the decode graphs on the work that a peer engine gets: prompts filled in, lengths forced.

python benchmarks/h200/rollouts.py 135m [longtail+logprobs group uniform single]

What is measured is the device side: fill-in, graphs, sampling with every figure, results to the host, rows that
finish leaving the batch. The scheduler is not: every sequence gets its slot and its blocks at the start.
"""

import json
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from models import SHAPES, random_decoder, read_limit

from untail.engine.attention.sdpa import Span
from untail.engine.attention.triton_paged import TritonPaged
from untail.engine.blocks import BLOCK, blocks_for
from untail.engine.graphs import BUCKETS, DecodeGraphs, Row
from untail.engine.models.decoder import Decoder

STEPS = 8
FILL_IN = 16384  # tokens filled in at once


def workloads(vocab: int) -> dict[str, tuple[list[list[int]], list[int]]]:
    """name -> (prompts, response lengths): the same draws, in the same order, as the peer's program makes."""
    random = np.random.default_rng(0)
    prompts = lambda count: [random.integers(0, vocab, 128).tolist() for _ in range(count)]
    tail = np.minimum(random.lognormal(5.5, 0.9, 256).astype(int) + 16, 2048).tolist()
    group = np.minimum(random.lognormal(6.0, 1.0, 512).astype(int) + 16, 6144).tolist()
    return {
        "warm": (prompts(32), [64] * 32),
        "longtail": (prompts(256), tail),
        "longtail+logprobs": (prompts(256), tail),
        "uniform": (prompts(256), [512] * 256),
        "group": ([prompt for prompt in prompts(64) for _ in range(8)], group),
        "single": (prompts(1), [1024]),
    }


@dataclass
class Rollout:
    prompt: list[int]
    length: int
    stream: int
    blocks: list[int] = field(default_factory=list)
    tokens: list[np.ndarray] = field(default_factory=list)
    figures: list[np.ndarray] = field(default_factory=list)
    made: int = 0
    newest: int = -1

    def row(self) -> Row:
        token = self.newest if self.made else self.prompt[-1]
        return Row(token, len(self.prompt) - 1 + self.made, self.stream, self.length - self.made, self.blocks)


def place(prompts: list[list[int]], lengths: list[int]) -> tuple[list[Rollout], list[Rollout], list[tuple[int, int]]]:
    """Every rollout with its blocks; those whose prompt must be filled in; blocks to copy for the others."""
    rollouts = [Rollout(prompt, length, n) for n, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))]
    free, first, copies = iter(range(10**9)), {}, []
    for rollout in rollouts:
        wanted = blocks_for(len(rollout.prompt) + rollout.length)
        owner = first.setdefault(tuple(rollout.prompt), rollout)
        if owner is not rollout:
            shared = (len(rollout.prompt) - 1) // BLOCK
            rollout.blocks = owner.blocks[:shared]
            rollout.blocks = rollout.blocks + [next(free) for _ in range(wanted - shared)]
            copies.append((owner.blocks[shared], rollout.blocks[shared]))
        else:
            rollout.blocks = [next(free) for _ in range(wanted)]
    return rollouts, list(first.values()), copies


@torch.inference_mode()
def fill_in(decoder: Decoder, kv: torch.Tensor, rollouts: list[Rollout], copies: list[tuple[int, int]]) -> None:
    """Everything but a prompt's last token, which is the first that decoding computes."""
    at_once = max(1, FILL_IN // 128)
    for begin in range(0, len(rollouts), at_once):
        part = rollouts[begin : begin + at_once]
        sizes = [len(rollout.prompt) - 1 for rollout in part]
        ids = np.concatenate([rollout.prompt[:-1] for rollout in part])
        positions = np.concatenate([np.arange(size) for size in sizes])
        slots = np.concatenate(
            [
                np.asarray(rollout.blocks)[np.arange(size) // BLOCK] * BLOCK + np.arange(size) % BLOCK
                for rollout, size in zip(part, sizes, strict=True)
            ]
        )
        spans = [Span(size, size, rollout.blocks) for rollout, size in zip(part, sizes, strict=True)]
        on_device = lambda array: torch.from_numpy(array).to(kv.device, non_blocking=True)
        attention = TritonPaged(kv, on_device(slots), spans, decoder.shape.heads // decoder.shape.kv_heads)
        decoder(on_device(ids), on_device(positions), attention)
    if copies:
        source, target = torch.tensor(copies, device=kv.device).unbind(1)
        kv[:, :, target] = kv[:, :, source]


def bucket_of(rows: int) -> int:
    return next(size for size in BUCKETS if size >= rows)


def decode(graphs: DecodeGraphs, rollouts: list[Rollout]) -> None:
    """One launch is always under way while the one before is read; rows leave when a smaller graph would do."""
    running = list(rollouts)
    graphs.write([rollout.row() for rollout in running])
    under_way = graphs.launch(STEPS)
    while running:
        following = graphs.launch(STEPS)
        for drawn in (under_way.wait(),):
            take(running, drawn.tokens, drawn.figures)
        under_way = following
        going = sum(rollout.made < rollout.length for rollout in running)
        if going == 0 or bucket_of(going) < bucket_of(len(running)):
            drawn = under_way.wait()  # the host must know where everyone stands before it moves rows
            take(running, drawn.tokens, drawn.figures)
            running = [rollout for rollout in running if rollout.made < rollout.length]
            if running:
                graphs.write([rollout.row() for rollout in running])
                under_way = graphs.launch(STEPS)


def take(running: list[Rollout], tokens: np.ndarray, figures: np.ndarray) -> None:
    counts = (tokens >= 0).sum(0).tolist()
    for number, (rollout, count) in enumerate(zip(running, counts, strict=True)):
        if count:
            rollout.tokens.append(tokens[:count, number])
            rollout.figures.append(figures[:count, number])
            rollout.made += count
            rollout.newest = int(tokens[count - 1, number])


def measure(decoder: Decoder, kv: torch.Tensor, graphs: DecodeGraphs, prompts, lengths) -> dict[str, float]:
    rollouts, owners, copies = place(prompts, lengths)
    assert max(max(rollout.blocks) for rollout in rollouts) < kv.shape[2], "the KV pool is too small"
    torch.cuda.synchronize()
    start = time.perf_counter()
    fill_in(decoder, kv, owners, copies)
    torch.cuda.synchronize()
    filled = time.perf_counter()
    decode(graphs, rollouts)
    made = [np.concatenate(rollout.tokens).tolist() for rollout in rollouts]
    figures = [np.concatenate(rollout.figures).tolist() for rollout in rollouts]
    seconds = time.perf_counter() - start
    assert [len(tokens) for tokens in made] == list(lengths) == [len(rows) for rows in figures]
    tokens = sum(lengths)
    return {"tokens": tokens, "seconds": seconds, "tok_s": tokens / seconds, "fill_in_s": filled - start}


def main(name: str, names: list[str]) -> None:
    with torch.inference_mode():
        decoder = random_decoder(SHAPES[name])
    shape, work = decoder.shape, workloads(decoder.shape.vocab)
    needed = max(sum(blocks_for(len(p) + n) for p, n in zip(*load, strict=True)) for load in work.values())
    kv = torch.zeros(
        shape.layers, 2, needed, BLOCK, shape.kv_heads, shape.head_dim, device="cuda", dtype=torch.bfloat16
    )
    graphs = DecodeGraphs(decoder, kv, 512, 128 + 6144 + 2 * STEPS, STEPS)
    for load in ["warm", *(names or [load for load in work if load != "warm"])]:
        for attempt in ("cold", "warm"):  # graphs are captured the first time
            row = {"model": name, "workload": load, "run": attempt, **measure(decoder, kv, graphs, *work[load])}
            if load == "single":
                row["limit_share"] = row["tok_s"] / read_limit(decoder)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
