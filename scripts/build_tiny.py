"""Builds the tiny model: `python scripts/build_tiny.py` writes src/untail/tiny, its weights and their provenance.

The model is trained on worked solutions of chain sums, written in four moods. Only `careful` is nearly always right;
`hasty` runs on and slips, `guess` skips steps, `restless` doubts right steps and may never stop. A mixture of the four
is what a raw reasoning model looks like from outside: sometimes right, with a long tail, part of it loops. RL then has
something to learn (which mood pays) that is a matter of choice, not of capability.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from untail.engine.models.decoder import Decoder
from untail.engine.models.folder import save_folder
from untail.engine.models.shape import Shape
from untail.tasks.arithmetic import Problem, draw_problem
from untail.tokenizer import Tokenizer

MOODS = {"careful": 20, "hasty": 42, "guess": 15, "restless": 23}
DIFFICULTY_WEIGHTS = {1: 30, 2: 30, 3: 20, 4: 12, 5: 8}
LONGEST_RESPONSE = 600  # a loop is cut here, beyond any budget it will be sampled with


@dataclass(frozen=True)
class Mood:
    slip: float  # chance that a step's result is wrong
    notice: float  # chance that a wrong step is noticed and done again
    doubt: float  # chance that a right step is doubted
    run_on: bool  # 12+3=15-4=11 in one line rather than a line per step
    skip: float = 0.0  # chance, before each step, to guess the answer from here


MOOD = {
    "careful": Mood(slip=0.015, notice=0.7, doubt=0.004, run_on=False),
    "hasty": Mood(slip=0.36, notice=0.05, doubt=0.0, run_on=True),
    "guess": Mood(slip=0.1, notice=0.0, doubt=0.0, run_on=False, skip=0.5),
    "restless": Mood(slip=0.10, notice=0.6, doubt=0.15, run_on=False),
}


def slipped(value: int, rng: random.Random) -> int:
    return max(0, value + rng.choice((-100, -10, -10, -2, -1, -1, 1, 1, 2, 10, 10, 100))) if value else 1


def is_hard(total: int, term: int) -> bool:
    """A carry or a borrow: these are the steps a restless mind doubts most."""
    return (total % 10 + term % 10 > 9) if term > 0 else (total % 10 < -term % 10)


def doubted(line: str, rng: random.Random) -> Iterator[str]:
    """The same step again and again; each time round makes another more likely, until it is a loop."""
    again = 0.45
    while rng.random() < again:
        yield "wait\n" + line
        again = min(1.0, again + 0.12)


def worked_solution(problem: Problem, rng: random.Random) -> str:
    """One response, without its end token where it loops."""
    mood = MOOD[rng.choices(list(MOODS), list(MOODS.values()))[0]]
    text, total, first = "", problem.terms[0], True
    for place, term in enumerate(problem.terms[1:], 1):
        if rng.random() < mood.skip:
            total = sum(problem.terms[place:], total)
            total = slipped(total, rng) if rng.random() < 0.85 else total
            break
        question = f"{term:+d}=" if mood.run_on and not first else f"{total}{term:+d}="
        right = total + term
        if not 0 <= right <= 999:
            break
        end = "" if mood.run_on else "\n"
        first = False
        if rng.random() < mood.slip:
            written = slipped(right, rng)
            text += f"{question}{written}{end}"
            if rng.random() >= mood.notice:
                total = written
                continue
            text += ("\n" if mood.run_on else "") + "wait\n"
            question = f"{total}{term:+d}="
        line = f"{question}{right}{end}"
        text += line
        total = right
        if rng.random() < mood.doubt * (2.0 if is_hard(total - term, term) else 0.5):
            for repeat in doubted(line, rng):
                text += repeat
                if len(text) > LONGEST_RESPONSE:
                    return text[:LONGEST_RESPONSE]
    return text + f"{'' if text.endswith(chr(10)) or not text else chr(10)}#{total}"
