"""Shared memory of one host: where messages leave their large buffers.

Invariant: a file on the shelf is written before its name is told, and belongs to whoever was told. Memory that is
mapped stays readable after its file is gone. The shelf goes with its cluster; one whose cluster was killed is swept up
by the next that starts on the host.
"""

import fcntl
import itertools
import mmap
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from untail.flow import codec

PREFIX = "untail-flow-"
INLINE = 64 * 1024  # bytes: what is smaller than this is quicker through the pipe
ALIGNED = 64


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message on its way: the stream, and where its buffers are."""

    stream: bytes
    inline: tuple[bytes, ...] = ()
    path: str = ""
    spans: tuple[tuple[int, int], ...] = ()  # [begin, end) of each buffer in the file


class Shelf:
    def __init__(self, folder: Path):
        self.folder = folder
        self._names = itertools.count()

    def pack(self, thing: Any) -> Parcel:
        stream, buffers = codec.encode(thing)
        if sum(len(buffer) for buffer in buffers) < INLINE:
            return Parcel(stream, tuple(bytes(buffer) for buffer in buffers))
        path = self.folder / f"{os.getpid()}-{next(self._names)}"
        return Parcel(stream, path=str(path), spans=tuple(write(path, buffers)))

    def unpack(self, parcel: Parcel, keep: bool = False) -> Any:
        """Unless it is to be kept for others, its file goes."""
        if not parcel.path:
            return codec.decode(parcel.stream, [bytearray(buffer) for buffer in parcel.inline])
        memory = mapped(Path(parcel.path))
        if not keep:
            self.drop(parcel)
        return codec.decode(parcel.stream, [memory[begin:end] for begin, end in parcel.spans])

    def drop(self, parcel: Parcel) -> None:
        if parcel.path:
            Path(parcel.path).unlink(missing_ok=True)


def write(path: Path, buffers: Sequence[memoryview]) -> list[tuple[int, int]]:
    """Where in the file each buffer is."""
    spans, end = [], 0
    with path.open("wb") as file:
        for buffer in buffers:
            begin = -(-end // ALIGNED) * ALIGNED
            file.seek(begin)
            file.write(buffer)
            end = begin + len(buffer)
            spans.append((begin, end))
        file.truncate(max(end, 1))
    return spans


def mapped(path: Path) -> memoryview:
    """Its bytes, without a copy; what is written to them stays here."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE))


def make_folder() -> tuple[Path, IO[bytes]]:
    """A new shelf's folder, and its lock: held while its cluster lives."""
    shared = Path("/dev/shm")
    root = shared if shared.is_dir() and os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
    _sweep(root)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    lock = (folder / "lock").open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def _sweep(root: Path) -> None:
    """Remove the shelves of clusters that were killed."""
    for folder in root.glob(f"{PREFIX}*"):
        with suppress(OSError), (folder / "lock").open("rb+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
