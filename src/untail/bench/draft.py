"""Drafting strategies on identical work: the same prompts, random streams and lengths, and so the same tokens.

Invariant: strategies differ in speed alone. What a run would have by its second epoch is there before the clock runs:
earlier responses to each prompt, a drafter trained on them, and choosers that have tried everybody at this batch size.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from untail.config import DraftConfig, EngineConfig
from untail.draft.build import build, build_training
from untail.draft.speculation import Speculator
from untail.engine.attention.varlen import VarlenAttention
from untail.engine.engine import Engine
from untail.engine.models.decoder import Decoder
from untail.errors import UserError, nearest
from untail.tokenizer import Tokenizer
from untail.types import SamplingParams, SequenceSpec

GROUP = 8  # siblings of one prompt
PAST = 8  # earlier responses to each prompt: those of a group in the epoch before
QUESTIONS = (
    "A shop sells pens at 3 dollars each. How much do 14 pens cost? Think step by step.",
    "Tom has 25 apples and gives away 9, then buys 12 more. How many has he now? Think step by step.",
)
TRIALS = 12  # untimed runs of a strategy that chooses: in training it would have had thousands of steps
SLICES = 60  # of training of the adaptive drafter on the earlier responses of each batch size
DRAFTERS: dict[str, Any] = {"history": {}, "adaptive": {"slices": SLICES}, "ngram": {}, "layer_skip": {}}
ARMS = (("history", 2), ("history", 8), ("ngram", 2), ("ngram", 8), ("adaptive", 2), ("layer_skip", 2))
STRATEGIES: dict[str, DraftConfig] = {
    "off": DraftConfig(),
    **{
        f"{name} {depth}": DraftConfig(drafters={name: DRAFTERS[name]}, choose={"name": "first", "depth": depth})
        for name, depth in ARMS
    },
    "bandit": DraftConfig(drafters=DRAFTERS, choose={"name": "bandit", "depths": (2, 8)}),
    "formula": DraftConfig(drafters=DRAFTERS, choose={"name": "formula"}),
}
ENGINE = EngineConfig(kv_gib=0.25)  # there is one for each strategy


@dataclass(frozen=True)
class Work:
    """`batch` sequences, siblings side by side, each `length` tokens long whatever comes."""

    batch: int
    length: int
    temperature: float
    prompts: list[tuple[int, ...]]
    past: dict[tuple[int, ...], tuple[tuple[int, ...], ...]]

    def specs(self, first_stream: int) -> list[SequenceSpec]:
        sampling = _sampling(self.temperature)
        prompts = [self.prompts[number // GROUP % len(self.prompts)] for number in range(self.batch)]
        return [
            SequenceSpec(
                f"{first_stream}-{number}",
                prompt,
                self.length,
                first_stream + number,
                sampling,
                past=self.past[prompt],
            )
            for number, prompt in enumerate(prompts)
        ]


def chosen(names: str) -> dict[str, DraftConfig]:
    """Those that are named, and always the one without drafts; all of them if none is."""
    wanted = [name.strip() for name in names.split(",") if name.strip()] or list(STRATEGIES)
    for name in wanted:
        if name not in STRATEGIES:
            raise UserError(f"unknown strategy {name!r}; {nearest(name, list(STRATEGIES))}")
    return {name: STRATEGIES[name] for name in dict.fromkeys(("off", *wanted))}


def sizes(batches: str) -> list[int]:
    try:
        found = [int(size) for size in batches.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise UserError(f"--batch {batches!r} is not a list of positive numbers like 1,4,16")
    return found


def question_prompts(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    return [tuple(tokenizer.chat(question)) for question in QUESTIONS]


def _sampling(temperature: float) -> SamplingParams:
    return SamplingParams(temperature, policy_temperature=temperature or 1.0)


def make_work(decoder: Decoder, prompts: list[tuple[int, ...]], batch: int, length: int, temperature: float) -> Work:
    """With earlier responses to the prompts that are used."""
    used = prompts[: -(-batch // GROUP)]
    engine = Engine(decoder, ENGINE)
    sampling = _sampling(temperature)
    for number, prompt in enumerate(used):
        for copy in range(PAST):
            engine.add(SequenceSpec(f"{number}-{copy}", prompt, length, 10**6 + number * PAST + copy, sampling))
    responses: dict[str, list[int]] = {}
    while engine.has_work:
        for name, chunk in engine.step():
            responses.setdefault(name, []).extend(chunk.tokens)
    past = {
        prompt: tuple(tuple(responses[f"{number}-{copy}"]) for copy in range(PAST))
        for number, prompt in enumerate(used)
    }
    return Work(batch, length, temperature, used, past)


class Contender:
    """One strategy, which keeps what it learned from one run to the next."""

    def __init__(self, name: str, decoder: Decoder, config: DraftConfig):
        self.name = name
        self.untimed = 1 if config.choose["name"] == "first" else TRIALS
        self.speculator: Speculator | None = build(config, seed=0)
        self.engine = Engine(decoder, ENGINE, speculation=self.speculator)

    def seconds(self, work: Work, first_stream: int) -> float:
        for spec in work.specs(first_stream):
            self.engine.add(spec)
        start, made = time.perf_counter(), 0
        while self.engine.has_work:
            made += sum(len(chunk.tokens) for _, chunk in self.engine.step())
        seconds = time.perf_counter() - start
        for name in self.engine.names():
            self.engine.release(name)
        if made != work.batch * work.length:
            raise RuntimeError(f"{self.name} made {made} tokens, not {work.batch * work.length}")
        return seconds

    def counts(self) -> tuple[int, int]:
        """Proposals and accepted drafts so far."""
        figures = self.speculator.figures().values() if self.speculator else ()
        return sum(one["proposals"] for one in figures), sum(one["accepted"] for one in figures)


class Teacher:
    """Trains what learns, once for all who draft with it."""

    def __init__(self, contenders: list[Contender], decoder: Decoder):
        self.decoder = decoder
        self.speculators = [contender.speculator for contender in contenders if contender.speculator is not None]
        used = {name for speculator in self.speculators for name in speculator.drafters}
        config = DraftConfig(drafters={name: table for name, table in DRAFTERS.items() if name in used})
        self.training = build_training(config, decoder)

    def teach(self, work: Work) -> None:
        """What a run would have taught it by now: the earlier responses."""
        if not self.training:
            return
        for prompt, responses in work.past.items():
            for response in responses:
                self.training.hear_pass(*passed_over(self.decoder, prompt, response))
        self.training.after_update()
        learned = self.training.fresh()
        if set(learned) != set(self.training.trainers):
            raise RuntimeError(f"of {', '.join(self.training.trainers)} only {', '.join(learned) or 'nobody'} learned")
        for speculator in self.speculators:
            speculator.load({name: own for name, own in learned.items() if name in speculator.drafters})


@dataclass(frozen=True)
class OnePassed:
    """One sequence as a micro-batch of the learner's (learn/pack.py)."""

    lengths: list[int]
    ids_T: Tensor
    unrolled_U: Tensor
    predictor_R: Tensor


@torch.inference_mode()
def passed_over(decoder: Decoder, prompt: tuple[int, ...], response: tuple[int, ...]) -> tuple[OnePassed, Tensor]:
    ids_T = torch.tensor([*prompt, *response])
    positions_T = torch.arange(len(ids_T))
    hidden_TD = decoder(ids_T, positions_T, VarlenAttention([len(ids_T)]))
    return OnePassed([len(ids_T)], ids_T, positions_T, positions_T[len(prompt) - 1 : -1]), hidden_TD


def compare(contenders: list[Contender], work: Work, runs: int) -> Iterator[tuple[str, float, float]]:
    """(strategy, seconds, accepted drafts per proposal) for every run, one strategy after the other. Each run has
    streams of its own; the first ones are not timed."""
    for contender in contenders:
        for run in range(contender.untimed):
            contender.seconds(work, first_stream=(runs + run) * 1000)
    for run in range(runs):
        for contender in contenders:
            proposals, accepted = contender.counts()
            seconds = contender.seconds(work, first_stream=run * 1000)
            more, taken = contender.counts()
            yield contender.name, seconds, (taken - accepted) / max(1, more - proposals)


def rows(work: Work, timings: dict[str, list[tuple[float, float]]]) -> list[dict[str, Any]]:
    """speedup = without drafting / with, in seconds: the median over the runs, each against its own neighbour."""
    off = [seconds for seconds, _ in timings["off"]]
    return [
        {
            "strategy": name,
            "batch": work.batch,
            "accept_len": median(length for _, length in timed),
            "tok_s": work.batch * work.length / median(seconds for seconds, _ in timed),
            "speedup": median(plain / seconds for plain, (seconds, _) in zip(off, timed, strict=True)),
        }
        for name, timed in timings.items()
    ]
