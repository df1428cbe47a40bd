"""Ray's devices: how a cluster is joined, and how devices of it are reserved.

Invariant: what cannot be had is refused within seconds, in one sentence that says what to do.
"""

import logging
import socket
from dataclasses import dataclass
from typing import Any

import ray
from ray.util import placement_group_table, remove_placement_group
from ray.util.placement_group import placement_group

from untail.errors import UserError

REACH_S = 5.0  # to find out whether anybody is at an address
RESERVE_S = 20.0


@dataclass(frozen=True, slots=True)
class Seat:
    """A device: on which node, and the how-manieth of it."""

    node: str
    number: int
    is_gpu: bool


def join(address: str | None) -> None:
    if address not in (None, "auto", "local"):
        _refuse_unreachable(str(address))
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(
            f"flow.address = {address!r}: Ray cannot be joined there: {str(error).strip().splitlines()[0]}; start it "
            "with `ray start --head` on one host and `ray start --address=HOST:6379` on the others, and give "
            "RAY_AUTH_MODE=token here, too, if it was started with a token"
        ) from error


def _refuse_unreachable(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise UserError(
            f"flow.address = {address!r} is not of the form HOST:PORT; Ray's port is 6379 unless you chose another"
        )
    try:
        socket.create_connection((host, int(port)), REACH_S).close()
    except OSError as error:
        raise UserError(
            f"flow.address = {address!r}: nobody answers there ({error}); check the address, and start Ray on that "
            "host with `ray start --head`"
        ) from None


def reserve(kind: str, count: int, there: int) -> Any:
    """One bundle per device: nobody else gets it while the cluster lives."""
    if not count:
        raise UserError(f"the Ray cluster has no {kind}s at all; start a node with some")
    reserved = placement_group([{kind: 1}] * count, strategy="PACK")
    if not reserved.wait(RESERVE_S):
        free = int(ray.available_resources().get(kind, 0))
        remove_placement_group(reserved)
        raise UserError(
            f"flow.devices = {count}: the Ray cluster has {there} {kind}s, but {free} of them are free; wait for the "
            "others, or ask for fewer"
        )
    return reserved


def seats_of(reserved: Any, kind: str) -> list[Seat]:
    nodes = placement_group_table(reserved)["bundles_to_node_id"]
    seats: list[Seat] = []
    for bundle in sorted(nodes):
        place = sum(seat.node == nodes[bundle] for seat in seats)  # counted on its node
        seats.append(Seat(nodes[bundle], place, kind == "GPU"))
    return seats
