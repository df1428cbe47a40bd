"""Drafters that learn, all at once: what belongs to one carries its name."""

import pytest

from untail.config import DraftConfig
from untail.draft import build as drafting
from untail.draft.base import DraftTrainer
from untail.draft.training import DraftTraining


class Counting(DraftTrainer):
    """Knows a number, and tells it once."""

    def __init__(self, number):
        self.number, self.told = number, False

    def after_update(self):
        self.number, self.told = self.number + 1, False

    def fresh(self):
        learned = None if self.told else {"number": self.number}
        self.told = True
        return learned

    def figures(self):
        return {"count": self.number}

    def state_dict(self):
        return {"weight": self.number}, {"number": self.number}

    def load_state_dict(self, tensors, numbers):
        assert tensors == {"weight": numbers["number"]}
        self.number = numbers["number"]


def make(**numbers) -> DraftTraining:
    return DraftTraining({name: Counting(number) for name, number in numbers.items()})


def test_what_one_learned_is_told_once_and_the_others_with_it():
    training = make(a=1, ab=5)
    assert training.fresh() == {"a": {"number": 1}, "ab": {"number": 5}}
    assert training.fresh() == {}
    assert training.after_update() == {"a_count": 2, "ab_count": 6}
    assert training.fresh() == {"a": {"number": 2}, "ab": {"number": 6}}


def test_a_state_goes_back_to_whom_it_belongs():
    saved, resumed = make(a=1, ab=5), make(a=0, ab=0)
    tensors, numbers = saved.state_dict()
    resumed.load_state_dict({**tensors, "master.embed": 0}, {**numbers, "chooser": {}})
    assert [trainer.number for trainer in resumed.trainers.values()] == [1, 5]


def test_without_anybody_who_learns_there_is_nothing():
    training = DraftTraining()
    assert not training
    assert (training.fresh(), training.after_update(), training.state_dict()) == ({}, {}, ({}, {}))


@pytest.mark.parametrize(
    ("drafters", "learn"),
    [({}, []), ({"ngram": {}}, []), ({"adaptive": False}, []), ({"ngram": {}, "adaptive": {"lr": 1}}, ["adaptive"])],
)
def test_who_learns_of_a_recipes_drafters(drafters, learn):
    assert list(drafting.learning(DraftConfig(drafters=drafters))) == learn
