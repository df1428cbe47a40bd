"""Several ranks learn what one alone learns: the same losses, figures and weights, to rounding; and they save and
resume, in whatever number."""

import json
import math
import os
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.helpers.models import random_decoder
from tests.helpers.spawned import on_ranks
from tests.unit.learn.helpers import group, learn_config, uneven_batch
from untail.config import CriticConfig
from untail.errors import UserError
from untail.learn import sharded_checkpoint
from untail.learn.checkpoint import CheckpointError, latest
from untail.learn.checkpoint import load as load_whole
from untail.learn.policy import Policy
from untail.learn.trainer import Trainer
from untail.types import Batch

VOCAB = 199
WORLD = 2
FIELDS = {
    "plain": {},
    "bf16": {},
    "small micro-batches": {"micro_batch_tokens": 40},
    "two minibatches and a reference": {"updates": 2, "kl": 0.1},
    "in portions": {"micro_batch_tokens": 40},
    "recomputed": {"recompute": True},
    "one rank recomputes": {"recompute": "of rank 0"},
    "constants": {"prune": {"share": 0.3, "how": "detach", "cosine_every": 1}},
    "a critic's head": {"advantage": {"name": "ppo"}},
    "a critic of its own": {"advantage": {"name": "ppo"}, "critic": CriticConfig(kind="model", epochs=2)},
    "drifted": {"max_drift": 1.1},
    "not finite": {"advantage": {"name": "dr_grpo"}},
}
FAMILY = {"plain": "qwen2", "constants": "qwen3"}
RESUMED = "a critic of its own"
FEW = ["plain", "small micro-batches", "in portions", "a critic's head"]


def batches(case: str) -> list[Batch]:
    """The last leaves a rank without work, or nearly."""
    bad = math.nan if case == "not finite" else 1.0
    return [
        uneven_batch(VOCAB),
        Batch(2, [group("e", [20, 9, 40, 2], [0.0, 1.0, bad, 0.3], VOCAB), group("f", [5, 6], [1.0, 1.0], VOCAB)]),
        Batch(3, [group("g", [9, 1], [1.0, 0.0], VOCAB)]),
        Batch(4, [group("h", [4, 4], [1.0, 1.0], VOCAB)]),
    ]


def make_trainer(case: str, rank: int = 0, group=None) -> Trainer:
    decoder = random_decoder(FAMILY.get(case, "llama"), dtype=torch.bfloat16 if case == "bf16" else torch.float32)
    fields = dict(FIELDS[case])
    if fields.get("recompute") == "of rank 0":
        fields["recompute"] = group is not None and rank == 0
    return Trainer(decoder, learn_config(lr=1e-3, warmup_steps=0, **fields), temperature=0.9, group=group)


def learn(trainer: Trainer, of: list[Batch], in_portions: bool = False):
    """Figures of each update without times, and all weights as an engine would get them."""
    figures = [trainer.update(one_by_one(trainer, batch) if in_portions else batch) for batch in of]
    timeless = [{name: value for name, value in f.items() if not name.endswith("_s")} for f in figures]
    return timeless, whole(trainer)


def one_by_one(trainer: Trainer, batch: Batch) -> Batch:
    """All groups but the last are learned already; that one is the rest."""
    for each in batch.groups[:-1]:
        trainer.learn(Batch(batch.step, [each]))
    return Batch(batch.step, batch.groups[-1:])


def whole(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.weights()}


def full_disk(*arguments, **fields):
    raise OSError(28, os.strerror(28))


def save_and_fail(rank: int, group, folder: Path, trainer: Trainer) -> dict:
    """A full disk on rank 1 is an error on both, and leaves what was there."""
    from torch.distributed.checkpoint import filesystem

    real = filesystem._write_item
    filesystem._write_item = full_disk if rank == 1 else real
    try:
        sharded_checkpoint.save(folder, 2, trainer, {})
    except CheckpointError as error:
        return {"error": str(error)}
    finally:
        filesystem._write_item = real
    return {}


def save_apart(rank: int, folder: Path, trainer: Trainer) -> dict:
    """Hosts that share no file system."""
    try:
        sharded_checkpoint.save(folder.with_name(f"disk {rank}"), 2, trainer, {})
    except CheckpointError as error:
        return {"apart": str(error)}
    return {}


def resume_in_twos(rank: int, group, folder: Path, alone: Path) -> dict:
    """Saved by two after two updates; what was saved by one is read by two."""
    trainer = make_trainer(RESUMED, rank, group)
    learn(trainer, batches(RESUMED)[:2])
    path = sharded_checkpoint.save(folder, 1, trainer, {"seed": 7})
    assert sharded_checkpoint.save(folder, 1, trainer, {"seed": 8}) == path, "a step is written once"
    failed = save_and_fail(rank, group, folder, trainer) | save_apart(rank, folder, trainer)
    fresh = make_trainer(RESUMED, rank, group)
    state = sharded_checkpoint.load(alone, fresh)
    return {**failed, "state": state, "went_on": learn(fresh, batches(RESUMED)[2:])}


def learn_cases(rank: int, group, cases: list[str]) -> dict:
    return {case: learn(make_trainer(case, rank, group), batches(case), case == "in portions") for case in cases}


@cache
def straight(case: str):
    """One alone."""
    return learn(make_trainer(case), batches(case))


@pytest.fixture(scope="module")
def saved_alone(tmp_path_factory) -> Path:
    trainer = make_trainer(RESUMED)
    learn(trainer, batches(RESUMED)[:2])
    return sharded_checkpoint.save(tmp_path_factory.mktemp("alone"), 1, trainer, {"seed": 5})


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return on_ranks(WORLD, tmp_path_factory.mktemp("ranks"), learn_cases, FEW)


@pytest.fixture(scope="module")
def rest(tmp_path_factory):
    """All that is done by two processes, at once: to start them costs more than what they do."""
    return on_ranks(WORLD, tmp_path_factory.mktemp("ranks"), learn_cases, [case for case in FIELDS if case not in FEW])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def resumed(tmp_path_factory, folder, saved_alone):
    return on_ranks(WORLD, tmp_path_factory.mktemp("ranks"), resume_in_twos, folder, saved_alone)


def assert_same(ours, theirs, tolerance: float = 2e-4) -> None:
    for mine, reference in zip(ours[0], theirs[0], strict=True):
        # A prompt is computed on each rank that has one of its responses.
        mine, reference = ({k: v for k, v in f.items() if k != "computed_tokens"} for f in (mine, reference))
        assert mine == pytest.approx(reference, rel=100 * tolerance, abs=tolerance)
    assert ours[1].keys() == theirs[1].keys()
    for name, tensor in theirs[1].items():
        assert ours[1][name].dtype == tensor.dtype
        torch.testing.assert_close(ours[1][name], tensor, atol=tolerance, rtol=0)


def assert_ranks_learn_the_same(ranks, expected, case: str) -> None:
    tolerance = 2e-2 if case == "bf16" else 2e-4
    for of_rank in ranks:
        assert_same(of_rank[case], expected, tolerance)
    first, second = (of_rank[case][1] for of_rank in ranks)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items()), "bit for bit between ranks"


@pytest.mark.parametrize("case", FEW)
def test_ranks_learn_what_one_alone_learns(few, case):
    assert_ranks_learn_the_same(few, straight(case), case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in FIELDS if case not in FEW])
def test_ranks_learn_what_one_alone_learns_in_every_case(rest, case):
    assert_ranks_learn_the_same(rest, straight(case), case)


def test_what_the_cases_show():
    """That something was learned, dropped, skipped: a comparison of nothing says nothing."""
    count = lambda case, name: sum(figures[name] for figures in straight(case)[0])
    assert count("plain", "optimizer_steps") == 3
    assert count("drifted", "dropped_minibatches") == 3
    assert count("not finite", "skipped_updates") == 1
    assert count("two minibatches and a reference", "optimizer_steps") > 3
    assert all("prune_cosine" in figures for figures in straight("constants")[0][:2])


@pytest.mark.slow
def test_two_go_on_from_what_one_saved(resumed):
    for of_rank in resumed:
        assert of_rank["state"] == {"seed": 5}
        assert_same(of_rank["went_on"], (straight(RESUMED)[0][2:], straight(RESUMED)[1]))


@pytest.mark.slow
def test_one_goes_on_from_what_two_saved(resumed, folder):
    trainer = make_trainer(RESUMED)
    assert sharded_checkpoint.load(latest(folder), trainer) == {"seed": 7}
    assert_same(learn(trainer, batches(RESUMED)[2:]), (straight(RESUMED)[0][2:], straight(RESUMED)[1]))


@pytest.mark.slow
def test_what_two_saved_is_read_whole(resumed, folder):
    saved, trainer = load_whole(latest(folder)), make_trainer(RESUMED)
    sharded_checkpoint.load(latest(folder), trainer)
    tensors, numbers = trainer.state_dict()
    assert (saved.step, saved.state) == (1, {"seed": 7, "trainer": numbers})
    assert saved.tensors.keys() == tensors.keys()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in saved.tensors.items())


@pytest.mark.slow
def test_a_rank_that_cannot_write_leaves_what_was_there(resumed, folder):
    for of_rank in resumed:
        for part in ("cannot write the checkpoint", "rank 1", "No space left on device"):
            assert part in of_rank["error"]
    assert [path.name for path in folder.iterdir()] == ["step-000001"]


@pytest.mark.slow
def test_ranks_on_disks_of_their_own_write_nothing(resumed, folder):
    for of_rank in resumed:
        assert "rank 1 of 2 does not see the folder that rank 0 has made" in of_rank["apart"]
    assert not [path for disk in folder.parent.glob("disk *") for path in disk.iterdir()]


def test_a_rank_that_does_not_see_what_the_first_has_made_says_so(tmp_path):
    trainer = make_trainer("recomputed")
    trainer.ranks.world, trainer.ranks.rank = 2, 1
    with pytest.raises(CheckpointError, match=r"step-000003: rank 1 of 2 does not see the folder .* run with --out"):
        sharded_checkpoint.save(tmp_path, 3, trainer, {})
    assert not list(tmp_path.iterdir())


def test_one_goes_on_from_what_it_saved(saved_alone):
    trainer = make_trainer(RESUMED)
    assert sharded_checkpoint.load(saved_alone, trainer) == {"seed": 5}
    assert_same(learn(trainer, batches(RESUMED)[2:]), (straight(RESUMED)[0][2:], straight(RESUMED)[1]), 1e-9)


def test_a_rank_that_runs_out_of_memory_says_so(tmp_path, monkeypatch):
    trainer = make_trainer("plain")
    trainer.ranks.world, trainer.ranks.rank = 2, 1
    monkeypatch.setattr(trainer.ranks, "share", list)
    monkeypatch.setattr(Policy, "hidden", lambda *args: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out.")))
    with pytest.raises(UserError, match=r"rank 1 of 2 ran out of memory in a pass of \d+ tokens \(CUDA out"):
        trainer.update(uneven_batch(VOCAB))


@pytest.mark.parametrize("how", ["missing", "cut", "empty"])
@pytest.mark.parametrize("damaged", ["shards/.metadata", "state.json", "shards/*.distcp"])
def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path, damaged, how):
    path = sharded_checkpoint.save(tmp_path, 3, make_trainer("recomputed"), {})
    (file,) = path.glob(damaged)
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2 if how == "cut" else 0])
    trainer = make_trainer("recomputed")
    before = whole(trainer)
    with pytest.raises(CheckpointError, match=f"{path} cannot be read") as told:
        sharded_checkpoint.load(path, trainer)
    assert "\n" not in str(told.value)
    if file.suffix != ".distcp":
        assert all(torch.equal(tensor, before[name]) for name, tensor in whole(trainer).items())
    with pytest.raises(CheckpointError, match=f"{path} cannot be read") as told:
        load_whole(path)
    assert "\n" not in str(told.value)


def test_a_checkpoint_of_another_model_changes_nothing(tmp_path):
    path = sharded_checkpoint.save(tmp_path, 3, make_trainer("recomputed"), {})
    trainer = make_trainer("plain")
    before = whole(trainer)
    with pytest.raises(CheckpointError, match=f"{path} cannot be read"):
        sharded_checkpoint.load(path, trainer)
    assert all(torch.equal(tensor, before[name]) for name, tensor in whole(trainer).items())


def test_what_is_written(tmp_path):
    path = sharded_checkpoint.save(tmp_path, 3, make_trainer("plain"), {"seed": 1})
    assert json.loads((path / "state.json").read_text()) == {
        "step": 3,
        "state": {"seed": 1, "trainer": {"optimizer_steps": 0}},
    }
    assert {name.name for name in path.iterdir()} == {"state.json", "shards"}
