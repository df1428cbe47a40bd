"""The same runtime on a real Ray cluster of two nodes, one of which is lost in the end."""

import asyncio
import os
import time

import numpy as np
import pytest
import torch
from tests.helpers.raying import ray_nodes
from tests.helpers.reviving import revive_while_called
from tests.helpers.workers import Echo, Stubborn

from untail.errors import UserError
from untail.flow.cluster import connect
from untail.flow.failures import ChannelBroken, WorkerFailed, WorkerLost
from untail.flow.interpreter import COLLECT_AFTER

SOON = 300  # seconds: far longer than anything here takes on a busy machine, and far shorter than for ever
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nodes():
    with ray_nodes(2) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def cluster(nodes):
    with connect("ray") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def echoes(cluster):
    return cluster.group(Echo, "hi", devices=[[0], [3]], name="echo")


def test_workers_sit_on_devices_of_both_nodes(cluster, echoes):
    assert cluster.devices == [0, 1, 2, 3]
    assert len({seat.node for seat in cluster.seats}) == 2
    first, second = echoes.where().wait(SOON)
    assert first[0] == ("echo[0]", 0, 2, (0,))
    assert second[0] == ("echo[1]", 1, 2, (3,))
    assert len({os.getpid(), first[1], second[1]}) == 3
    assert (len(first[2]), first[3]) == (1, "1")


async def test_a_call_can_be_awaited_on_all_and_on_one(echoes):
    assert await echoes.echo({"a": [1, 2]}) == [{"a": [1, 2]}] * 2
    assert await echoes[1].echo("x") == "x"


def test_a_worker_collects_garbage_as_seldom_as_the_driver(echoes):
    assert set(echoes.collects_after().wait(SOON)) == {COLLECT_AFTER}


def test_plain_methods_run_in_the_order_of_the_calls(echoes):
    handles = [echoes[0].note(str(number)) for number in range(50)]
    assert handles[-1].wait(SOON) == [str(number) for number in range(50)]


def test_failures_name_worker_method_and_cause(echoes):
    with pytest.raises(WorkerFailed, match=r"echo\[1\].fail failed: ZeroDivisionError: that was to be"):
        echoes[1].fail().wait(SOON)
    with pytest.raises(WorkerFailed, match=r"echo\[0\].fail_later failed: KeyError"):
        echoes[0].fail_later().wait(SOON)
    with pytest.raises(UserError, match="give 1 or more"):
        echoes[0].refuse().wait(SOON)


def test_tensors_and_arrays_go_through_the_object_store(echoes):
    tensor = torch.arange(300_000, dtype=torch.bfloat16)
    for result in echoes.scale(tensor, 2.0).wait(SOON):
        assert torch.equal(result, tensor * 2)
    assert echoes[0].array_sum(np.ones(500_000)).wait(SOON) == 500_000


def test_channels_and_mail_join_workers_and_driver(cluster, echoes):
    channel = cluster.channel("numbers", capacity=2)
    made = echoes[0].produce(channel, list(range(20)))
    assert echoes[1].consume(channel, 16).wait(SOON) == list(range(16))
    assert channel.get_batch(4).wait(SOON) == [16, 17, 18, 19]
    made.wait(SOON)
    echoes[0].pass_on("letter", "echo[1]")
    assert echoes[1].take_in("echo[0]").wait(SOON) == "letter"


async def test_what_a_waiter_that_left_was_given_is_not_lost(cluster):
    channel = cluster.channel("left")
    waiting = asyncio.ensure_future(_get(channel))
    await asyncio.sleep(0.05)
    waiting.cancel()
    channel.put("one")
    await asyncio.gather(waiting, return_exceptions=True)
    assert await channel.get() == "one"


async def _get(channel):
    return await channel.get()


def test_a_killed_worker_is_named_and_lets_go_of_everything(cluster, echoes):
    group = cluster.group(Echo, devices=[[1], [2]], name="victim")
    channel = cluster.channel("deserted", capacity=1)
    group[0].get_and_sit(channel)
    channel.put(1)
    while channel.size().wait(SOON):
        time.sleep(0.01)
    making = echoes[0].produce(channel, [2, 3, 4])
    group[1].hold([1], 60)
    lock = cluster.lock([1])
    while lock.owners().wait(SOON) != {1: "victim[1]"}:
        time.sleep(0.01)
    waiting = group[0].nap(60)
    group[0].kill()
    group[1].kill()
    with pytest.raises(WorkerLost, match=r"victim\[0\] is lost: Ray says"):
        waiting.wait(SOON)
    with pytest.raises(ChannelBroken, match=r"victim\[0\] died"):
        making.wait(SOON)
    with lock:
        assert lock.owners().wait(SOON) == {1: "driver"}
    assert cluster.alive()["victim[0]"] is False
    group[0].revive()
    assert group[0].echo("again").wait(SOON) == "again"


def test_one_that_is_being_made_cannot_be_called_yet(cluster, tmp_path):
    revive_while_called(cluster, tmp_path, SOON)


def test_bad_input_is_refused_within_seconds(cluster, monkeypatch):
    with pytest.raises(UserError, match=r"big\[0\] wants device 9, but there are 4"):
        cluster.group(Echo, devices=[[9]], name="big")
    with pytest.raises(UserError, match=r"wide\[0\] wants devices \[0, 3\], which are on 2 nodes"):
        cluster.group(Echo, devices=[[0, 3]], name="wide")
    with pytest.raises(WorkerFailed, match=r"stubborn\[0\].__init__ failed: RuntimeError: no such luck"):
        cluster.group(Stubborn, devices=[[0]], name="stubborn")
    monkeypatch.setattr("untail.flow.ray.__version__", "99.0")
    monkeypatch.setattr("untail.flow.local.__version__", "99.0")
    with pytest.raises(UserError, match=r"worker old\[0\] runs untail .*, and its driver 99.0; install the same"):
        cluster.group(Echo, devices=[[0]], name="old")


def test_more_devices_than_are_free_are_refused(cluster):
    with pytest.raises(UserError, match=r"flow.devices = 64, but this Ray cluster has 4"), connect("ray", devices=64):
        pass


@pytest.mark.parametrize(
    ("address", "said"),
    [("127.0.0.1:1", "nobody answers there"), ("nowhere", "is not of the form HOST:PORT")],
)
def test_an_unreachable_address_is_refused_within_seconds(address, said):
    from untail.flow.ray_devices import join

    with pytest.raises(UserError, match=said):
        join(address)


def test_a_lost_node_loses_its_workers_which_come_back_elsewhere(nodes, cluster):
    """Last: the node does not come back."""
    (node,) = nodes.worker_nodes  # Ray decides which devices are on which node
    away = [device for device in cluster.devices if cluster.seats[device].node == node.node_id]
    here = [device for device in cluster.devices if device not in away]
    group = cluster.group(Echo, devices=[here[:1], away[:1]], name="spread")
    waiting = group.nap(600)
    nodes.remove_node(node, allow_graceful=False)
    with pytest.raises(WorkerLost, match=r"spread\[1\] is lost"):
        waiting.wait(SOON)
    assert group[0].echo("here").wait(SOON) == "here"
    group[1].revive()
    assert group[1].where().wait(SOON)[0][3] in [(device,) for device in here]
