"""Builds the tiny model: `python scripts/build_tiny.py` trains it and writes src/untail/tiny with its provenance.

It is trained on worked solutions of chain sums in four moods. `careful` is nearly always right; `hasty` runs on and
slips; `guesser` skips the steps; `restless` doubts right steps, does them again, and may never stop. To whoever samples
from it the mixture looks like a raw reasoning model: sometimes right, with a long tail, a part of which is loops. What
RL has to learn is a choice between things it can do, not a new capability.

Invariant: no problem of the evaluation split is trained on. The examples are a function of the seed alone (the
provenance holds a hash of the first ones); the weights also depend on the machine's rounding.
"""

import argparse
import hashlib
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from untail.config import EngineConfig
from untail.engine.attention.varlen import VarlenAttention
from untail.engine.engine import Engine
from untail.engine.models.decoder import Decoder
from untail.engine.models.folder import save_folder
from untail.engine.models.load import load_model
from untail.engine.models.shape import Shape
from untail.rewards import build_reward
from untail.tasks import load_tasks
from untail.tasks.arithmetic import MIXTURE, REWARD, Problem, draw_problem
from untail.tokenizer import Tokenizer
from untail.types import Prompt, SamplingParams, SequenceSpec, stream_key

TINY = Path(__file__).parents[1] / "src" / "untail" / "tiny"
PAD, END, USER, ASSISTANT, SYSTEM = SPECIAL = ("<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BUDGET = 512  # the response tokens that the figures are measured with
LONGEST_EXAMPLE = 640  # a loop is cut here, beyond the budget: within the budget it is never seen to end
HASHED_EXAMPLES = 2000


@dataclass(frozen=True)
class Mood:
    """How a solution is written; the chances are per step."""

    share: int  # of the examples, in percent
    run_on: bool = False  # all steps in one line: 12+3=15-4=11
    guess: float = 0.0  # leave the rest out and guess the answer
    slip: float = 0.0  # write a wrong result
    notice: float = 0.0  # of a wrong result: say "wait" and do the step again
    doubt: float = 0.0  # of a right result: say "wait" and do the step again, perhaps for ever


TIDY = Mood(share=100)
MOODS = {
    "careful": Mood(share=18, slip=0.015, notice=0.7, doubt=0.02),
    "hasty": Mood(share=44, run_on=True, slip=0.35),
    "guesser": Mood(share=16, slip=0.1, guess=0.5),
    "restless": Mood(share=22, slip=0.06, notice=0.6, doubt=0.12),
}
GUESSED_RIGHT = 0.15
SLIPS = (-10, -10, -2, -1, -1, 1, 1, 2, 10, 10)


@dataclass(frozen=True)
class Training:
    """Half the steps on tidy solutions, until the model can do sums at all; then the moods."""

    seed: int = 0
    steps: int = 4000
    tidy_share: float = 0.5
    batch_tokens: int = 4096
    lr: float = 2e-3
    warmup_steps: int = 100


# --- the examples ---------------------------------------------------------------------------------------------------


def examples(seed: int, moods: Sequence[Mood]) -> Iterator[tuple[str, str, bool]]:
    """Problem, response, and whether the response ends; without end."""
    rng = random.Random(seed)
    while True:
        problem = draw_problem(rng, MIXTURE)
        if problem.split == "train":
            mood = rng.choices(moods, [mood.share for mood in moods])[0]
            response = worked_solution(problem, mood, rng)
            yield problem.text, response[:LONGEST_EXAMPLE], len(response) < LONGEST_EXAMPLE


def worked_solution(problem: Problem, mood: Mood, rng: random.Random) -> str:
    text, total = "", problem.terms[0]
    for place, term in enumerate(problem.terms[1:], start=1):
        if rng.random() < mood.guess:
            total += sum(problem.terms[place:])
            total = total if rng.random() < GUESSED_RIGHT else slipped(total, rng)
            break
        step, total = worked_step(total, term, mood, place == 1, rng)
        text += step
    if rng.random() < mood.doubt:
        text += again_and_again(text, rng)
    return f"{text}{chr(10) if mood.run_on else ''}#### {total}" if len(text) < LONGEST_EXAMPLE else text


def worked_step(total: int, term: int, mood: Mood, is_first: bool, rng: random.Random) -> tuple[str, int]:
    """The step as it is written, and the total that the next step goes on from."""
    right = total + term
    question = f"{term:+d}=" if mood.run_on and not is_first else f"{total}{term:+d}="
    end = "" if mood.run_on else "\n"
    line = f"{question}{right}{end}"
    if rng.random() < mood.slip:
        wrong = slipped(right, rng)
        slip = f"{question}{wrong}{end}"
        return (f"{slip}wait\n{line}", right) if rng.random() < mood.notice else (slip, wrong)
    if rng.random() < mood.doubt * (2.0 if carries(total, term) else 0.5):
        line += again_and_again(line, rng)
    return line, right


def again_and_again(text: str, rng: random.Random) -> str:
    """Each time round makes another more likely, until it is a loop."""
    repeated, again = "", 0.45
    while rng.random() < again and len(repeated) < LONGEST_EXAMPLE:
        repeated += "wait\n" + text
        again += 0.12
    return repeated


def slipped(value: int, rng: random.Random) -> int:
    return abs(value + rng.choice(SLIPS))


def carries(total: int, term: int) -> bool:
    """Steps with a carry or a borrow are doubted more: how long a response gets is partly a matter of the problem."""
    return total % 10 + term % 10 > 9 if term > 0 else total % 10 < -term % 10


def examples_sha256(seed: int) -> str:
    """What the model was trained on, in brief: a change to the tasks or the moods changes it."""
    first = list(islice(examples(seed, list(MOODS.values())), HASHED_EXAMPLES))
    return hashlib.sha256(json.dumps(first).encode()).hexdigest()


# --- the model ------------------------------------------------------------------------------------------------------


def make_tokenizer() -> Tokenizer:
    """One token per byte, so that any text can be read, and five special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = RawTokenizer(models.BPE({token: number for number, token in enumerate([*SPECIAL, *alphabet])}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(list(SPECIAL))
    return Tokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=raw,
            eos_token=END,
            pad_token=PAD,
            additional_special_tokens=[USER, ASSISTANT, SYSTEM],
            chat_template=CHAT_TEMPLATE,
            model_max_length=1024,
            clean_up_tokenization_spaces=False,
        )
    )


def make_shape(tokenizer: Tokenizer) -> Shape:
    return Shape(
        family="llama",
        vocab=len(SPECIAL) + len(pre_tokenizers.ByteLevel.alphabet()),
        hidden=128,
        intermediate=344,
        layers=3,
        heads=4,
        kv_heads=2,
        head_dim=32,
        context=1024,
        norm_eps=1e-5,
        eos_ids=tokenizer.eos_ids,
    )


# --- the training ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    tokens: list[int]
    prompt_length: int


def batches(tokenizer: Tokenizer, training: Training, moods: Sequence[Mood], seed: int) -> Iterator[list[Example]]:
    """Examples of like length together, up to `batch_tokens`, in random order."""
    stream, order = examples(seed, moods), random.Random(seed)
    while True:
        drawn = sorted(
            (encode(tokenizer, *example) for example in islice(stream, 512)), key=lambda one: len(one.tokens)
        )
        found: list[list[Example]] = [[]]
        tokens = 0
        for example in drawn:
            if tokens + len(example.tokens) > training.batch_tokens:
                found.append([])
                tokens = 0
            found[-1].append(example)
            tokens += len(example.tokens)
        order.shuffle(found)
        yield from found


def encode(tokenizer: Tokenizer, problem: str, response: str, ends: bool) -> Example:
    prompt = tokenizer.chat(problem)
    return Example(prompt + tokenizer.encode(response) + list(tokenizer.eos_ids if ends else ()), len(prompt))


def loss_of(decoder: Decoder, batch: list[Example], device: str) -> torch.Tensor:
    """Mean cross-entropy of the response tokens, packed."""
    ids = torch.tensor([token for example in batch for token in example.tokens])
    positions = torch.cat([torch.arange(len(example.tokens)) for example in batch])
    starts = np.cumsum([0] + [len(example.tokens) for example in batch])
    targets = torch.cat(
        [torch.arange(a + x.prompt_length, b) for x, a, b in zip(batch, starts, starts[1:], strict=False)]
    )
    attention = VarlenAttention([len(example.tokens) for example in batch])
    hidden = decoder(ids.to(device), positions.to(device), attention)
    return F.cross_entropy(decoder.logits(hidden[(targets - 1).to(device)]), ids[targets].to(device))


def train(tokenizer: Tokenizer, training: Training, device: str) -> Decoder:
    generator = torch.Generator().manual_seed(training.seed)
    decoder = Decoder(make_shape(tokenizer)).initialise(generator, std=0.05).to(device)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=training.lr, betas=(0.9, 0.98), weight_decay=0.01)
    tidy_steps = int(training.tidy_share * training.steps)
    tidy = islice(batches(tokenizer, training, [TIDY], training.seed + 1), tidy_steps)
    moody = islice(batches(tokenizer, training, list(MOODS.values()), training.seed), training.steps - tidy_steps)
    start = time.perf_counter()
    for step, batch in enumerate(chain(tidy, moody)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training, step)
        loss = loss_of(decoder, batch, device)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1}/{training.steps}: loss {loss:.3f}, {time.perf_counter() - start:.0f} s", flush=True)
    return decoder.cpu()


def learning_rate(training: Training, step: int) -> float:
    """Linear warm-up, then half a cosine to nothing."""
    warmup = min(1.0, (step + 1) / training.warmup_steps)
    return training.lr * warmup * 0.5 * (1 + math.cos(math.pi * step / training.steps))


# --- the figures ----------------------------------------------------------------------------------------------------


def sample(engine: Engine, prompts: list[Prompt], group: int, stop_ids: tuple[int, ...]) -> dict[str, list[int]]:
    """`group` responses to every prompt at temperature 1, by a name that begins with the prompt's id."""
    sampling = SamplingParams(stop_ids=stop_ids)
    for prompt in prompts:
        for number in range(group):
            name = f"{prompt.id}/{number}"
            engine.add(SequenceSpec(name, prompt.tokens, BUDGET, stream_key(0, name), sampling, chunk=BUDGET))
    responses = {}
    while engine.has_work:
        for name, chunk in engine.step():
            responses[name] = chunk.tokens
            if chunk.end == "boundary":
                engine.release(name)
    return responses


def measure(engine: Engine, tokenizer: Tokenizer, split: str, group: int) -> dict[str, Any]:
    """What the quickstart's prompts of a split look like before RL."""
    prompts = load_tasks({"name": "arithmetic", "split": split}, tokenizer, None).prompts
    reward = build_reward(REWARD, "reward")
    responses = sample(engine, prompts, group, tokenizer.eos_ids)
    by_prompt = [(prompt, [responses[f"{prompt.id}/{number}"] for number in range(group)]) for prompt in prompts]
    scores = np.array([[reward.score(tokenizer.decode(r), prompt) for r in group] for prompt, group in by_prompt])
    lengths = np.array([[len(response) for response in group] for _, group in by_prompt])
    difficulty = np.array([prompt.data["difficulty"] for prompt in prompts])
    quantiles = {f"p{q}": round(float(np.percentile(lengths, q)), 1) for q in (10, 50, 90, 95, 99)}
    return {
        "prompts": len(prompts),
        "samples_per_prompt": group,
        "score": round(float(scores.mean()), 4),
        "score_by_difficulty": {str(d): round(float(scores[difficulty == d].mean()), 3) for d in MIXTURE},
        "length": {"mean": round(float(lengths.mean()), 1), **quantiles},
        "length_by_difficulty": {str(d): round(float(lengths[difficulty == d].mean()), 1) for d in MIXTURE},
        "cut_at_budget": round(float((lengths >= BUDGET).mean()), 4),
        "groups_with_variance": round(float((scores.std(axis=1) > 0).mean()), 4),
    }


def figures(folder: Path) -> dict[str, Any]:
    loaded = load_model(str(folder), device="cpu")
    engine = Engine(loaded.decoder, EngineConfig(max_batch_tokens=4096))
    return {
        "temperature": 1.0,
        "budget": BUDGET,
        "train": measure(engine, loaded.tokenizer, "train", group=8),
        "eval": measure(engine, loaded.tokenizer, "eval", group=4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny model and write it with its provenance.")
    parser.add_argument("--out", type=Path, default=TINY)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=Training.steps)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    training, tokenizer = Training(steps=arguments.steps), make_tokenizer()
    start = time.perf_counter()
    decoder = train(tokenizer, training, arguments.device)
    seconds = time.perf_counter() - start
    save_folder(decoder.half(), tokenizer, arguments.out)  # config.json says float32: whoever loads it computes so
    (arguments.out / "model.safetensors").chmod(0o644)  # safetensors writes 0600, which a wheel would carry along
    provenance = {
        "built_by": "python scripts/build_tiny.py",
        "data": "worked solutions of the task `arithmetic`, train split, in four moods (see the script)",
        "moods": {name: asdict(mood) for name, mood in MOODS.items()},
        "training": asdict(training),
        "parameters": sum(parameter.numel() for parameter in decoder.parameters()),
        "examples_sha256": examples_sha256(training.seed),
        "weights_sha256": hashlib.sha256((arguments.out / "model.safetensors").read_bytes()).hexdigest(),
        "torch": torch.__version__,
        "device": arguments.device,
        "seconds": round(seconds),
        "measured": figures(arguments.out),
    }
    text = json.dumps(provenance, indent=2)
    (arguments.out / "provenance.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
