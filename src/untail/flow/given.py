"""What a rollout gives: events and groups, in order.

Invariant: events of one turn of the event loop travel together, for there are thousands in a step, and to pass
something on costs more than to write it down; those before a group are there before it.
"""

import asyncio

from untail.flow.channel import Channel
from untail.types import Event, Group

Given = Channel[Group | list[Event]]


class Giver:
    def __init__(self, channel: Given):
        self._channel = channel
        self._events: list[Event] = []

    def emit(self, event: Event) -> None:
        if not self._events:
            asyncio.get_running_loop().call_soon(self._pass_on)
        self._events.append(event)

    def give(self, group: Group) -> None:
        self._pass_on()
        self._channel.put(group)

    def close(self, error: BaseException | None = None) -> None:
        self._pass_on()
        self._channel.close(error)

    def _pass_on(self) -> None:
        events, self._events = self._events, []
        if events:
            self._channel.put(events)
