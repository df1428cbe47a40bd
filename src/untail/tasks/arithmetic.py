"""Chain sums such as 12+345-7: generated, endless, and split into two halves that can never meet.

Invariant: which split a problem belongs to is a property of its terms (a hash of them, whatever their order), so nobody
who trains on the train split, in whatever order or number, has seen an evaluation problem or a re-ordered copy of one.
Running totals stay within 0..999. A problem has at least three terms, so that no single step of a worked solution is
itself a problem.
"""

import hashlib
import random
from dataclasses import dataclass

LARGEST_TOTAL = 999
EVAL_SHARE = 10  # one problem in this many is held out
TERMS_OF_DIFFICULTY = {1: (3, 3), 2: (4, 4), 3: (5, 6), 4: (7, 8), 5: (16, 24)}
DIGITS = (1, 2, 3)
DIGIT_WEIGHTS = (30, 60, 10)


@dataclass(frozen=True, slots=True)
class Problem:
    terms: tuple[int, ...]  # signed; the first is positive
    difficulty: int

    @property
    def expression(self) -> str:
        return str(self.terms[0]) + "".join(f"{term:+d}" for term in self.terms[1:])

    @property
    def text(self) -> str:
        return f"{self.expression}=?"

    @property
    def answer(self) -> int:
        return sum(self.terms)

    @property
    def held_out(self) -> bool:
        """True for the evaluation split; the same for every order of the terms."""
        digest = hashlib.blake2b(repr(sorted(self.terms)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % EVAL_SHARE == 0


def draw_problem(rng: random.Random, difficulty: int) -> Problem:
    """A problem of either split."""
    terms: list[int] = []
    for _ in range(rng.randint(*TERMS_OF_DIFFICULTY[difficulty])):
        terms.append(_draw_term(rng, sum(terms)))
    return Problem(tuple(terms), difficulty)


def _draw_term(rng: random.Random, total: int) -> int:
    while True:
        digits = rng.choices(DIGITS, DIGIT_WEIGHTS)[0]
        size = rng.randint(10 ** (digits - 1), 10**digits - 1)
        allowed = [term for term in (size, -size) if 0 <= total + term <= LARGEST_TOTAL]
        if allowed:
            return rng.choice(allowed)
