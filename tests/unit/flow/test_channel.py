"""Everything put comes out, in order; a producer's failure reaches the consumer."""

import pytest

from untail.flow.channel import Channel


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
