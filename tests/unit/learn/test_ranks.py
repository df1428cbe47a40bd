"""How the ranks of a learner share out the work; what they do with it together is in tests/invariant."""

import pytest
import torch
from tests.helpers.models import random_decoder
from tests.unit.learn.helpers import group, rules, uneven_batch

from untail.learn.pack import idle, pack
from untail.learn.policy import Policy
from untail.learn.ranks import Ranks
from untail.learn.sample import samples_of
from untail.learn.tally import Tally

VOCAB = 199
CPU = torch.device("cpu")


def samples_of_batch(lengths: list[int] | None = None):
    groups = uneven_batch(VOCAB).groups if lengths is None else [group("g", lengths, [0.0] * len(lengths), VOCAB)]
    return [sample for members in groups for sample in samples_of(members, rules())]


def as_rank(rank: int, world: int) -> Ranks:
    ranks = Ranks()
    ranks.rank, ranks.world = rank, world
    return ranks


@pytest.mark.parametrize("world", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("lengths", [None, [], [5], [1, 1000, 1, 1], [0, 0, 4], [30] * 16])
def test_every_sample_is_one_rank_s(world, lengths):
    samples = samples_of_batch(lengths)
    shares = [as_rank(rank, world).share(samples) for rank in range(world)]
    assert [sample for share in shares for sample in share] == samples, "in their order, siblings side by side"


@pytest.mark.parametrize("world", [2, 3, 4])
def test_ranks_have_about_the_same_number_of_tokens(world):
    samples = samples_of_batch([7, 90, 31, 64, 12, 55, 23, 80, 41, 66, 5, 38] * 4)
    tokens = [sum(len(sample.weight_N) for sample in as_rank(rank, world).share(samples)) for rank in range(world)]
    assert max(tokens) - min(tokens) <= 90


def test_level_fills_up_with_idle_passes(monkeypatch):
    ranks = as_rank(0, 2)
    monkeypatch.setattr(ranks, "gather", lambda own: [own, [3, 0, 1]])
    own = pack(samples_of_batch(), 60, CPU, torch.float32)
    assert len(own) > 1
    levelled = [own[:1], [], []]
    ranks.level(levelled, CPU, torch.float32)
    assert [len(micros) for micros in levelled] == [3, 0, 1]
    assert levelled[0][0] is own[0]
    assert [micro.samples for micro in levelled[0][1:] + levelled[2]] == [[], [], []]


@pytest.mark.parametrize("recompute", [False, True])
def test_an_idle_pass_adds_nothing(recompute):
    decoder = random_decoder("qwen2")
    policy, micro = Policy(decoder, 1.0, 8), idle(CPU, torch.float32)
    micro.recompute = recompute
    assert policy.logprobs(micro).shape == (0,)
    loss = policy.loss(micro, lambda *rows: pytest.fail("a loss of no rows was asked for"))
    loss.backward()
    assert loss.item() == 0
    assert all(not parameter.grad.any() for parameter in decoder.parameters()), "there, so that ranks can add it up"


def test_tallies_add_up():
    one, two, both = Tally(), Tally(), Tally()
    for tally, values in ((one, [1.0, 2.0]), (two, [6.0]), (both, [1.0, 2.0, 6.0])):
        tally.mean(x=torch.tensor(values))
        tally.peak(most=torch.tensor(values))
    two.mean(torch.tensor([False]), nothing=torch.tensor([5.0]))
    joined = Tally()
    for tally in (one, two):
        joined.add(tally.numbers())
    assert joined.figures() == both.figures() == {"x": 3.0, "most": 6.0}


def test_alone_nothing_is_exchanged():
    ranks, tally = Ranks(), Tally()
    assert (ranks.world, ranks.rank) == (1, 0)
    assert ranks.gather("x") == ["x"]
    assert ranks.join(tally) is tally
    tensor = torch.ones(3)
    assert ranks.sum(tensor) is tensor
    decoder = random_decoder("llama")
    ranks.shard(decoder)
    assert not decoder.is_sharded
