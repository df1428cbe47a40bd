"""Tensors that one worker publishes and others fetch: weights on their way from the learner to the engines.

    publish(link, 7, {"policy": Tensors(weights)})         # in the learner
    version, found = fetch(link, "policy")                 # in an engine: the newest, whole

Invariant: a version is there whole or not at all. The publisher writes it aside (shared memory here, Ray's object
store across hosts), and tells the hub of it in one message with its checksum; who dies before that has published
nothing. A reader checks the sum before it uses a byte, so it has version v whole, or what it had before. What was
published outlives its publisher.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash
from torch import Tensor

from untail.errors import WeightsError
from untail.flow.link import Link

TRIES = 5
AT_ONCE = 2**24  # bytes that a GPU sums up


@dataclass(frozen=True)
class Tensors:
    """What is published under one name; `numbers` is whatever goes with the tensors."""

    tensors: Mapping[str, Tensor]
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """What the hub keeps of it."""

    parcel: Any
    checksum: str
    numbers: dict[str, Any]


def publish(link: Link, version: int, named: Mapping[str, Tensors]) -> None:
    """All names at once, or none. Returns once everybody can fetch them."""
    pack, records = link.carrier.pack, {}
    for name, one in named.items():
        records[name] = Record(pack(dict(one.tensors)), checksum(one.tensors), one.numbers)
    gone = list(records.values())  # if they are refused
    try:
        gone = link.ask("record", "publish", version, records).result()
    finally:
        for record in gone:
            link.carrier.drop(record.parcel)


def fetch(link: Link, name: str, version: int | None = None) -> tuple[int, Tensors]:
    """The newest version, or this one. Raises if it is not there, or damaged."""
    for _ in range(TRIES):
        found = link.ask("record", "find", name, version).result()
        if found is None:
            which = "any version" if version is None else f"version {version}"
            raise WeightsError(f"{name!r} is not there in {which}: it was not published, or is no longer kept")
        number, record = found
        try:
            tensors: dict[str, Tensor] = link.carrier.unpack(record.parcel, keep=True)
        except FileNotFoundError:  # two newer ones came meanwhile
            continue
        refuse_damaged(name, number, tensors, record.checksum)
        return number, Tensors(tensors, record.numbers)
    raise WeightsError(f"{name!r} is published faster than it can be read ({TRIES} tries); publish less often")


def refuse_damaged(
    name: str, version: int, tensors: Mapping[str, Tensor], expected: str, where_they_lie: bool = False
) -> None:
    found = checksum(tensors, where_they_lie)
    if found != expected:
        raise WeightsError(
            f"version {version} of {name!r} arrived damaged: its checksum is {found}, and {expected} was published; "
            "nothing of it was used; look at the host's memory or network, then go on with --resume"
        )


def checksum(tensors: Mapping[str, Tensor], where_they_lie: bool = False) -> str:
    """Of names, kinds, shapes and every byte, in order; or of sums of the bytes, made on the tensors' device, so that
    they need not leave it."""
    digest = xxhash.xxh3_128()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        digest.update((_sums(flat) if where_they_lie else flat).cpu().numpy().data)
    return digest.hexdigest()


def _sums(flat: Tensor) -> Tensor:
    """Of every `AT_ONCE` bytes two: any byte changes the plain one, and two that swap places the weighted one."""

    def both(part: Tensor) -> Tensor:
        numbers = part.long()
        return torch.stack((numbers.sum(), (numbers * torch.arange(len(part), device=part.device)).sum()))

    return torch.stack([both(part) for part in flat.split(AT_ONCE)])
