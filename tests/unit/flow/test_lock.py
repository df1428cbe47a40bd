"""One owner a device, first come first served, for as long as its lease holds."""

import random
from collections import Counter

import pytest

from untail.flow.failures import LeaseLost
from untail.flow.lock import LockTable


class FakeTime:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_first_come_first_served_and_all_devices_or_none():
    table = LockTable()
    first = table.acquire([0], "a")
    both = table.acquire([0, 1], "b")
    late = table.acquire([1], "c")
    free = table.acquire([2], "d")
    assert [handle.done for handle in (first, both, late, free)] == [True, False, False, True]
    assert table.owners() == {0: "a", 2: "d"}
    assert [lease.owner for lease in table.waiting()] == ["b", "c"]
    table.release(first.wait(1))
    assert (both.done, late.done) == (True, False)
    table.release(both.wait(1))
    assert table.owners() == {1: "c", 2: "d"}


def test_a_lease_that_is_not_renewed_goes_on_and_its_owner_is_told():
    time = FakeTime()
    table = LockTable(lease_s=10, now=time)
    slow, waits = table.acquire([0], "slow").wait(1), table.acquire([0], "next")
    time.now = 9
    assert table.renew([slow]) == []
    time.now = 18
    table.expire()
    assert not waits.done
    time.now = 19.5
    table.expire()
    assert waits.wait(1).owner == "next"
    assert table.renew([slow]) == [slow]
    with pytest.raises(LeaseLost, match=r"slow held devices \[0\] without renewing its lease for 10 s"):
        table.release(slow)
    assert table.owners() == {0: "next"}


def test_the_dead_hold_nothing_and_wait_for_nothing():
    table = LockTable()
    table.acquire([0], "a")
    table.acquire([0], "b")
    last = table.acquire([0], "c")
    table.lost("b")
    table.lost("a")
    assert last.wait(1).owner == "c"


def test_one_who_gives_up_waiting_holds_nobody_back():
    table = LockTable()
    held = table.acquire([0], "a").wait(1)
    with pytest.raises(TimeoutError, match=r"the lock on devices \[0\] for b"):
        table.acquire([0], "b").wait(0)
    last = table.acquire([0], "c")
    table.release(held)
    assert last.done


def test_a_lock_on_nothing_is_refused():
    with pytest.raises(ValueError, match="a asks for a lock on no device"):
        LockTable().acquire([], "a")


@pytest.mark.parametrize("rounds", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_soak_with_owners_killed_has_no_deadlock_and_no_double_ownership(rounds):
    """Owners in a model: they ask, hold, release, stand still past their lease, die and come back, at random."""
    chance, time, devices = random.Random(7), FakeTime(), 5
    table = LockTable(lease_s=5, now=time)
    asked, held, granted, life = {}, {}, Counter(), Counter()
    for _ in range(rounds):
        time.now += chance.random()
        owner = f"w{chance.randrange(8)}"
        name = f"{owner}.{life[owner]}"
        act = chance.random()
        if act < 0.03:
            table.lost(name)
            life[owner] += 1
            asked.pop(owner, None)
            held.pop(owner, None)
        elif owner in held:
            lease = held.pop(owner)
            if table.renew([lease]):
                with pytest.raises(LeaseLost):
                    table.release(lease)
            else:
                table.release(lease)
        elif owner in asked:
            if asked[owner].done:
                held[owner] = asked.pop(owner).wait()
                granted[owner] += 1
        else:
            asked[owner] = table.acquire(chance.sample(range(devices), chance.randint(1, devices)), name)
        _check(table, devices)
    time.now += 100  # everybody stands still: all that wait are served in the end
    for _ in range(20):
        table.expire()
        time.now += 100
    assert table.waiting() == []
    assert min(granted.values()) > rounds / 200


def _check(table, devices):
    leases = list(table._held.values())
    counts = Counter(device for lease in leases for device in lease.devices)
    assert not counts or max(counts.values()) == 1
    first = next(iter(table.waiting()), None)
    if first is not None:  # the first in line waits only for devices that are held
        assert set(first.devices) & set(counts)
