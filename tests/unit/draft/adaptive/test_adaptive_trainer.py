"""What trains the adaptive drafter: when it may, and what it gives."""

from dataclasses import replace

import pytest
import torch
from tests.unit.draft.adaptive.helpers import TOY, capture, random_model, toy_target

from untail.draft.adaptive.drafter import Adaptive
from untail.draft.adaptive.head import SEEN
from untail.draft.adaptive.target import Ends
from untail.draft.adaptive.trainer import AdaptiveTrainer


def make(target=None, **fields) -> AdaptiveTrainer:
    return AdaptiveTrainer(Adaptive.Config(**fields), target or toy_target())


def test_it_trains_while_few_slots_are_busy_in_a_rollout():
    trainer = make(idle_below=0.25)
    is_allowed = trainer.spot._allowed.is_set
    trainer.occupied(0.0)
    assert not is_allowed(), "before a rollout has begun"
    trainer.begin_rollout()
    for share, allowed in [(0.2, True), (0.25, False), (1.0, False), (0.0, True)]:
        trainer.occupied(share)
        assert is_allowed() == allowed
    trainer.end_rollout()
    trainer.occupied(0.0)
    assert not is_allowed(), "whoever says so: the weights are being written"
    trainer.after_update()
    trainer.occupied(0.0)
    assert not is_allowed(), "another run may have the device now"
    trainer.begin_rollout()
    assert is_allowed()


def test_slices_after_each_update():
    trainer = make(slices=3)
    trainer.data._take([capture(toy_target(), 30)])
    trainer.after_update()
    assert trainer.spot.slices == 3
    trainer.data._take([capture(toy_target(), 20)])
    assert len(trainer.data._earlier) == 1


def test_what_it_gives_is_whole_and_given_once(tmp_path):
    trainer = make(slices=1)
    trainer.after_update()
    assert trainer.fresh() is None, "there was nothing to learn from"
    trainer.data._take([capture(toy_target(), 30)])
    trainer.after_update()
    assert trainer.fresh().keys() == {*random_model().state_dict(), SEEN}
    assert trainer.fresh() is None
    trainer.export(tmp_path)
    begun = make(start=str(tmp_path))
    begun.spot.head.see(torch.tensor([1, 2]))
    begun.after_update()
    assert begun.fresh()[SEEN].sum() == 2, "what is common goes out also where nothing was learned"


def test_it_goes_on_from_a_checkpoint_with_what_it_has_seen():
    saved, resumed = make(slices=2), make()
    saved.data._take([capture(toy_target(), 30)])
    saved.spot.head.see(torch.tensor([4, 4, 9]))
    saved.after_update()
    resumed.load_state_dict(*saved.state_dict())
    ours, theirs = saved.fresh(), resumed.fresh()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@pytest.mark.parametrize("tied", [True, False])
def test_beside_a_sharded_target_it_learns_the_same_from_both_ends_alone(tied):
    shape = replace(TOY, tied=tied)
    target = toy_target(shape=shape)
    whole, ends = make(target, slices=3), Ends(toy_target(seed=1, shape=shape))
    head = {} if tied else {"lm_head.weight": target.head}
    ends.update({"model.embed_tokens.weight": target.embed, **head})
    apart = make(ends, slices=3)
    for trainer in (whole, apart):
        trainer.data._take([capture(target, 30)])
        trainer.after_update()
    ours, theirs = whole.fresh(), apart.fresh()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
