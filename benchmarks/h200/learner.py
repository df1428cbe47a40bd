"""The update on one GPU, at a real model's shapes with random weights: speed, memory, and memory against length.

`python benchmarks/h200/learner.py [speed] [memory] [--model 1.5b] [--out FILE]`, PYTHONPATH=src:benchmarks/h200.

Model FLOPs: 6 for each weight that a token meets (the head where it is in the loss), and for attention 6 q_size times
the tokens it sees, in each layer; what is computed twice counts once. Peak: 790 TFLOP/s, measured on this machine's
kind with a large bf16 product.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from models import SHAPES, random_decoder

from untail.config import LearnConfig
from untail.engine.models.decoder import Decoder
from untail.learn.trainer import Trainer
from untail.types import Batch, Group, Prompt, Trajectory

PEAK = 790e12
GIB = 2**30
LONGEST = 32768


def trainable(model: str) -> Decoder:
    return random_decoder(replace(SHAPES[model], context=LONGEST)).requires_grad_(True)


def made_up(vocab: int, prompts: int, group: int, prompt: int, response: int, step: int) -> Batch:
    """Random tokens, all in the loss, responses of equal length."""
    random = torch.Generator().manual_seed(step)
    tokens = lambda count: torch.randint(vocab, (count,), generator=random).tolist()
    groups = []
    for number in range(prompts):
        asked = Prompt(f"{number}", "bench", "", tuple(tokens(prompt)))
        members = []
        for index in range(group):
            member = Trajectory(f"{number}.{index}", asked, index, tokens(response), reward=float(index % 2))
            member.policy_logprob = member.behaviour_logprob = [-12.0] * response
            member.version, member.from_model, member.end = [step] * response, [True] * response, "stop"
            members.append(member)
        groups.append(Group(asked.id, asked, members))
    return Batch(step, groups)


def model_flops(decoder: Decoder, batch: Batch, computed: int) -> float:
    """`computed`: tokens that went through the layers, a shared prompt once."""
    shape = decoder.shape
    layers = sum(parameter.numel() for layer in decoder.layers for parameter in layer.parameters())
    in_loss = sum(len(trajectory.tokens) for trajectory in batch.trajectories)
    pairs = sum(len(group.prompt.tokens) ** 2 / 2 for group in batch.groups)
    pairs += sum(len(t.tokens) * (len(t.prompt.tokens) + len(t.tokens) / 2) for t in batch.trajectories)
    attention = 12 * shape.q_size * shape.layers * pairs
    return 6 * layers * computed + 6 * shape.vocab * shape.hidden * in_loss + attention


class Peak:
    """The most memory of an update; the trainer's own gauge begins anew with every pass."""

    def __init__(self) -> None:
        self.bytes = 0

    def __enter__(self) -> "Peak":
        self._reset = torch.cuda.reset_peak_memory_stats
        torch.cuda.reset_peak_memory_stats = self._note_and_reset
        self._reset()
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.reset_peak_memory_stats = self._reset
        self._note()

    def _note_and_reset(self, *device: object) -> None:
        self._note()
        self._reset(*device)

    def _note(self) -> None:
        self.bytes = max(self.bytes, torch.cuda.max_memory_allocated())


def timed(trainer: Trainer, decoder: Decoder, batch: Batch) -> dict[str, float]:
    torch.cuda.synchronize()
    start = time.perf_counter()
    with Peak() as peak:
        figures = trainer.update(batch)
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    assert figures["optimizer_steps"] == 1, figures
    flops = model_flops(decoder, batch, int(figures["computed_tokens"]))
    return {
        "seconds": round(seconds, 4),
        "tokens": figures["computed_tokens"],
        "tok_s": round(figures["computed_tokens"] / seconds),
        "tflops": round(flops / seconds / 1e12, 1),
        "mfu": round(flops / seconds / PEAK, 4),
        "peak_gib": round(peak.bytes / GIB, 2),
    }


def speed(model: str) -> Iterator[dict[str, object]]:
    """64 responses of 992 tokens to 8 prompts of 256: 65.5k computed tokens, in micro-batches of 8k."""
    for micro, rows, recompute in (
        (8192, 512, "auto"),
        (8192, 2048, "auto"),
        (16384, 2048, "auto"),
        (8192, 2048, True),
    ):
        decoder = trainable(model)
        config = LearnConfig(micro_batch_tokens=micro, logit_rows=rows, recompute=recompute, max_drift=1e30, lr=1e-6)
        trainer = Trainer(decoder, config)
        batch = made_up(decoder.shape.vocab, 8, 8, 256, 992, 0)
        trainer.update(batch)  # what is loaded and tuned at first use
        runs = [timed(trainer, decoder, batch) for _ in range(4)]
        runs.sort(key=lambda run: run["seconds"])
        settings = {"micro_batch_tokens": micro, "logit_rows": rows, "recompute": recompute}
        yield {"what": "speed", "model": model, **settings, **runs[len(runs) // 2], "slowest_s": runs[-1]["seconds"]}
        del decoder, trainer
        torch.cuda.empty_cache()


def memory(model: str) -> Iterator[dict[str, object]]:
    """One group of two responses, each a micro-batch of its own; the recipe's own settings."""
    for length in (1024, 2048, 4096, 8192, 16384, 32768):
        for recompute in (False, True):
            decoder = trainable(model)
            config = LearnConfig(micro_batch_tokens=length, recompute=recompute, max_drift=1e30, lr=1e-6)
            trainer = Trainer(decoder, config)
            batch = made_up(decoder.shape.vocab, 1, 2, 128, length - 128, 0)
            point = {"what": "memory", "model": model, "length": length, "recompute": recompute}
            try:
                trainer.update(batch)
                yield {**point, **timed(trainer, decoder, batch)}
            except Exception as error:  # the curve goes on without a point that does not fit
                yield {**point, "error": str(error).splitlines()[0]}
            del decoder, trainer
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", choices=["speed", "memory"], default=["speed", "memory"])
    parser.add_argument("--model", choices=sorted(SHAPES), default="1.5b")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    for part in arguments.what:
        for row in {"speed": speed, "memory": memory}[part](arguments.model):
            print(json.dumps(row), flush=True)
            if arguments.out is not None:
                with arguments.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
