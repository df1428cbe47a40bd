"""7.6, choosing by what came of it: a bandit for each context, over every drafter at every depth, and nobody.

Source: TLT (arXiv 2511.16665). An arm is held for some steps, a pull, so that bursts of accepted drafts average out;
it is worth the tokens of its last pulls by their seconds, of which no pull counts for more than twice its usual ones:
what is accepted comes in bursts, and costs more when it does, but what holds a step up is none of an arm's doing. The
best is who may be: an arm's tokens differ from step to step, and for as long as it had few of these it gets the benefit
of the doubt, as in UCB (Auer et al., 2002). Without drafts there is no doubt.

Invariant: nobody drafts for a batch of more than a few before drafts have paid for one of half the size: the larger it
is, the less they do. Every arm is pulled twice before it is judged, unless its drafter was hopeless at a smaller
depth. Now and then one is pulled again, ever more seldom: the nearer it came to the best, the more often, for what is
far behind costs most to try and has least to gain. What the others with the same batch size know counts in a context,
too, as much as some pulls of its own: it changes slowly with acceptance and length, and chance outweighs it for long.
The arm without drafts is always offered.
"""

import math
from dataclasses import dataclass
from random import Random
from statistics import median_low
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from untail.config import PositiveInt, Strict
from untail.draft.choose.base import CHOOSERS, OFF, Arm, Chooser, Outcome, Scene

LENGTHS = (1024, 4096, 16384)  # of the context in tokens: where the buckets end
ACCEPTANCES = (0.3, 0.6)
HOPELESS = 0.5  # of the best one's worth: deeper arms of a drafter that stays below are not tried for a start
FEW = 15  # sequences for which drafts are tried without further ado
HELD_UP = 2.0  # times an arm's usual seconds: what a pull takes beyond that does not count
OTHERS = 256  # steps that what other contexts know of an arm counts for at most
TRIES = 2  # pulls of an arm before it is judged
DOUBT = 1.5  # standard errors of its mean that an arm may be better than it has been
TIE = 0.05  # of the best one's worth: who is behind by less is as good as the best, when it comes to trying
Chance = Annotated[float, Field(ge=0, le=1)]


class Context(NamedTuple):
    batch: int  # the power of two that it reaches
    length: int
    acceptance: int


class Pulled(NamedTuple):
    when: int  # how many pulls there had been in its context
    steps: float
    tokens: float
    squares: float  # of each step's tokens, summed up
    seconds: float


Rewards = dict[Arm, list[Pulled]]


@dataclass(slots=True)
class Pull:
    """An arm that is held."""

    context: Context
    arm: Arm
    left: int  # steps
    steps: int = 0  # that were heard of
    tokens: float = 0.0
    squares: float = 0.0
    seconds: float = 0.0


@CHOOSERS.register("bandit")
class Bandit(Chooser):
    section = "7.6"

    class Config(Strict):
        depths: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (2, 4, 8)  # drafts per sequence
        hold: PositiveInt = 8  # steps of a pull
        trial: PositiveInt = 4  # sequences' steps of a pull that tries an arm, and two steps at least
        window: PositiveInt = 300  # pulls in a context after which one counts no more, if its arm had another since
        explore: Chance = 0.1  # share of pulls that try another arm, at first
        explore_last: Chance = 0.02  # the same in the end
        decay: PositiveInt = 50  # pulls of a context after which it is half way there
        max_verify: PositiveInt = 512  # tokens that a step may verify: wider arms are not offered

    config: Config

    def __init__(self, config: Any, drafters: list[str], seed: int):
        super().__init__(config, drafters, seed)
        self._random = Random(seed)
        self._rewards: dict[Context, Rewards] = {}
        self._pulls: dict[Context, int] = {}
        self._pull: Pull | None = None

    def choose(self, scene: Scene) -> Arm:
        context = _context(scene)
        if self._pull is None or self._pull.left == 0 or self._pull.context.batch != context.batch:
            if self._pull is not None and self._pull.seconds > 0:  # also one that was cut short: its steps count
                self._remember(self._pull)
            self._pull = self._begin(context, scene.batch)
        self._pull.left -= 1
        return self._pull.arm

    def heard(self, scene: Scene, arm: Arm, outcome: Outcome) -> None:
        pull = self._pull
        if pull is None or pull.arm != arm:
            return
        pull.steps += 1
        pull.tokens += outcome.emitted
        pull.squares += outcome.emitted**2
        pull.seconds += outcome.step_s

    def state(self) -> dict[str, Any]:
        rewards = [
            [list(context), list(arm), kept] for context, arms in self._rewards.items() for arm, kept in arms.items()
        ]
        pulls = [[list(context), count] for context, count in self._pulls.items()]
        return {"rewards": rewards, "pulls": pulls}

    def restore(self, state: dict[str, Any]) -> None:
        for context, (drafter, depth), kept in state["rewards"]:
            if drafter is None or drafter in self.drafters:
                arms = self._rewards.setdefault(Context(*context), {})
                arms[Arm(drafter, depth)] = [Pulled(*pulled) for pulled in kept]
        self._pulls = {Context(*context): count for context, count in state["pulls"]}

    def _begin(self, context: Context, batch: int) -> Pull:
        arms = self._offered(context, batch)
        known = {arm: kept for arm in arms if (kept := self._known_of(arm, context))}
        worths = {arm: _worth(kept) for arm, kept in known.items()}
        trial = max(2, self.config.trial // batch)
        judged = {arm: worth for arm, worth in worths.items() if len(known[arm]) >= TRIES}
        hopeless = {arm for arm in arms if _is_hopeless(arm, judged)}
        untried = [arm for arm in arms if arm not in judged and arm not in hopeless]
        if untried:
            return Pull(context, min(untried, key=lambda arm: (arm.depth, len(known.get(arm, ())))), trial)
        count = self._pulls[context] = self._pulls.get(context, 0) + 1
        best = max(worths, key=lambda arm: worths[arm] * (1 + DOUBT * _error(known[arm])))
        if len(arms) > 1 and self._random.random() < self._explores(count):
            other = self._another([arm for arm in arms if arm != best], worths)
            return Pull(context, other, 2 if other in hopeless else trial)
        return Pull(context, best, self.config.hold)

    def _another(self, arms: list[Arm], worths: dict[Arm, float]) -> Arm:
        """What was never tried counts as the best of its drafter."""
        best = max(worths.values())
        of_drafter = lambda arm: max(
            (value for other, value in worths.items() if other.drafter == arm.drafter), default=best
        )
        behind = [1 - worths.get(arm, of_drafter(arm)) / best for arm in arms]
        return self._random.choices(arms, [max(TIE, gap) ** -2 for gap in behind])[0]

    def _remember(self, pull: Pull) -> None:
        now, known = self._pulls.get(pull.context, 0), self._rewards.setdefault(pull.context, {})
        recent = [pulled for pulled in known.get(pull.arm, []) if pulled.when > now - self.config.window]
        known[pull.arm] = [*recent, Pulled(now, pull.steps, pull.tokens, pull.squares, pull.seconds)]

    def _explores(self, count: int) -> float:
        first, last = self.config.explore, self.config.explore_last
        return last + (first - last) * 0.5 ** (count / self.config.decay)

    def _offered(self, context: Context, batch: int) -> list[Arm]:
        smaller = [known for other, known in self._rewards.items() if other.batch == context.batch - 1]
        if batch > FEW and not any(map(_drafts_paid, smaller)):
            return [OFF]
        fits = [depth for depth in self.config.depths if batch * (depth + 1) <= self.config.max_verify]
        return [OFF, *(Arm(drafter, depth) for drafter in self.drafters for depth in fits)]

    def _known_of(self, arm: Arm, context: Context) -> list[Pulled]:
        """Its pulls in the context, after the sum of those in others like it."""
        own = self._rewards.get(context, {}).get(arm, [])
        alike = (known for other, known in self._rewards.items() if other.batch == context.batch and other != context)
        others = [pulled for known in alike for pulled in known.get(arm, ())]
        if not others:
            return own
        steps = min(OTHERS, sum(pulled.steps for pulled in others)) / TRIES
        each = _step_tokens(others), _step_squares(others), _step_seconds(others)
        as_pull = Pulled(0, steps, *(steps * amount for amount in each))
        return [as_pull] * TRIES + own


def _step_tokens(kept: list[Pulled]) -> float:
    return sum(pulled.tokens for pulled in kept) / sum(pulled.steps for pulled in kept)


def _step_squares(kept: list[Pulled]) -> float:
    return sum(pulled.squares for pulled in kept) / sum(pulled.steps for pulled in kept)


def _error(kept: list[Pulled]) -> float:
    """The standard error of a step's tokens, as a share of their mean."""
    mean, steps = _step_tokens(kept), sum(pulled.steps for pulled in kept)
    return math.sqrt(max(0.0, _step_squares(kept) - mean**2) / steps) / mean if mean else 0.0


def _step_seconds(kept: list[Pulled]) -> float:
    longest = HELD_UP * median_low(pulled.seconds / pulled.steps for pulled in kept)
    return sum(min(pulled.seconds, longest * pulled.steps) for pulled in kept) / sum(pulled.steps for pulled in kept)


def _worth(kept: list[Pulled]) -> float:
    """Tokens per second."""
    return _step_tokens(kept) / _step_seconds(kept)


def _drafts_paid(known: Rewards) -> bool:
    worths = {arm: _worth(kept) for arm, kept in known.items()}
    return any(worth > worths.get(OFF, math.inf) for arm, worth in worths.items() if arm != OFF)


def _is_hopeless(arm: Arm, judged: dict[Arm, float]) -> bool:
    """Its drafter did badly at every depth that is known; the smallest, where it costs least, comes first."""
    its = [value for other, value in judged.items() if other.drafter == arm.drafter]
    return bool(its) and max(its) < HOPELESS * max(judged.values())


def _context(scene: Scene) -> Context:
    accepted = scene.acceptance
    return Context(
        scene.batch.bit_length(),
        sum(scene.context >= length for length in LENGTHS),
        0 if accepted is None else 1 + sum(accepted >= bound for bound in ACCEPTANCES),
    )
