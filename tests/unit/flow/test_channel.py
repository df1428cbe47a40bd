"""Everything put comes out once, in order; what happens at one end reaches the other."""

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from untail.flow.channel import Channel
from untail.flow.failures import ChannelBroken, ChannelClosed


async def test_items_come_in_order_until_it_is_closed():
    channel = Channel()
    for item in range(3):
        channel.put(item)
    channel.close()
    assert [item async for item in channel] == [0, 1, 2]


async def test_an_error_comes_after_what_was_put_before_it():
    channel = Channel()
    channel.put(1)
    channel.close(ValueError("broken"))
    items = aiter(channel)
    assert await anext(items) == 1
    with pytest.raises(ValueError, match="broken"):
        await anext(items)


def test_keys_do_not_see_each_other():
    channel = Channel()
    channel.put("b", key="right")
    channel.put("a", key="left")
    assert channel.get("left").wait(1) == "a"
    with pytest.raises(TimeoutError, match="get from channel"):
        channel.get("left").wait(0)
    assert channel.get("right").wait(1) == "b"


async def test_a_put_waits_for_room_and_its_item_is_there_at_once():
    channel = Channel(capacity=2)
    puts = [channel.put(number) for number in range(4)]
    assert [put.done for put in puts] == [True, True, False, False]
    assert channel.size() == 4
    assert await channel.get() == 0
    assert [put.done for put in puts] == [True, True, True, False]
    channel.close()  # and what waits for room is not lost
    await puts[3]
    assert [item async for item in channel] == [1, 2, 3]


def test_an_item_heavier_than_the_bound_goes_through_alone():
    channel = Channel(capacity=2)
    assert channel.put("heavy", weight=9).done
    assert not channel.put("light", weight=0.5).done
    assert channel.get().wait(1) == "heavy"
    assert channel.get().wait(1) == "light"


def test_a_batch_is_complete_when_it_weighs_enough():
    channel = Channel()
    batch = channel.get_batch(weight=5)
    for number, weight in enumerate((2, 2, 3, 1)):
        assert not batch.done or number == 3
        channel.put(number, weight=weight)
    assert batch.wait(1) == [0, 1, 2]
    channel.close()
    assert channel.get_batch(weight=100).wait(1) == [3]
    with pytest.raises(ChannelClosed):
        channel.get_batch(weight=100).wait(1)


def test_a_batch_larger_than_the_bound_can_be_had():
    channel = Channel(capacity=2)
    batch = channel.get_batch(weight=6)
    producer = threading.Thread(target=lambda: [channel.put(number).wait(5) for number in range(6)])
    producer.start()
    assert batch.wait(5) == [0, 1, 2, 3, 4, 5]
    producer.join()


async def test_who_leaves_takes_nothing_with_it():
    channel = Channel()
    first = asyncio.ensure_future(_get_batch(channel, 3))
    second = asyncio.ensure_future(_get_batch(channel, 2))
    await asyncio.sleep(0)
    channel.put("a")
    channel.put("b")
    await asyncio.sleep(0)
    first.cancel()  # with two thirds of its batch
    assert await second == ["a", "b"]


async def test_what_was_delivered_to_one_that_leaves_returns_to_its_place():
    channel = Channel()
    waiting = asyncio.ensure_future(_get_batch(channel, 1))
    await asyncio.sleep(0)
    channel.put("a")
    channel.put("b")
    waiting.cancel()  # it has "a", but has not run since
    await asyncio.gather(waiting, return_exceptions=True)
    assert [await channel.get(), await channel.get()] == ["a", "b"]


async def _get_batch(channel, weight):
    return await channel.get_batch(weight)


def test_the_death_of_every_consumer_is_an_error_to_producers_until_there_is_another():
    channel = Channel("seen", capacity=1)
    channel.take("", 4, owner="a")
    channel.take("", 1, owner="b")
    for number in range(3):
        put = channel.put(number, owner="maker")
    channel.lost("b")
    assert put.done
    channel.lost("a")
    waits = channel.put(9, owner="maker")
    for handle in (waits, channel.put(9, owner="maker")):
        with pytest.raises(ChannelBroken, match=r"'seen' has no consumer any more: b, a died"):
            handle.wait(1)
    assert channel.get_batch(3).wait(1) == [0, 1, 2]  # somebody came: it goes on with what "a" had
    channel.put(10, owner="maker").wait(1)


def test_what_a_dead_consumer_had_half_of_goes_to_others():
    channel = Channel()
    channel.take("", 3, owner="a")
    channel.put("x")
    channel.put("y")
    channel.lost("a")
    assert channel.get_batch(2).wait(1) == ["x", "y"]


def test_the_death_of_every_producer_is_an_error_to_consumers_after_what_it_put():
    channel = Channel("made")
    channel.put(1, owner="maker")
    channel.lost("maker")
    assert channel.get().wait(1) == 1
    with pytest.raises(ChannelBroken, match=r"no producer any more: maker died"):
        channel.get().wait(1)


def test_nothing_may_be_put_after_the_end():
    channel = Channel("over")
    channel.close()
    with pytest.raises(ChannelClosed, match="'over' is closed"):
        channel.put(1).wait(1)


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="capacity = 0 holds nothing"):
        Channel(capacity=0)
    with pytest.raises(ValueError, match=r"weight=0\) asks for nothing"):
        Channel().get_batch(0)
    with pytest.raises(ValueError, match="weight nan"):
        Channel().put(1, weight=float("nan"))


@given(st.lists(st.sampled_from(["put", "get", "batch", "leave", "die"]), max_size=60), st.randoms(), st.integers(1, 8))
def test_whatever_happens_everything_comes_out_once_and_in_order(acts, chance, capacity):
    """Gets that are called off, and getters that die, give back what they have."""
    channel, put, waiting = Channel(capacity=capacity), 0, []
    channel.take("another key", None, owner="heir")  # or those who put would hear that all are dead
    for number, act in enumerate(acts):
        if act == "put":
            channel.put(put, weight=chance.randrange(5))
            put += 1
        elif act in ("get", "batch"):
            weight = None if act == "get" else chance.randint(1, 12)
            waiting.append((str(number), channel.take("", weight, owner=str(number))))
        elif waiting and act == "leave":
            chance.choice(waiting)[1].cancel()
        elif waiting:
            channel.lost(chance.choice(waiting)[0])
    channel.close()
    taken = [item.value for _, future in waiting for item in _result(future)]
    assert taken + list(channel) == list(range(put))


def _result(future):
    """Nothing, of one that was called off, that died, or that came when nothing was left."""
    return [] if not future.done() or future.cancelled() or future.exception() else future.result()
