"""The packed gradient is that of a plain loop over sequences, however the batch is cut."""

import pytest
import torch

from tests.helpers.models import FAMILIES, random_decoder
from tests.unit.learn.helpers import assert_close, gradient, gradient_of_update, learn_config, plain_loss, uneven_batch
from untail.learn.trainer import Trainer

TEMPERATURE = 0.7
METHODS = [("grpo", None), ("grpo", "sequence"), ("grpo", "constant"), ("dr_grpo", None), ("dr_grpo", "token")]
METHODS += [("rloo", None), ("dapo", None), ("reinforce", None)]


def plain_gradient(decoder, batch, config):
    plain_loss(decoder, batch, config, TEMPERATURE).backward()
    return gradient(decoder)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_packed_equals_a_loop_over_sequences(family, dtype, tolerance, monkeypatch):
    decoder = random_decoder(family, dtype=dtype)
    batch, config = uneven_batch(decoder.shape.vocab), learn_config(micro_batch_tokens=70, logit_rows=16)
    ours = gradient_of_update(Trainer(decoder, config, TEMPERATURE), batch, monkeypatch)
    assert_close(ours, plain_gradient(decoder, batch, config), tolerance)


@pytest.mark.parametrize(("advantage", "loss"), METHODS)
def test_each_method(advantage, loss, monkeypatch):
    decoder = random_decoder("llama", dtype=torch.float64)
    config = learn_config(advantage={"name": advantage}, loss=loss, loss_length=33, micro_batch_tokens=50)
    batch = uneven_batch(decoder.shape.vocab)
    ours = gradient_of_update(Trainer(decoder, config, TEMPERATURE), batch, monkeypatch)
    assert_close(ours, plain_gradient(decoder, batch, config), 1e-8)


@pytest.mark.parametrize("micro_batch_tokens", [1, 40, 100])
def test_the_cut_into_micro_batches_changes_nothing(micro_batch_tokens, monkeypatch):
    decoder = random_decoder("llama")
    batch = uneven_batch(decoder.shape.vocab)
    cut, whole = (
        gradient_of_update(Trainer(decoder, learn_config(micro_batch_tokens=tokens)), batch, monkeypatch)
        for tokens in (micro_batch_tokens, 10_000)
    )
    assert_close(cut, whole, 1e-5)
