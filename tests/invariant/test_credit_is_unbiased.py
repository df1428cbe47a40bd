"""Pruning and copying do not bias the gradient under credit `weights`; under `none` they do.

A problem of two steps with a known gradient. Two siblings each take a first action; at the boundary each outlives the
pruning with a probability that depends on its action; if one alone is left, a copy of it at another temperature takes
the other's place; who is left takes a second action. What a group of given draws becomes goes through the learner's own
code once for each of the draws that there are, so that 20,000 groups are a matter of picking.
"""

import math
from itertools import product

import numpy as np
import pytest

from tests.unit.learn.helpers import rules
from untail.learn.sample import normalise, samples_of
from untail.types import Group, Prompt, Trajectory

FIRST = np.array([0.4, -0.3])  # logits of the first action
SECOND = np.array([[0.2, -0.5], [-0.7, 0.6]])  # of the second, for each first
REWARD = np.array([[1.0, -0.4], [0.3, 2.0]])
SURVIVAL = np.array([0.25, 0.8])
HEAT = 1.4
BASELINE = 0.3
GROUPS = 20_000
PROMPT = Prompt("p", "toy", "", (0,))


def log_softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    scaled = logits / temperature
    return scaled - np.log(np.exp(scaled).sum())


def gradient_of_log(first: int, second: int | None) -> np.ndarray:
    """Of log pi(first) and log pi(second | first) in all six logits, one row per token."""
    rows = np.zeros((1 if second is None else 2, 6))
    rows[0, :2] = np.eye(2)[first] - np.exp(log_softmax(FIRST))
    if second is not None:
        rows[1, 2 + 2 * first : 4 + 2 * first] = np.eye(2)[second] - np.exp(log_softmax(SECOND[first]))
    return rows


def true_gradient() -> np.ndarray:
    total = np.zeros(6)
    for first, second in product(range(2), repeat=2):
        probability = math.exp(log_softmax(FIRST)[first] + log_softmax(SECOND[first])[second])
        total += probability * REWARD[first, second] * gradient_of_log(first, second).sum(0)
    return total


def member(name: str, first: int, second: int | None, heat: float = 1.0) -> Trajectory:
    """`second` is None for one that was pruned."""
    policy, behaviour, tokens = [log_softmax(FIRST)[first]], [log_softmax(FIRST)[first]], [first]
    if second is not None:
        tokens.append(second)
        policy.append(log_softmax(SECOND[first])[second])
        behaviour.append(log_softmax(SECOND[first], heat)[second])
    made = Trajectory(name, PROMPT, 0, tokens, policy, behaviour, from_model=[True] * len(tokens))
    made.reward = -1.0 if second is None else REWARD[first, second]
    made.survival = 0.0 if second is None else SURVIVAL[first]
    made.stopped = "outlier" if second is None else None
    return made


def outcomes() -> list[tuple[float, Group]]:
    """All that can become of a group, with its probability."""
    every = []
    for firsts in product(range(2), repeat=2):
        for alive in product([True, False], repeat=2):
            chance = math.prod(math.exp(log_softmax(FIRST)[first]) for first in firsts)
            chance *= math.prod(
                SURVIVAL[f] if lives else 1 - SURVIVAL[f] for f, lives in zip(firsts, alive, strict=True)
            )
            lone = sum(alive) == 1
            for seconds in product(range(2), repeat=sum(alive) + lone):
                probability, members, left = chance, [], list(seconds)
                for number, (first, lives) in enumerate(zip(firsts, alive, strict=True)):
                    second = left.pop(0) if lives else None
                    members.append(member(str(number), first, second))
                    if lives:
                        probability *= math.exp(log_softmax(SECOND[first])[second])
                if lone:
                    parent, second = members[alive.index(True)], left.pop(0)
                    copy = member("copy", parent.tokens[0], second, HEAT)
                    copy.parent, copy.forked_at = parent.id, 1
                    members.append(copy)
                    probability *= math.exp(log_softmax(SECOND[parent.tokens[0]], HEAT)[second])
                every.append((probability, Group("g", PROMPT, members)))
    return every


def estimate(group: Group, credit: str) -> np.ndarray:
    """The gradient that the learner takes from this group, with a mean over siblings and a constant baseline."""
    advantage = {"name": "reinforce", "baseline": BASELINE}
    samples = samples_of(group, rules(advantage=advantage, credit=credit))
    divisor = normalise(samples, "constant", 1)
    total = np.zeros(6)
    for sample in samples:
        tokens = sample.trajectory.tokens
        slopes = gradient_of_log(tokens[0], tokens[1] if len(tokens) > 1 else None)
        total += (sample.weight_N * sample.advantage_N) @ slopes
    return total / divisor if divisor else total


def estimates(credit: str) -> tuple[np.ndarray, np.ndarray]:
    probabilities, groups = zip(*outcomes(), strict=True)
    return np.array(probabilities), np.array([estimate(group, credit) for group in groups])


def errors_in_standard_errors(credit: str, seed: int) -> np.ndarray:
    probabilities, each = estimates(credit)
    drawn = each[np.random.default_rng(seed).choice(len(each), GROUPS, p=probabilities)]
    return np.abs(drawn.mean(0) - true_gradient()) / (drawn.std(0, ddof=1) / math.sqrt(GROUPS))


def test_the_outcomes_are_all_there_are():
    probabilities, _ = estimates("none")
    assert probabilities.sum() == pytest.approx(1, abs=1e-12)


def test_weights_are_unbiased_over_20000_groups():
    assert errors_in_standard_errors("weights", seed=0).max() < 3


def test_none_is_not_and_the_check_can_tell():
    assert errors_in_standard_errors("none", seed=0).max() > 10


def test_in_expectation_weights_are_exact():
    probabilities, each = estimates("weights")
    assert probabilities @ each == pytest.approx(true_gradient(), abs=1e-12)


@pytest.mark.parametrize("credit", ["once", "progressive", "none"])
def test_in_expectation_the_others_are_off(credit):
    probabilities, each = estimates(credit)
    assert np.abs(probabilities @ each - true_gradient()).max() > 0.02
