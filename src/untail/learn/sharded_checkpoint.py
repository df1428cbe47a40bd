"""Checkpoints of a sharded learner: each rank writes what it holds (torch's distributed checkpoint), and any number of
ranks reads it back by name, each what it holds; one alone, all of it.

`FOLDER/step-000120/` has state.json and the folder `shards`. Invariant: as in checkpoint.py, a folder named `step-...`
is complete and on the disk: rank 0 makes it aside, all write into it, rank 0 syncs and renames it. What goes wrong on
one rank is raised on all of them, and leaves the earlier checkpoints as they were. torch's index of the shards is a
pickle: resume from folders that you trust.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from untail.learn.checkpoint import SHARDS, CheckpointError, read_state, unreadable, write_state, written_aside
from untail.learn.ranks import Ranks
from untail.learn.trainer import Trainer

Tensors = dict[str, Tensor]


def save(
    folder: Path, step: int, trainer: Trainer, state: dict[str, Any], keep: int = 2, beside: Tensors | None = None
) -> Path:
    """Every rank calls it with the same arguments, on a file system that all of them see. But `state` is rank 0's, and
    so are the tensors `beside` the trainer's."""
    ranks, final = trainer.ranks, folder / f"step-{step:06d}"
    if any(ranks.gather(final.exists())):
        return final
    tensors, numbers = trainer.state_dict()
    tensors |= beside or {}
    aside = folder / f".tmp-{final.name}"
    is_first = ranks.rank == 0
    with ExitStack() as stack:
        if_first = lambda work: _together(ranks, work if is_first else lambda: None)
        if_first(lambda: stack.enter_context(written_aside(final, keep)))
        _together(ranks, lambda: _refuse_another_disk(aside, final, ranks))
        _together(ranks, lambda: _write(tensors, aside, final, ranks))
        if_first(lambda: write_state(aside, step, {**state, "trainer": numbers}))
        if_first(stack.close)
    return final


def load(path: Path, trainer: Trainer, beside: Tensors | None = None) -> dict[str, Any]:
    """Into the trainer, in place, on every rank, and into the tensors `beside` it; what was saved as `state` comes
    back."""
    ranks = trainer.ranks
    state: dict[str, Any] = {}
    _together(ranks, lambda: state.update(read_state(path, "trainer")))
    tensors, _ = trainer.state_dict()
    _together(ranks, lambda: _read(tensors | (beside or {}), path, ranks))
    numbers = state.pop("trainer")
    trainer.load_state_dict(tensors, numbers)
    return state


def read_whole(path: Path) -> dict[str, Tensor]:
    """All tensors, by one process alone."""
    try:
        index = dcp.FileSystemReader(path / SHARDS).read_metadata().state_dict_metadata
    except Exception as error:  # whatever a damaged pickle brings forth
        raise unreadable(path, error) from error
    of_tensors = {name: about for name, about in index.items() if isinstance(about, TensorStorageMetadata)}
    tensors = {name: torch.empty(about.size, dtype=about.properties.dtype) for name, about in of_tensors.items()}
    _read(tensors, path, Ranks())
    return tensors


def _refuse_another_disk(aside: Path, final: Path, ranks: Ranks) -> None:
    """torch would make the folder there, too, and every disk would have a part of the checkpoint."""
    if not aside.is_dir():
        raise CheckpointError(
            f"cannot write the checkpoint {final}: rank {ranks.rank} of {ranks.world} does not see the folder that "
            "rank 0 has made there; run with --out on a file system that all hosts of the learner share"
        )


def _write(tensors: dict[str, Any], aside: Path, final: Path, ranks: Ranks) -> None:
    try:
        with _quiet():
            dcp.save(tensors, checkpoint_id=aside / SHARDS, process_group=ranks.group, no_dist=ranks.group is None)
    except CheckpointException as error:
        raise CheckpointError(
            f"cannot write the checkpoint {final}: {_reasons(error)}; earlier ones are intact"
        ) from error


def _read(tensors: dict[str, Any], path: Path, ranks: Ranks) -> None:
    """The plan is checked against all names and shapes before anything is overwritten."""
    try:
        with _quiet():
            dcp.load(tensors, checkpoint_id=path / SHARDS, process_group=ranks.group, no_dist=ranks.group is None)
    except CheckpointException as error:
        raise unreadable(path, CheckpointError(_reasons(error))) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """torch warns of one rank alone even where it was told so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def _reasons(error: CheckpointException) -> str:
    return "; ".join(f"rank {rank}: {cause}" for rank, (cause, _) in sorted(error.failures.items()))


def _together(ranks: Ranks, work: Callable[[], Any]) -> None:
    """`work` on every rank; a failure of one is everybody's."""
    failure = None
    try:
        work()
    except CheckpointError as error:
        failure = str(error)
    failures = [said for said in ranks.gather(failure) if said is not None]
    if failures:
        raise CheckpointError(failures[0])
