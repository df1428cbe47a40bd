"""What a rollout gives comes in order, and events of one turn of the event loop come together."""

import asyncio

import pytest

from untail.flow.channel import Channel
from untail.flow.given import Giver
from untail.types import Group


def given(work) -> list:
    """What comes out of the channel, until it is closed."""

    async def run():
        channel = Channel()
        await work(Giver(channel))
        return [item async for item in channel]

    return asyncio.run(run())


def test_events_of_one_turn_travel_together():
    async def work(giver):
        for number in range(3):
            giver.emit({"e": number})
        await asyncio.sleep(0)
        giver.emit({"e": 3})
        giver.close()

    assert given(work) == [[{"e": 0}, {"e": 1}, {"e": 2}], [{"e": 3}]]


def test_a_group_comes_after_the_events_before_it():
    group = Group("g", None, [])

    async def work(giver):
        giver.emit({"e": 0})
        giver.give(group)
        giver.emit({"e": 1})
        giver.close()

    assert given(work) == [[{"e": 0}], group, [{"e": 1}]]


def test_events_before_a_failure_come_first():
    taken = []

    async def run():
        channel = Channel()
        giver = Giver(channel)
        giver.emit({"e": 0})
        giver.close(ValueError("broken"))
        async for item in channel:
            taken.append(item)

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(run())
    assert taken == [[{"e": 0}]]


def test_nothing_is_passed_on_twice():
    put = []

    async def run():
        channel = Channel()
        channel.put = put.append
        giver = Giver(channel)
        giver.emit({"e": 0})
        giver.close()
        await asyncio.sleep(0)

    asyncio.run(run())
    assert put == [[{"e": 0}]]
