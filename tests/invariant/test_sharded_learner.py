"""Several ranks learn what one alone learns: the same losses, figures and weights, to rounding."""

import pytest
import torch

from tests.helpers.models import random_decoder
from tests.helpers.spawned import on_ranks
from tests.unit.learn.helpers import group, learn_config, uneven_batch
from untail.config import CriticConfig
from untail.learn.trainer import Trainer
from untail.types import Batch

VOCAB = 199
WORLD = 2
FIELDS = {
    "plain": {},
    "small micro-batches": {"micro_batch_tokens": 40},
    "two minibatches and a reference": {"updates": 2, "kl": 0.1},
    "recomputed": {"recompute": True},
    "constants": {"prune": {"share": 0.3, "how": "detach", "cosine_every": 1}},
    "a critic's head": {"advantage": {"name": "ppo"}},
    "a critic of its own": {"advantage": {"name": "ppo"}, "critic": CriticConfig(kind="model", epochs=2)},
    "one rank recomputes": {"recompute": "of rank 0"},
}
FAMILY = {"plain": "qwen2", "constants": "qwen3"}


def batches() -> list[Batch]:
    """The last leaves most ranks without work."""
    return [uneven_batch(VOCAB), uneven_batch(VOCAB), Batch(3, [group("one", [9, 1], [1.0, 0.0], VOCAB)])]


def learn(case: str, rank: int = 0, group=None):
    """Figures of each update without times, and all weights as an engine would get them."""
    decoder = random_decoder(FAMILY.get(case, "llama"))
    fields = dict(FIELDS[case])
    if fields.get("recompute") == "of rank 0":
        fields["recompute"] = group is not None and rank == 0
    trainer = Trainer(decoder, learn_config(lr=1e-3, warmup_steps=0, **fields), temperature=0.9, group=group)
    figures = [trainer.update(batch) for batch in batches()]
    timeless = [{name: value for name, value in f.items() if not name.endswith("_s")} for f in figures]
    return timeless, {name: tensor.clone() for name, tensor in trainer.weights()}


def all_cases(rank, group):
    return {case: learn(case, rank, group) for case in FIELDS}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return on_ranks(WORLD, tmp_path_factory.mktemp("ranks"), all_cases)


@pytest.mark.parametrize("case", FIELDS)
def test_ranks_learn_what_one_alone_learns(ranks, case):
    figures, weights = learn(case)
    for of_rank in ranks:
        ours, gathered = of_rank[case]
        for mine, reference in zip(ours, figures, strict=True):
            mine.pop("computed_tokens"), reference["computed_tokens"]  # a prompt is computed on each rank that needs it
            assert mine == pytest.approx(
                {k: v for k, v in reference.items() if k != "computed_tokens"}, rel=1e-3, abs=1e-5
            )
        assert gathered.keys() == weights.keys()
        for name, tensor in weights.items():
            torch.testing.assert_close(gathered[name], tensor, atol=2e-4, rtol=0)
