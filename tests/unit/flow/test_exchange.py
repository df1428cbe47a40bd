"""Weights over torch.distributed: whole, with their checksum, or not at all."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from untail.errors import WeightsError
from untail.flow import exchange
from untail.flow.exchange import Exchange

WEIGHTS = {
    "a": torch.arange(12, dtype=torch.float32).reshape(3, 4).t(),  # not contiguous
    "b": torch.randn(5, 7).bfloat16(),
    "scalar": torch.tensor(3.0),
    "empty": torch.empty(0, 4),
}


def address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def meet(world, patience_s=30.0):
    where = address()
    with ThreadPoolExecutor(world) as threads:
        return list(threads.map(lambda rank: Exchange(where, rank, world, patience_s=patience_s), range(world)))


def pass_on(members, version, weights):
    with ThreadPoolExecutor(len(members)) as threads:
        sent = threads.submit(members[0].send, version, weights)
        received = [threads.submit(member.receive) for member in members[1:]]
        return [future.exception() or future.result() for future in (sent, *received)]


def test_all_members_get_version_after_version_as_it_was_sent():
    members = meet(3)
    for version in (4, 9):
        sent, *received = pass_on(members, version, WEIGHTS)
        assert sent is None
        for number, weights in received:
            assert number == version
            assert list(weights) == list(WEIGHTS)
            for name, tensor in WEIGHTS.items():
                assert weights[name].dtype == tensor.dtype
                assert torch.equal(weights[name], tensor)


def test_what_arrives_damaged_is_refused(monkeypatch):
    members = meet(2)
    told = iter(["other"])
    real = exchange.checksum
    monkeypatch.setattr(exchange, "checksum", lambda *about: next(told, None) or real(*about))
    _, received = pass_on(members, 1, WEIGHTS)
    assert isinstance(received, WeightsError)
    assert "version 1 of 'policy' arrived damaged" in str(received)


def test_a_member_that_does_not_come_and_one_that_does_not_answer_are_errors():
    with pytest.raises(WeightsError, match=r"member 0 of 2 found not all of them"):
        Exchange(address(), 0, 2, patience_s=0.5)
    members = meet(2, patience_s=0.5)
    with pytest.raises(WeightsError, match="a member is gone, or did not answer in time"):
        members[1].receive()


def test_on_another_device_all_is_sent_from_there_and_lies_there(monkeypatch):
    """NCCL's part is played by gloo, the GPU's by a device that only says that it is one: no tensor may be made or
    summed up elsewhere."""

    class Gpu:
        type = "cuda"

    made, summed = [], []
    for name in ("empty", "zeros", "tensor"):
        real = getattr(torch, name)
        here = lambda *about, real=real, device=None, **named: made.append(device) or real(*about, **named)
        monkeypatch.setattr(exchange.torch, name, here)
    real_to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda t, where, *more: made.append(where) or real_to(t, "cpu", *more))
    real_sum = exchange.checksum
    monkeypatch.setattr(exchange, "checksum", lambda *about: summed.append(about[1]) or real_sum(*about))
    monkeypatch.setattr(exchange, "_nccl", exchange.ProcessGroupGloo)
    gpu, where = Gpu(), address()
    with ThreadPoolExecutor(2) as threads:
        members = list(threads.map(lambda rank: Exchange(where, rank, 2, gpu, 30.0), range(2)))
    weights = dict(WEIGHTS)
    made.clear()
    _, (version, received) = pass_on(members, 3, weights)
    assert version == 3
    assert all(torch.equal(received[name], tensor) for name, tensor in weights.items())
    assert made
    assert all(device is gpu for device in made)
    assert summed == [True]
