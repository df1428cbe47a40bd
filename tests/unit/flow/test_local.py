"""Workers in processes of this machine: calls, failures, deaths, tensors, channels and locks between them."""

import asyncio
import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from tests.helpers.reviving import revive_while_called
from tests.helpers.workers import Echo, Stubborn

from untail.errors import UserError
from untail.flow.cluster import connect
from untail.flow.failures import ChannelBroken, LeaseLost, WorkerFailed, WorkerLost
from untail.flow.interpreter import COLLECT_AFTER

SOON = 300  # seconds: far longer than anything here takes on a busy machine, and far shorter than for ever


@pytest.fixture(scope="module")
def cluster():
    with connect("local") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def echoes(cluster):
    return cluster.group(Echo, "hi", devices=[[], []], name="echo")


def test_a_worker_knows_itself_and_sits_on_its_device(cluster):
    first, second = cluster.group(Echo, devices=[[0], []], name="seated").where().wait(SOON)
    assert first[0] == ("seated[0]", 0, 2, (0,))
    assert second[0] == ("seated[1]", 1, 2, ())
    assert len({os.getpid(), first[1], second[1]}) == 3
    if not torch.cuda.is_available():
        assert first[2] == [min(os.sched_getaffinity(0))]
        assert second[2] == sorted(os.sched_getaffinity(0))
    assert first[3] == "1"


async def test_a_call_can_be_awaited_on_all_and_on_one(echoes):
    assert await echoes.echo({"a": [1, 2]}) == [{"a": [1, 2]}] * 2
    assert await echoes[1].echo("x") == "x"


def test_a_worker_collects_garbage_as_seldom_as_the_driver(echoes):
    assert set(echoes.collects_after().wait(SOON)) == {COLLECT_AFTER}


def test_plain_methods_run_in_the_order_of_the_calls(echoes):
    handles = [echoes[0].note(str(number)) for number in range(20)]
    assert handles[-1].wait(SOON) == [str(number) for number in range(20)]


def test_async_methods_run_side_by_side_and_while_plain_ones_do(cluster, echoes):
    channel, other = cluster.channel("busy"), cluster.channel("side by side")
    busy = echoes[0].consume(channel, 1)
    waits = [echoes[0].consume_all(other) for _ in range(2)]
    assert echoes[0].nap(0).wait(SOON) == "echo[0]"
    other.close()
    assert [wait.wait(SOON) for wait in waits] == [[], []]
    assert not busy.done
    channel.put("done")
    assert busy.wait(SOON) == ["done"]


def test_a_failure_names_worker_method_and_cause(echoes):
    with pytest.raises(WorkerFailed, match=r"echo\[1\].fail failed: ZeroDivisionError: that was to be") as caught:
        echoes[1].fail().wait(SOON)
    assert "workers.py" in caught.value.__notes__[0]
    with pytest.raises(WorkerFailed, match=r"echo\[0\].fail_later failed: KeyError"):
        echoes[0].fail_later().wait(SOON)
    with pytest.raises(WorkerFailed, match=r"echo\[0\].unpicklable failed"):
        echoes[0].unpicklable().wait(SOON)


def test_a_users_error_comes_through_as_it_is(echoes):
    with pytest.raises(UserError, match="give 1 or more") as caught:
        echoes[0].refuse().wait(SOON)
    assert caught.value.__notes__ == ["in echo[0].refuse"]


def test_an_unknown_method_is_refused_at_once(echoes):
    with pytest.raises(AttributeError, match="Echo has no method 'ecco'"):
        echoes.ecco()


def test_time_can_be_up_and_the_result_still_comes(echoes):
    handle = echoes[0].sleep(0.5)
    with pytest.raises(TimeoutError, match=r"echo\[0\].sleep"):
        handle.wait(0.05)
    assert handle.wait(SOON) == "echo[0]"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (300, 200)])
def test_tensors_of_every_kind_come_back_as_they_were(echoes, dtype, shape):
    tensor = torch.randint(0, 2, shape).to(dtype)
    (back, again), other = echoes[0].echo(([tensor, tensor], 7)).wait(SOON)
    assert other == 7
    assert back.dtype == dtype
    assert torch.equal(back, tensor)
    assert torch.equal(again, tensor)


def test_large_tensors_go_through_shared_memory_and_leave_nothing_there(cluster, echoes):
    tensor = torch.arange(1_000_000, dtype=torch.float32)
    for result in echoes.scale(tensor, 2.0).wait(SOON):
        assert torch.equal(result, tensor * 2)  # written to by two workers, and each has its own
    assert torch.equal(tensor, torch.arange(1_000_000, dtype=torch.float32))
    assert echoes[0].array_sum(np.ones(500_000)).wait(SOON) == 500_000
    deadline = time.monotonic() + SOON
    while sorted(path.name for path in cluster.shelf.folder.iterdir()) != ["lock"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_parameters_arrive_as_plain_tensors_without_history(echoes):
    parameter = torch.nn.Parameter(torch.ones(4))
    back = echoes[0].echo(parameter * 2).wait(SOON)
    assert not back.requires_grad
    assert type(echoes[0].echo(parameter).wait(SOON)) is torch.Tensor


def test_workers_send_to_each_other(echoes):
    tensor = torch.rand(100_000)
    echoes[0].pass_on(tensor, "echo[1]")
    echoes[0].pass_on("second", "echo[1]")
    assert torch.equal(echoes[1].take_in("echo[0]").wait(SOON), tensor)
    assert echoes[1].take_in("echo[0]").wait(SOON) == "second"


def test_a_channel_joins_workers_and_driver(cluster, echoes):
    channel = cluster.channel("numbers", capacity=2)
    made = echoes[0].produce(channel, list(range(6)))
    got = echoes[1].consume(channel, 4).wait(SOON)
    assert got == [0, 1, 2, 3]
    assert channel.get_batch(2).wait(SOON) == [4, 5]
    made.wait(SOON)
    with pytest.raises(ValueError, match="has the capacity 2"):
        cluster.channel("numbers", capacity=3)
    rest = echoes[1].consume_all(channel)
    channel.put("last")
    channel.close()
    assert rest.wait(SOON) == ["last"]


async def test_what_a_waiter_that_left_was_given_is_not_lost(cluster):
    channel = cluster.channel("left")
    waiting = asyncio.ensure_future(_get(channel))
    await asyncio.sleep(0.01)
    channel.put("one")
    waiting.cancel()  # it has been delivered, and not been taken
    await asyncio.gather(waiting, return_exceptions=True)
    with pytest.raises(TimeoutError):
        channel.get("other").wait(0.01)
    assert channel.get().wait(SOON) == "one"


async def _get(channel):
    return await channel.get()


def test_a_killed_worker_ends_its_calls_and_is_named(cluster):
    group = cluster.group(Echo, devices=[[], []], name="victim")
    waiting, other = group[0].sleep(60), group[1].sleep(0.5)
    together = group.nap(60)
    group[0].kill()
    for handle in (waiting, together, group[0].echo(1)):
        with pytest.raises(WorkerLost, match=r"victim\[0\] is lost: it was killed by signal 9") as caught:
            handle.wait(SOON)
        assert caught.value.worker == "victim[0]"
    assert other.wait(SOON) == "victim[1]"
    assert (cluster.alive()["victim[0]"], cluster.alive()["victim[1]"]) == (False, True)
    group[0].revive()
    assert group[0].echo("again").wait(SOON) == "again"


def test_one_that_is_being_made_cannot_be_called_yet(cluster, tmp_path):
    revive_while_called(cluster, tmp_path, SOON)


def test_one_that_exits_by_itself_is_lost_too(cluster):
    group = cluster.group(Echo, devices=[[]], name="leaver")
    with pytest.raises(WorkerLost, match="it exited with 3"):
        group.die().wait(SOON)


def test_a_consumer_that_died_is_an_error_to_the_producer(cluster, echoes):
    channel = cluster.channel("deserted", capacity=1)
    consumer = cluster.group(Echo, devices=[[]], name="consumer")
    consumer[0].get_and_sit(channel)
    channel.put(1)
    while channel.size().wait(SOON):
        time.sleep(0.01)
    making = echoes[0].produce(channel, [2, 3, 4])
    consumer[0].kill()
    with pytest.raises(ChannelBroken, match=r"'deserted' has no consumer any more: consumer\[0\] died"):
        making.wait(SOON)
    with pytest.raises(ChannelBroken):
        channel.put(5).wait(SOON)


def test_a_lock_goes_on_when_its_owner_dies(cluster):
    group = cluster.group(Echo, devices=[[], []], name="owner")
    group[0].hold([0], 60)
    lock = cluster.lock([0])
    deadline = time.monotonic() + SOON
    while lock.owners().wait(SOON) != {0: "owner[0]"}:
        assert time.monotonic() < deadline
    next_in_line = group[1].hold([0], 0.01)
    group[0].kill()
    assert next_in_line.wait(SOON) == "owner[1]"
    with lock:
        assert lock.owners().wait(SOON) == {0: "driver"}
    assert lock.owners().wait(SOON) == {}


def test_a_lease_ends_when_its_owner_stands_still_and_the_owner_hears_of_it():
    with connect("local", lease_s=1.0) as cluster:
        group = cluster.group(Echo, devices=[[]], name="still")
        holds, pid = group[0].hold([0], 0.5), group[0].where().wait
        holds.wait(SOON)  # renewed all the while, or this would fail
        pid = pid(SOON)[1]
        holds = group[0].hold([0], 0.5)
        lock = cluster.lock([0])
        while lock.owners().wait(SOON) != {0: "still[0]"}:
            time.sleep(0.01)
        os.kill(pid, signal.SIGSTOP)
        with lock:
            assert lock.owners().wait(SOON) == {0: "driver"}
        os.kill(pid, signal.SIGCONT)
        with pytest.raises(LeaseLost, match=r"still\[0\] held devices \[0\]"):
            holds.wait(SOON)


def test_bad_groups_are_refused_with_a_reason(cluster):
    there = len(cluster.devices)
    with pytest.raises(UserError, match=rf"big\[1\] wants device {there + 3}, but there are {there}"):
        cluster.group(Echo, devices=[[0], [there + 3]], name="big")
    with pytest.raises(UserError, match="twice"):
        cluster.group(Echo, devices=[[0, 0]], name="big")
    with pytest.raises(UserError, match="no workers"):
        cluster.group(Echo, devices=[], name="big")
    with pytest.raises(WorkerFailed, match=r"stubborn\[\d\].__init__ failed: RuntimeError: no such luck"):
        cluster.group(Stubborn, devices=[[], []], name="stubborn")
    assert "stubborn[0]" not in cluster.alive()


def test_bad_clusters_are_refused_with_a_reason():
    with pytest.raises(UserError, match=r"flow.devices = 4096, but this machine has"), connect("local", devices=4096):
        pass
    with pytest.raises(UserError, match="is an address of Ray"), connect("local", address="10.0.0.1:6379"):
        pass


def test_a_worker_of_another_version_is_refused(cluster, monkeypatch):
    monkeypatch.setattr("untail.flow.local.__version__", "99.0")
    with pytest.raises(UserError, match=r"worker old\[0\] runs untail .*, and its driver 99.0; install the same"):
        cluster.group(Echo, devices=[[]], name="old")


def test_closing_ends_all_processes_and_leaves_no_memory_behind():
    with connect("local") as cluster:
        group = cluster.group(Echo, devices=[[]], name="last")
        pid = group[0].where().wait(SOON)[1]
        folder = cluster.shelf.folder
        pending = group[0].nap(60)
    with pytest.raises(WorkerLost, match="its cluster was closed"):
        pending.wait(SOON)
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("rounds", [300, pytest.param(3_500, marks=pytest.mark.slow)])
def test_soak_of_the_lock_with_processes_killed(cluster, tmp_path, rounds):
    """Three workers take and give devices at random, and are killed now and then: nobody is left waiting, and no two
    are ever on one device."""
    diary, chance, killed = str(tmp_path / "diary"), random.Random(3), set()
    group = cluster.group(Echo, devices=[[], [], []], name=f"fighter {rounds}")
    start = lambda rank, seed: group[rank].fight(rounds, seed, 2, diary)
    pids = [group[rank].where().wait(SOON)[1] for rank in range(3)]
    fights = [start(rank, rank) for rank in range(3)]
    for number in range(max(3, rounds // 300)):
        time.sleep(0.1)
        rank = chance.randrange(3)
        killed.add(pids[rank])
        group[rank].kill()
        group[rank].revive()
        pids[rank] = group[rank].where().wait(SOON)[1]
        fights[rank] = start(rank, 100 + number)
    assert [fight.wait(2 * SOON) for fight in fights] == [rounds] * 3
    assert cluster.lock([0]).owners().wait(SOON) == {}
    _no_two_at_once((tmp_path / "diary").read_text().splitlines(), killed)


def _no_two_at_once(lines, killed):
    inside, over = {}, set()
    assert len(lines) > 1000
    for line in lines:
        what, device, _, _, pid = line.split()
        assert int(pid) not in over, "a process that had lost its devices used one"
        if what == "out":
            assert inside.pop(device) == pid
        else:
            if device in inside:
                assert int(inside[device]) in killed
                over.add(int(inside[device]))
            inside[device] = pid
