"""Chain sums such as 12+34-7, generated without end and split into two sets that can never meet.

Invariant: which split a problem belongs to is a property of its terms (a hash of them, whatever their order). So no
model trained on the train split, with whatever seed and however long, has seen an evaluation problem or a re-ordered
copy of one. A problem has at least three terms: no single step of a worked solution is itself a problem.

Running totals stay within 0..99 and no term comes twice, so that what makes a problem hard is its length.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from untail.config import PositiveFloat, PositiveInt
from untail.errors import ConfigError, DataError
from untail.tasks.base import TASKS, Row, Task

LARGEST_TOTAL = 99
ONE_DIGIT_SHARE = 0.6
HELD_OUT = 10  # one problem in this many belongs to the evaluation split
FEWEST_AND_MOST_TERMS = {1: (3, 3), 2: (4, 4), 3: (5, 6), 4: (7, 10), 5: (18, 36)}  # by difficulty
MIXTURE = {1: 30.0, 2: 30.0, 3: 20.0, 4: 12.0, 5: 8.0}
VAIN_DRAWS = 1000  # this many draws in a row without a new problem: there are no more
REWARD = {"name": "exact"}  # of the last line, `#### 42`


@dataclass(frozen=True, slots=True)
class Problem:
    terms: tuple[int, ...]  # signed; the first is positive
    difficulty: int

    @property
    def text(self) -> str:
        return str(self.terms[0]) + "".join(f"{term:+d}" for term in self.terms[1:]) + "=?"

    @property
    def answer(self) -> int:
        return sum(self.terms)

    @property
    def split(self) -> Literal["train", "eval"]:
        """The same for every order of the terms."""
        digest = hashlib.blake2b(repr(sorted(self.terms)).encode(), digest_size=8).digest()
        return "eval" if int.from_bytes(digest, "little") % HELD_OUT == 0 else "train"


@TASKS.register("arithmetic")
class ArithmeticTask(Task):
    class Config(Task.Config):
        split: Literal["train", "eval"] = "train"
        size: PositiveInt = 512
        seed: int = 0
        mixture: dict[int, PositiveFloat] = MIXTURE  # difficulty (1 to 5) -> weight

    config: Config

    def rows(self) -> Iterator[Row]:
        for index, problem in enumerate(self._problems()):
            data = {"answer": str(problem.answer), "difficulty": problem.difficulty, "terms": len(problem.terms)}
            where = f"arithmetic {self.config.split} problem {index}"
            yield self.row(problem.text, data, where, "arithmetic", REWARD)

    def _problems(self) -> list[Problem]:
        """`size` problems of the split, each once."""
        self._check_mixture()
        rng = random.Random(self.config.seed)
        found: dict[str, Problem] = {}
        vain = 0
        while len(found) < self.config.size:
            problem = draw_problem(rng, self.config.mixture)
            vain = vain + 1 if problem.split != self.config.split or problem.text in found else 0
            if vain == 0:
                found[problem.text] = problem
            elif vain == VAIN_DRAWS:
                raise DataError(
                    f"{self.where}.size = {self.config.size}, but the {self.config.split} split of this mixture has "
                    f"only about {len(found)} problems; ask for fewer, or add a difficulty to {self.where}.mixture"
                )
        return list(found.values())

    def _check_mixture(self) -> None:
        known = ", ".join(map(str, FEWEST_AND_MOST_TERMS))
        if not self.config.mixture:
            raise ConfigError(f"{self.where}.mixture is empty; give at least one difficulty ({known}) a weight")
        for difficulty in self.config.mixture:
            if difficulty not in FEWEST_AND_MOST_TERMS:
                raise ConfigError(f"{self.where}.mixture has the difficulty {difficulty}; known: {known}")


def draw_problem(rng: random.Random, mixture: dict[int, float]) -> Problem:
    """A problem of either split."""
    difficulty = rng.choices(list(mixture), list(mixture.values()))[0]
    terms: list[int] = []
    for _ in range(rng.randint(*FEWEST_AND_MOST_TERMS[difficulty])):
        terms.append(_draw_term(rng, terms))
    return Problem(tuple(terms), difficulty)


def _draw_term(rng: random.Random, earlier: list[int]) -> int:
    total, used = sum(earlier), set(map(abs, earlier))
    while True:  # ends: whatever the total, 50 sizes or more fit, and at most 35 are used
        size = rng.randint(1, 9) if rng.random() < ONE_DIGIT_SHARE else rng.randint(10, LARGEST_TOTAL)
        allowed = [term for term in (size, -size) if 0 <= total + term <= LARGEST_TOTAL]
        if allowed and size not in used:
            return rng.choice(allowed)
