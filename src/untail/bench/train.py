"""One GRPO step, ours against TRL's, on identical work.

Invariant: the same weights, prompts, group size, response lengths and rewards on both sides. Lengths are drawn once
from the model itself and then forced (no side may stop early), and rewards are dealt by row, so that every group
teaches. The timed part is the whole step: rollout, log-probs, loss, backward, optimizer. Setting up a trainer is not
timed.
"""

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch

from untail.config import EngineConfig, LearnConfig
from untail.engine.engine import Engine
from untail.engine.models.folder import save_folder
from untail.engine.models.load import LoadedModel, load_model
from untail.errors import UserError, nearest
from untail.learn.trainer import Trainer
from untail.types import Batch, Group, Prompt, SamplingParams, SequenceSpec, Trajectory

LR = 3e-4


@dataclass(frozen=True)
class StepWork:
    prompts: list[Prompt]
    group: int
    lengths: list[int]  # one per row: prompt after prompt, each `group` times
    rewards: list[float]


@dataclass(frozen=True)
class StepTime:
    rollout_s: float
    update_s: float

    @property
    def step_s(self) -> float:
        return self.rollout_s + self.update_s


class StepSystem(ABC):
    name: str

    @abstractmethod
    def step(self, work: StepWork) -> StepTime:
        """One step from the start weights."""


def draw_work(model: LoadedModel, prompts: list[Prompt], group: int, max_tokens: int) -> StepWork:
    """Response lengths as the model itself makes them; rewards 0 and 1 in turn within each group."""
    engine = Engine(model.decoder, EngineConfig())
    stops = model.tokenizer.eos_ids
    rows = [prompt for prompt in prompts for _ in range(group)]
    for row, prompt in enumerate(rows):
        engine.add(SequenceSpec(str(row), prompt.tokens, max_tokens, row, SamplingParams(stop_ids=stops)))
    lengths = [0] * len(rows)
    while engine.has_work:
        for name, chunk in engine.step():
            lengths[int(name)] += len(chunk.tokens)
    return StepWork(
        prompts, group, [max(2, length) for length in lengths], [float(row % 2) for row in range(len(rows))]
    )


class UntailStep(StepSystem):
    name = "untail"

    def __init__(self, folder: Path):
        self.folder = folder

    def step(self, work: StepWork) -> StepTime:
        decoder = load_model(str(self.folder), "cpu").decoder
        engine, trainer = Engine(decoder, EngineConfig()), Trainer(decoder, LearnConfig(lr=LR, warmup_steps=0))
        start = time.perf_counter()
        trajectories = self._roll_out(engine, work)
        middle = time.perf_counter()
        groups = [
            Group(str(place), prompt, trajectories[place * work.group : (place + 1) * work.group])
            for place, prompt in enumerate(work.prompts)
        ]
        figures = trainer.update(Batch(1, groups))
        end = time.perf_counter()
        assert figures["optimizer_steps"] == 1
        return StepTime(middle - start, end - middle)

    def _roll_out(self, engine: Engine, work: StepWork) -> list[Trajectory]:
        rows = [prompt for prompt in work.prompts for _ in range(work.group)]
        trajectories = [Trajectory(str(row), prompt, row) for row, prompt in enumerate(rows)]
        for trajectory, length, reward in zip(trajectories, work.lengths, work.rewards, strict=True):
            trajectory.reward = reward
            engine.add(SequenceSpec(trajectory.id, trajectory.prompt.tokens, length, trajectory.stream))
        while engine.has_work:
            for name, chunk in engine.step():
                trajectories[int(name)].take(chunk)
        return trajectories


class TrlStep(StepSystem):
    """TRL's GRPOTrainer with its own generation; micro-batches of `micro_batch` rows, one optimizer step."""

    name = "trl"

    def __init__(self, folder: Path, micro_batch: int = 64):
        self.folder = folder
        self.micro_batch = micro_batch

    def step(self, work: StepWork) -> StepTime:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        _force_lengths(model, work.lengths, tokenizer.eos_token_id)
        trainer = self._trainer(model, tokenizer, work)
        rollout_s = 0.0
        generate = trainer._generate_and_score_completions

        def timed(inputs: Any) -> Any:
            nonlocal rollout_s
            start = time.perf_counter()
            result = generate(inputs)
            rollout_s += time.perf_counter() - start
            return result

        trainer._generate_and_score_completions = timed
        step_s = _time_one_step(trainer)
        return StepTime(rollout_s, step_s - rollout_s)

    def _trainer(self, model: Any, tokenizer: Any, work: StepWork) -> Any:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        rows = len(work.lengths)
        micro = max(size for size in range(1, self.micro_batch + 1) if rows % size == 0)
        config = GRPOConfig(
            output_dir=str(self.folder / "trl"),
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=rows // micro,
            steps_per_generation=rows // micro,
            num_generations=work.group,
            max_completion_length=max(work.lengths),
            max_steps=1,
            learning_rate=LR,
            lr_scheduler_type="constant",
            beta=0.0,
            temperature=1.0,
            shuffle_dataset=False,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        texts = [{"prompt": prompt.text} for prompt in work.prompts]
        deal = lambda completions, **_: work.rewards[: len(completions)]
        return GRPOTrainer(
            model=model,
            reward_funcs=deal,
            args=config,
            train_dataset=Dataset.from_list(texts),
            processing_class=tokenizer,
        )


def _force_lengths(model: Any, lengths: list[int], eos: int) -> None:
    """Rows end exactly at their lengths: end-of-sequence is never drawn, and fills a row that is done."""
    generate = model.generate

    def forced(input_ids: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        # The filling token that closes a row counts as its last one.
        limits = torch.tensor(lengths) - 1 + input_ids.shape[1]
        done = lambda ids, scores, **_: ids.shape[1] >= limits
        settings = copy.copy(kwargs.pop("generation_config"))
        settings.update(suppress_tokens=[eos], pad_token_id=eos)
        return generate(input_ids, stopping_criteria=[done], generation_config=settings, **kwargs)

    model.generate = forced


def _time_one_step(trainer: Any) -> float:
    from transformers import TrainerCallback

    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            times.append(time.perf_counter())

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            times.append(time.perf_counter())

    trainer.add_callback(Clock())
    trainer.train()
    begin, end = times
    return end - begin


PEERS = {"trl": TrlStep}


def make_systems(folder: Path, peers: list[str]) -> list[StepSystem]:
    systems: list[StepSystem] = [UntailStep(folder)]
    for peer in peers:
        if peer not in PEERS:
            raise UserError(f"unknown peer {peer!r}; {nearest(peer, list(PEERS))}")
        systems.append(PEERS[peer](folder))
    return systems


def compare(model: LoadedModel, work: StepWork, peers: list[str], runs: int) -> Iterator[tuple[str, StepTime]]:
    """(system, times) for every run, one system after the other."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        save_folder(model.decoder, model.tokenizer, folder)
        systems = make_systems(folder, peers)
        for _ in range(runs):
            for system in systems:
                yield system.name, system.step(work)


def rows(timings: dict[str, list[StepTime]]) -> list[dict[str, Any]]:
    """ratio = the peer's step_s / ours."""
    steps = {name: median(t.step_s for t in times) for name, times in timings.items()}
    return [
        {
            "system": name,
            "rollout_s": median(t.rollout_s for t in times),
            "update_s": median(t.update_s for t in times),
            "step_s": steps[name],
            "ratio": steps[name] / steps["untail"],
        }
        for name, times in timings.items()
    ]
