"""A learner of several ranks, each a process: it learns what one alone does, and either goes on from the other."""

import pytest
import torch
from tests.helpers.flowing import small
from tests.unit.learn.helpers import group

from untail.engine.models.load import load_model
from untail.flow.engine_worker import POLICY
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


def learner(cluster, world, name):
    made = cluster.group(LearnerWorker, RECIPE, devices=[cluster.devices[:1]] * world, name=name)
    if world > 1:
        made.meet(made[0].free_address().wait()).wait(60)
    return made


def learn(made, batches):
    """Losses, and the weights that engines get."""
    losses = [made.update(batch).wait(60)[0]["loss"] for batch in batches]
    return losses, dict(fetch(made._caller.cluster.link, POLICY, batches[-1].step)[1].tensors)


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
