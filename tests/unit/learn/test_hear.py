"""Whoever listens to the learner's pass gets every hidden state of it once, and costs it nothing."""

import pytest
import torch
from tests.helpers.models import random_decoder
from tests.unit.learn.helpers import DenseAttention, learn_config, uneven_batch

from untail.config import PruneConfig
from untail.learn.trainer import Trainer

VOCAB = 199


class Listener:
    def __init__(self):
        self.heard = []

    def __call__(self, micro, hidden_TD):
        assert not hidden_TD.requires_grad
        self.heard.append((micro, hidden_TD.clone()))

    @property
    def names(self) -> list[str]:
        return sorted(sample.trajectory.id for micro, _ in self.heard for sample in micro.samples)


@pytest.mark.parametrize("fields", [{}, {"micro_batch_tokens": 40}, {"recompute": True}, {"updates": 2}])
def test_every_sequence_that_is_trained_is_heard_once(fields):
    listener, decoder = Listener(), random_decoder("llama")
    Trainer(decoder, learn_config(**fields), hear=listener).update(uneven_batch(VOCAB))
    trained = [f"{group}.{i}" for group, members in (("a", 4), ("c", 4), ("d", 2)) for i in range(members)]
    assert listener.names == trained


def test_what_is_heard_are_the_models_hidden_states():
    """Those before the update: sequence by sequence, from a plain pass of a copy."""
    listener, before = Listener(), random_decoder("llama")
    Trainer(random_decoder("llama"), learn_config(), hear=listener).update(uneven_batch(VOCAB))
    for micro, hidden_TD in listener.heard:
        for index_N in micro.unrolled_U.split(micro.lengths):
            ids_N = micro.ids_T[index_N]
            plain = before(ids_N, torch.arange(len(ids_N)), DenseAttention())
            torch.testing.assert_close(hidden_TD[index_N], plain, atol=1e-4, rtol=1e-4)


def test_no_pass_is_made_for_it_and_nothing_else_changes(monkeypatch):
    outcomes = []
    for listener in (None, Listener()):
        decoder, passes = random_decoder("llama"), []
        real = decoder.forward
        monkeypatch.setattr(decoder, "forward", lambda *args, real=real, passes=passes: passes.append(0) or real(*args))
        Trainer(decoder, learn_config(updates=2), hear=listener).update(uneven_batch(VOCAB))
        outcomes.append((len(passes), [parameter.detach() for parameter in decoder.parameters()]))
    (quiet, without), (heard, with_it) = outcomes
    assert quiet == heard
    assert all(torch.equal(*pair) for pair in zip(without, with_it, strict=True))


def test_of_constant_positions_nothing_is_heard():
    """And the looks at the exact gradient are not heard either."""
    listener, prune = Listener(), PruneConfig(share=0.4, how="detach", cosine_every=1)
    Trainer(random_decoder("llama"), learn_config(prune=prune), hear=listener).update(uneven_batch(VOCAB))
    for micro, hidden_TD in listener.heard:
        assert len(hidden_TD) == micro.live
    assert len(listener.names) == len(set(listener.names))
    assert any(micro.live < len(micro.ids_T) for micro, _ in listener.heard)
