"""Drafters and choosers for tests: one that knows what comes, one that raises, and a choice that never rests."""

import random

from untail.draft.base import Drafter, LearningDrafter
from untail.draft.choose.base import OFF, Arm, Chooser, Scene
from untail.draft.speculation import Speculator
from untail.engine.draft import Ask, Draft


class Knowing(Drafter):
    """What comes next, by prompt, with a wrong token now and then."""

    def __init__(self, responses: dict[tuple[int, ...], list[int]], vocab: int, wrong: float = 0.2):
        super().__init__(None)
        self.responses = responses
        self.vocab = vocab
        self.wrong = wrong
        self.random = random.Random(0)

    def propose(self, asks: list[Ask]) -> list[Draft]:
        return [Draft(self.guess(ask)) for ask in asks]

    def guess(self, ask: Ask) -> list[int]:
        sequence = ask.sequence
        response = self.responses[tuple(sequence.tokens[: sequence.prompt_length])]
        done = len(sequence.tokens) - sequence.prompt_length
        return [
            self.random.randrange(self.vocab) if self.random.random() < self.wrong else token
            for token in response[done : done + ask.most]
        ]


class Raising(Drafter):
    """Fails for some sequences, and whenever it is told something of them."""

    def __init__(self, fails: set[str]):
        super().__init__(None)
        self.fails = fails

    def propose(self, asks: list[Ask]) -> list[Draft]:
        for ask in asks:
            self.hear(ask.sequence, [], 0, 0)
        return [Draft([1] * ask.most) for ask in asks]

    def hear(self, sequence, tokens, drafted, accepted) -> None:
        if sequence.id in self.fails:
            raise RuntimeError("this drafter is broken")


class Switching(Chooser):
    """Every drafter at several depths, and nobody, in turn: a new arm every few steps."""

    def __init__(self, drafters: list[str], depths: tuple[int, ...] = (1, 5, 20), hold: int = 3):
        super().__init__(None, drafters, seed=0)
        self.arms = [OFF, *(Arm(name, depth) for name in drafters for depth in depths)]
        self.hold = hold
        self.steps = 0

    def choose(self, scene: Scene) -> Arm:
        self.steps += 1
        return self.arms[self.steps // self.hold % len(self.arms)]


class Always(Chooser):
    def __init__(self, drafter: str, depth: int = 6):
        super().__init__(None, [drafter], seed=0)
        self.arm = Arm(drafter, depth)

    def choose(self, scene: Scene) -> Arm:
        return self.arm


def let_guess(drafter: Drafter) -> None:
    """Also before it has learned anything. Pre: it is attached."""
    if isinstance(drafter, LearningDrafter):
        trainer = drafter.trainer(drafter.config, drafter.guesser.runner.decoder)
        trainer.spot.publish()
        drafter.load(trainer.fresh())


def switching(name: str, drafter: Drafter) -> Speculator:
    return Speculator({name: drafter}, Switching([name]))


def always(name: str, drafter: Drafter, depth: int = 6) -> Speculator:
    return Speculator({name: drafter}, Always(name, depth))
