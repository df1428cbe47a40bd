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
    figures = training.after_update()
    assert figures == {"a_count": 2, "a_trainer_failures": 0, "ab_count": 6, "ab_trainer_failures": 0}
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


CALLS = {
    "start": (),
    "begin_rollout": (),
    "occupied": (0.5,),
    "end_rollout": (),
    "hear_pass": (None, None),
    "after_update": (),
    "fresh": (),
    "close": (),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_trainer_that_raises_is_counted_and_the_others_hear_of_the_same(call, monkeypatch, capsys):
    training, heard = make(broken=1, sound=5), []

    def breaks(*about):
        raise RuntimeError(f"no {call} here")

    monkeypatch.setattr(training.trainers["broken"], call, breaks)
    monkeypatch.setattr(training.trainers["sound"], call, lambda *about: heard.append(about))
    for _ in range(2):
        getattr(training, call)(*CALLS[call])
    assert heard == [CALLS[call]] * 2
    assert training.failures == {"broken": 2, "sound": 0}
    said = capsys.readouterr().err
    assert said.count(f"draft.drafters.broken failed in {call}: RuntimeError: no {call} here; the run goes on") == 1


def test_what_a_broken_one_would_have_told_is_left_out_and_its_failures_are_in_the_figures(monkeypatch):
    training = make(broken=1, sound=5)
    for call in ("fresh", "figures"):
        monkeypatch.setattr(training.trainers["broken"], call, lambda: 1 / 0)
    assert training.fresh() == {"sound": {"number": 5}}
    assert training.after_update() == {"broken_trainer_failures": 2, "sound_count": 6, "sound_trainer_failures": 0}


def test_several_are_exported_to_folders_of_their_own(tmp_path):
    made = {}
    for training in (make(a=1), make(a=1, ab=5)):
        for trainer in training.trainers.values():
            trainer.export = lambda folder, trainer=trainer: made.setdefault(folder, trainer.number)
        training.export(tmp_path)
    assert made == {tmp_path: 1, tmp_path / "a": 1, tmp_path / "ab": 5}


@pytest.mark.parametrize(
    ("drafters", "learn"),
    [({}, []), ({"ngram": {}}, []), ({"adaptive": False}, []), ({"ngram": {}, "adaptive": {"lr": 1}}, ["adaptive"])],
)
def test_who_learns_of_a_recipes_drafters(drafters, learn):
    assert list(drafting.learning(DraftConfig(drafters=drafters))) == learn
