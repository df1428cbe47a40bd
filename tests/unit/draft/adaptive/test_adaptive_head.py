"""The head of the common tokens: the target's own rows, of those that were seen most, in the order of their ids."""

from dataclasses import replace

import pytest
import torch
from tests.unit.draft.adaptive.helpers import TOY, toy_target

from untail.draft.adaptive import head as head_module
from untail.draft.adaptive.head import Head


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(head_module, "MOST", 4)


def test_before_anything_was_seen_it_is_the_target_s(small):
    target = toy_target()
    head = Head(target)
    head.refresh()
    hidden = torch.randn(3, TOY.hidden)
    torch.testing.assert_close(head.logits(hidden), target.logits(hidden))
    assert head.token_ids(torch.tensor([7, 30])).tolist() == [7, 30]


def test_what_was_seen_most_are_the_candidates(small):
    target = toy_target()
    head = Head(target)
    head.see(torch.tensor([9, 9, 30, 30, 30, 2, 2, 17, 5, 5]))
    head.refresh()
    assert head.token_ids(torch.arange(4)).tolist() == [2, 5, 9, 30]
    hidden = torch.randn(3, TOY.hidden)
    torch.testing.assert_close(head.logits(hidden), target.logits(hidden)[:, [2, 5, 9, 30]])


def test_it_follows_the_target_s_weights_when_told(small):
    target = toy_target()
    head = Head(target)
    head.see(torch.arange(4))
    head.refresh()
    with torch.no_grad():
        target.output_weight.mul_(2)
    hidden = torch.randn(1, TOY.hidden)
    torch.testing.assert_close(2 * head.logits(hidden), target.logits(hidden)[:, :4])
    head.refresh()
    torch.testing.assert_close(head.logits(hidden), target.logits(hidden)[:, :4])


def test_what_it_has_seen_survives_a_checkpoint(small):
    target = toy_target()
    head, other = Head(target), Head(target)
    head.see(torch.tensor([9, 30, 2, 17]))
    other.restore(head.state())
    assert other.token_ids(torch.arange(4)).tolist() == [2, 9, 17, 30]


def test_a_small_vocabulary_is_taken_whole(monkeypatch):
    monkeypatch.setattr(head_module, "MOST", 16)
    target = toy_target(shape=replace(TOY, vocab=31))
    head = Head(target)
    head.see(torch.tensor([3]))
    head.refresh()
    assert head.rows_CD.data_ptr() == target.output_weight.data_ptr()
