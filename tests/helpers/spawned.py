"""Work on several ranks, each a real process, joined by gloo over a file."""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def on_ranks(world: int, folder: Path, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`work(rank, group, *arguments)` on every rank; what each returns, tensors included."""
    folder.mkdir(parents=True, exist_ok=True)
    mp.spawn(_main, (world, folder, work, arguments), nprocs=world)
    return [torch.load(folder / f"result-{rank}", weights_only=False) for rank in range(world)]


def _main(rank: int, world: int, folder: Path, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        torch.save(work(rank, dist.group.WORLD, *arguments), folder / f"result-{rank}")
    except BaseException:
        traceback.print_exc()  # spawn tells of one rank alone, and not always the one that failed first
        raise
    finally:
        dist.destroy_process_group()
