"""What copies weigh: each rule against a loop over tokens, for families whose members may be missing or masked."""

import math

import pytest
from tests.unit.learn.helpers import group, rules

from untail.learn.credit import CREDITS
from untail.learn.sample import normalise, samples_of
from untail.types import Group

# name: (parent, position of the fork, length). A forks B and C at 4, B forks D at 6, A forks E at 8; F is alone.
FAMILY = {
    "A": (None, 0, 12),
    "B": ("A", 4, 10),
    "C": ("A", 4, 7),
    "D": ("B", 6, 9),
    "E": ("A", 8, 11),
    "F": (None, 0, 5),
}
GONE = [(), ("A",), ("B",), ("A", "B"), ("A", "B", "C", "E", "F"), tuple(FAMILY)]


def family(without=()) -> Group:
    present = {name: place for name, place in FAMILY.items() if name not in without}
    rewards = [float(number % 2) for number in range(len(present))]
    made = group("g", [length for _, _, length in present.values()], rewards, 50)
    for trajectory, (name, (parent, position, _)) in zip(made.trajectories, present.items(), strict=True):
        trajectory.id, trajectory.parent, trajectory.forked_at = name, parent, position
    return made


def credit(name: str, **fields):
    return CREDITS.build({"name": name, **fields}, "learn.credit")


def owner(name: str, position: int, known: set[str]) -> str:
    """For whom the token was generated, as far as those who are there tell."""
    parent, fork, _ = FAMILY[name]
    if name not in known or parent is None or position >= fork:
        return name
    return owner(parent, position, known)


@pytest.mark.parametrize("without", GONE, ids=str)
def test_once(without):
    members = family(without)
    known = {trajectory.id for trajectory in members.trajectories}
    for trajectory, weights in zip(members.trajectories, credit("once").weigh(members), strict=True):
        for position, weight in enumerate(weights):
            mine = owner(trajectory.id, position, known)
            sharers = [
                other.id
                for other in members.trajectories
                if position < len(other.tokens) and owner(other.id, position, known) == mine
            ]
            assert weight == pytest.approx(1 / len(sharers), abs=1e-15)
            assert trajectory.id in sharers


def test_once_by_hand():
    weights = dict(zip("ABCDEF", credit("once").weigh(family()), strict=True))
    fifth, half = 1 / 5, 1 / 2
    assert weights["A"].tolist() == [fifth] * 4 + [half] * 4 + [1] * 4
    assert weights["B"].tolist() == [fifth] * 4 + [half] * 2 + [1] * 4
    assert weights["C"].tolist() == [fifth] * 4 + [1] * 3
    assert weights["D"].tolist() == [fifth] * 4 + [half] * 2 + [1] * 3
    assert weights["F"].tolist() == [1] * 5


def test_a_masked_member_shares_nothing():
    members = family()
    members.trajectories[0].masked = True
    weights = dict(zip("ABCDEF", credit("once").weigh(members), strict=True))
    assert weights["E"].tolist() == [1 / 4] * 4 + [1] * 7


def test_progressive():
    weights = dict(zip("ABCDEF", credit("progressive").weigh(family()), strict=True))
    for name, fork in {"A": 8, "B": 6, "C": 4, "D": 6, "E": 8, "F": 0}.items():
        assert weights[name].tolist() == [0.25] * fork + [1.0] * (FAMILY[name][2] - fork)
    orphan = credit("progressive", before=0.5).weigh(family(("A", "B", "C", "E", "F")))
    assert orphan[0].tolist() == [0.5] * 6 + [1.0] * 3


def test_none():
    assert all((weights == 1).all() for weights in credit("none").weigh(family()))


@pytest.mark.parametrize("name", CREDITS.names())
@pytest.mark.parametrize("without", GONE, ids=str)
def test_a_family_with_members_missing_has_finite_samples(name, without):
    samples = samples_of(family(without), rules(credit=name))
    normalise(samples, "constant", 10)
    for sample in samples:
        assert len(sample.weight_N) == len(sample.trajectory.tokens)
        assert all(map(math.isfinite, sample.weight_N))


@pytest.mark.parametrize("name", CREDITS.names())
def test_without_copies_every_token_weighs_one(name):
    members = group("g", [3, 9, 0], [1.0, 0.0, 1.0], 50)
    assert [weights.tolist() for weights in credit(name).weigh(members)] == [[1.0] * 3, [1.0] * 9, []]


# ---- weights --------------------------------------------------------------------------------------------------------


def test_a_fork_splits_the_weight_among_all_that_go_on():
    """A, B and C go on from 4: a third each. From 6 B and D: half of that. From 8 A and E: likewise."""
    weights = dict(zip("ABCDEF", credit("weights").weigh(family()), strict=True))
    shares = {"A": 1 / 6, "B": 1 / 6, "C": 1 / 3, "D": 1 / 6, "E": 1 / 6, "F": 1}
    for name, share in shares.items():
        assert weights[name] == pytest.approx(share, abs=1e-15)
    assert sum(shares[name] for name in "ABCDE") == pytest.approx(1)


def test_a_parent_that_is_gone_takes_its_share_along():
    weights = dict(zip("BCDEF", credit("weights").weigh(family(("A",))), strict=True))
    for name, share in {"B": 1 / 6, "C": 1 / 3, "D": 1 / 6, "E": 1 / 6, "F": 1}.items():
        assert weights[name] == pytest.approx(share, abs=1e-15)


def test_survival_and_sampling_ratio():
    members = family()
    by_id = {trajectory.id: trajectory for trajectory in members.trajectories}
    by_id["C"].survival, by_id["B"].survival = 0.5, 0.0
    by_id["C"].behaviour_logprob = [logprob - 0.1 for logprob in by_id["C"].policy_logprob]
    by_id["C"].from_model[5] = False
    weights = dict(zip("ABCDEF", credit("weights").weigh(members), strict=True))
    assert weights["C"] == pytest.approx(1 / 3 / 0.5 * math.exp(0.1 * 6), abs=1e-12)
    assert weights["B"].tolist() == [0.0] * 10
    assert weights["D"] == pytest.approx(1 / 6, abs=1e-15), "its copy was made before"


def test_the_mean_counts_originals_alone():
    samples = samples_of(family(), rules(credit="weights"))
    assert [sample.counts for sample in samples] == [1, 0, 0, 0, 0, 1]
    assert all(sample.is_corrected for sample in samples)
    divisor = normalise(samples, "constant", 10)
    assert samples[-1].weight_N / divisor == pytest.approx(1 / (2 * 10))
