"""Groups that share a device: one runs at a time, onloaded; those that fit together stay."""

import asyncio

import pytest
from tests.helpers.workers import Tenant

from untail.flow.cluster import connect
from untail.flow.failures import WorkerLost
from untail.flow.switch import Turns


@pytest.fixture(scope="module")
def cluster():
    with connect("local") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tenants(cluster):
    """Three on device 0. Devices are what the locks are about; nothing here needs a core of its own."""
    return [cluster.group(Tenant, size, devices=[[0]], name=f"tenant {size:g}") for size in (6.0, 3.0, 2.0)]


async def _written(tenants):
    return [(await tenant.written())[0] for tenant in tenants]


async def test_without_a_capacity_each_turn_is_a_switch(cluster, tenants):
    before = [len(diary) for diary in await _written(tenants)]
    turns = Turns(cluster)
    for tenant in (tenants[0], tenants[1], tenants[0]):
        assert await turns.run(tenant, "work") == [1]
    await turns.leave(tenants[0])
    assert [diary[n:] for diary, n in zip(await _written(tenants), before, strict=True)] == [
        ["on", "off", "on", "off"],
        ["on", "off"],
        [],
    ]
    assert turns.switches == 3


async def test_those_that_fit_together_stay_and_the_longest_idle_goes_first(cluster, tenants):
    before = [len(diary) for diary in await _written(tenants)]
    turns = Turns(cluster, capacity=9)
    for tenant in (tenants[0], tenants[1], tenants[0], tenants[1], tenants[2], tenants[1]):
        assert await turns.run(tenant, "work") == [1]
    assert [diary[n:] for diary, n in zip(await _written(tenants), before, strict=True)] == [
        ["on", "off"],
        ["on"],
        ["on"],
    ]
    for tenant in tenants:
        await turns.leave(tenant)


async def test_turns_on_one_device_never_overlap(cluster, tenants):
    turns, inside, most = Turns(cluster), 0, 0

    async def stay(tenant):
        nonlocal inside, most
        async with turns.of(tenant):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(*(stay(tenant) for tenant in tenants * 3))
    assert most == 1
    await turns.leave(tenants[2])


async def test_the_memory_of_one_that_died_is_free(cluster, tenants):
    victim = cluster.group(Tenant, 8.0, devices=[[0]], name="victim")
    turns = Turns(cluster, capacity=9)
    await turns.run(victim, "work")
    victim[0].kill()
    with pytest.raises(WorkerLost):
        await turns.run(victim, "work")
    assert await turns.run(tenants[0], "work") == [1]
    await turns.leave(tenants[0])
