"""An update whose groups come in portions against one that has them all at once: the same figures and the same weights,
whatever the loss, and whatever goes wrong on the way."""

from itertools import pairwise

import pytest
import torch
from tests.helpers.models import random_decoder
from tests.unit.learn.helpers import group, learn_config, rules, uneven_batch
from tests.unit.learn.test_hear import Listener
from tests.unit.learn.test_memory import SmallDevice

from untail.config import LearnConfig
from untail.learn.rules import needs_whole_batch
from untail.learn.trainer import Trainer
from untail.types import Batch

VOCAB = 199
CASES = {
    "token": {"loss": "token"},
    "sequence": {"loss": "sequence"},
    "constant": {"loss": "constant"},
    "dapo": {"advantage": "dapo"},
    "a reference": {"kl": 0.2, "micro_batch_tokens": 40},
    "sampling is corrected for": {"importance": "tis", "credit": "weights"},
    "masks": {"masks": {"low_entropy": {}, "mastered": {}}},
}
CUTS = {"one by one": [1, 2, 3], "the rest teaches nothing": [1, 3], "nothing is left": [2, 4], "two": [2]}


def make(dtype=torch.float64, hear=None, **fields) -> Trainer:
    return Trainer(
        random_decoder("llama", dtype=dtype), learn_config(**{"lr": 1e-2, "warmup_steps": 0, **fields}), 0.9, hear=hear
    )


def portions(batch: Batch, cuts: list[int]) -> list[Batch]:
    """The batch cut before each of these groups."""
    return [Batch(batch.step, batch.groups[a:b]) for a, b in pairwise([0, *cuts, len(batch.groups)])]


def shuffled(step: int = 1) -> Batch:
    """The group that teaches nothing comes last."""
    a, b, c, d = uneven_batch(VOCAB).groups
    return Batch(step, [c, a, d, b])


def timeless(figures: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if not name.endswith("_s")}


def assert_same(ours: Trainer, mine: dict[str, float], whole: Trainer, theirs: dict[str, float], tolerance: float):
    mine, theirs = ({k: v for k, v in timeless(f).items() if k != "computed_tokens"} for f in (mine, theirs))
    assert mine == pytest.approx(theirs, rel=tolerance, abs=tolerance)
    for name, tensor in whole.state_dict()[0].items():
        torch.testing.assert_close(ours.state_dict()[0][name], tensor, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("case", CASES)
def test_portions_come_to_what_the_whole_batch_comes_to(case, cuts):
    """In float64 and over two updates: what the first got wrong would be in the second."""
    ours, whole = (make(**CASES[case]) for _ in range(2))
    for step in (1, 2):
        *early, rest = portions(shuffled(step), cuts)
        for portion in early:
            assert ours.learn(portion) > 0
        mine, theirs = ours.update(rest), whole.update(shuffled(step))
        assert theirs["optimizer_steps"] == 1
        assert_same(ours, mine, whole, theirs, 1e-8)


def test_in_float32_their_gradients_agree_to_rounding():
    """Told by Adam's moments, each against its own size. Not by the weights: the first step divides a gradient by
    itself, so that of one near 0 they show nothing but its rounding."""
    ours, whole = (make(torch.float32) for _ in range(2))
    first, rest = portions(uneven_batch(VOCAB), [2])
    ours.learn(first)
    mine, theirs = timeless(ours.update(rest)), timeless(whole.update(uneven_batch(VOCAB)))
    assert mine == pytest.approx({**theirs, "computed_tokens": mine["computed_tokens"]}, rel=1e-5, abs=1e-5)
    got, expected = ours.state_dict()[0], whole.state_dict()[0]
    for name in (name for name in expected if not name.startswith("weight.")):
        assert expected[name].norm() > 0
        assert (got[name] - expected[name]).norm() < 1e-5 * expected[name].norm(), name


def test_nothing_moves_before_the_batch_is_whole():
    trainer = make()
    before = {name: tensor.clone() for name, tensor in trainer.state_dict()[0].items()}
    trainer.learn(uneven_batch(VOCAB))
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.state_dict()[0].items())


@pytest.mark.parametrize("late", [False, True], ids=["before", "in mid-backward"])
def test_where_memory_runs_out_in_a_later_portion_the_earlier_ones_are_not_lost(monkeypatch, late):
    heard = Listener(), Listener()
    ours, whole = (make(hear=listener, kl=0.1) for listener in heard)
    theirs = whole.update(shuffled())
    device = SmallDevice(monkeypatch, keeps=60, late=late)
    small, large, rest = portions(Batch(1, [*shuffled().groups[1:], shuffled().groups[0]]), [1, 3])
    ours.learn(small)
    assert device.failures == 0
    ours.learn(large)
    mine = ours.update(rest)
    assert device.failures > 0
    assert_same(ours, mine, whole, theirs, 1e-8)
    assert sorted(heard[0].names) == sorted(heard[1].names), "each once"


def forget_by_a_step(trainer: Trainer) -> None:
    """Nothing: the next portion is of another step."""


def forget_by_a_state(trainer: Trainer) -> None:
    trainer.load_state_dict(*make().state_dict())


@pytest.mark.parametrize(("forget", "step"), [(forget_by_a_step, 2), (forget_by_a_state, 1)])
def test_portions_that_are_of_something_else_are_forgotten(forget, step):
    ours, whole = make(), make()
    ours.learn(Batch(1, [group("x", [9, 4], [1.0, 0.0], VOCAB)]))
    forget(ours)
    assert_same(ours, ours.update(shuffled(step)), whole, whole.update(shuffled(step)), 0.0)


def test_drift_is_that_of_the_whole_batch():
    """The portion alone would have been dropped, and all together are not; then the other way round."""
    near, far = (Batch(1, [group(name, [30, 30], [1.0, 0.0], VOCAB)]) for name in "nf")
    for trajectory in far.trajectories:
        trajectory.behaviour_logprob = [-90.0] * 30
    drifts = [make().update(batch)["drift_mean"] for batch in (near, far)]
    for bound, dropped in ((sum(drifts) / 2 + 1, 0), (sum(drifts) / 2 - 1, 1)):
        assert drifts[0] < bound < drifts[1]
        for first, rest in ((far, near), (near, far)):
            trainer = make(max_drift=float(torch.tensor(bound, dtype=torch.float64).exp()))
            trainer.learn(first)
            figures = trainer.update(rest)
            assert (figures["dropped_minibatches"], figures["optimizer_steps"]) == (dropped, 1 - dropped)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, None),
        ({"advantage": "dapo", "kl": 0.1, "credit": "weights", "importance": "tis"}, None),
        ({"advantage": "ppo"}, "learn.advantage = 'ppo' trains its critic on the whole batch first"),
        ({"updates": 2}, "learn.updates = 2 deals the whole batch out"),
        ({"prune": {"share": 0.3}}, "learn.prune.share = 0.3 is of all tokens of a batch"),
    ],
)
def test_what_needs_the_whole_batch(fields, said):
    found = needs_whole_batch(LearnConfig(**fields), rules(**fields))
    assert found is None if said is None else said in found


def test_an_advantage_of_somebody_else_that_looks_at_the_whole_batch_needs_it():
    own = rules()
    own.advantage.__class__ = type("Whitened", (type(own.advantage),), {"over_batch": lambda self, a, used: a})
    assert "learn.advantage = 'grpo' compares all tokens of a batch" in needs_whole_batch(LearnConfig(), own)
