"""A learner of several ranks, each a process: it learns what one alone does, and either goes on from the other."""

from unittest.mock import patch

import pytest
import torch
from tests.helpers.flowing import small
from tests.helpers.here_cluster import HereCluster
from tests.unit.learn.helpers import group

from untail.draft.adaptive.export import load
from untail.engine.models.load import load_model
from untail.flow.engine_worker import POLICY
from untail.flow.far_drafters import name_of
from untail.flow.learner_worker import LearnerWorker
from untail.flow.local import LocalCluster
from untail.flow.weights import fetch
from untail.types import Batch

VOCAB = 200
BATCHES = [
    Batch(1, [group("a", [20, 9, 40, 2], [0.0, 1.0, 1.0, 0.3], VOCAB), group("b", [5, 6], [1.0, 0.0], VOCAB)]),
    Batch(2, [group("c", [9, 30], [1.0, 0.0], VOCAB)]),
]
RECIPE = small(learn__lr=1e-3, learn__max_drift=1e30)  # the batches are nobody's answers


@pytest.fixture(scope="module")
def cluster():
    made = LocalCluster(1)
    yield made
    made.close()


def learner(cluster, world, name, recipe=RECIPE):
    made = cluster.group(LearnerWorker, recipe, devices=[cluster.devices[:1]] * world, name=name)
    if world > 1:
        made.meet(made[0].free_address().wait()).wait(60)
    return made


def learn(made, batches):
    """Losses, and the weights that engines get."""
    losses = [made.update(batch).wait(60)[0]["loss"] for batch in batches]
    return losses, dict(fetch(made._caller.cluster.link, POLICY, batches[-1].step)[1].tensors)


@pytest.mark.slow
def test_two_ranks_learn_what_one_does_and_either_goes_on_from_the_other(cluster, tmp_path):
    alone, two = learner(cluster, 1, "alone"), learner(cluster, 2, "two")
    learn(alone, BATCHES[:1])
    saved = two.state_dict().wait(60)[0]
    begun = alone.state_dict().wait(60)[0]
    assert saved[0].keys() == begun[0].keys()
    assert all(saved[0][name].shape == tensor.shape for name, tensor in begun[0].items())
    two.load_state_dict(*begun, 0).wait(60)
    after = two.state_dict().wait(60)[0]
    assert all(torch.equal(after[0][name], tensor) for name, tensor in begun[0].items())
    (loss,), theirs = learn(two, BATCHES[1:])
    (expected,), ours = learn(alone, [Batch(3, BATCHES[1].groups)])
    assert loss == pytest.approx(expected, abs=1e-5)
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor, atol=1e-5, rtol=0)
    two.export(tmp_path / "model").wait(60)
    exported = load_model(str(tmp_path / "model"), "cpu").decoder
    torch.testing.assert_close(exported.embed, theirs["model.embed_tokens.weight"])


def test_off_its_device_it_gives_up_what_only_an_update_needs():
    here, calls = HereCluster(1), []
    made = here.group(LearnerWorker, RECIPE, devices=[[0]], name="learner")
    trainer = here.groups["learner"].worker(0).trainer
    assert made.footprint().wait(60) == [float(trainer.bytes)]
    with patch.multiple(trainer, sleep=lambda: calls.append("sleep"), wake=lambda: calls.append("wake")):
        for method in ("offload", "onload"):
            getattr(made, method)().wait(60)
    assert calls == ["sleep", "wake"]
    here.close()


@pytest.mark.slow
def test_the_first_of_two_ranks_trains_the_drafter_beside_whole_ends_of_the_target(cluster, tmp_path):
    settings = {"draft__drafters__adaptive__slices": 2, "draft__drafters__adaptive__idle_below": 0}
    two = learner(cluster, 2, "drafting", small(learn__lr=1e-3, learn__max_drift=1e30, **settings))
    # Later steps than any that the other test publishes.
    figures = [two.update(Batch(10 + batch.step, batch.groups)).wait(60) for batch in BATCHES]
    assert [first["adaptive_slices"] for first, _ in figures] == [2, 4]
    assert figures[-1][0]["adaptive_skipped_slices"] == 0
    assert not any(name.startswith("adaptive") for name in figures[-1][1])
    assert two[0].publish_drafters(1).wait(60) == ["adaptive"]
    assert two[0].publish_drafters(2).wait(60) == [], "nothing was learned since"
    link = two._caller.cluster.link
    published = fetch(link, name_of("adaptive"))[1].tensors
    (saved, state), (rest, _) = two.state_dict().wait(60)
    assert torch.equal(saved["draft.adaptive.weight.fc"], published["fc"])
    assert not rest
    two.load_state_dict(saved, state, 0).wait(60)
    two.export(tmp_path / "model").wait(60)
    target = load_model(str(tmp_path / "model"), "cpu").decoder
    torch.testing.assert_close(load(tmp_path / "drafter", target)["fc"], published["fc"])
