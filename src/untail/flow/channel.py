"""A queue between roles: what one puts, another gets, in order, until it is closed.

    channel = Channel[Group](capacity=64)
    channel.put(group, weight=group_tokens)          # at once; await it, or .wait(), for the bound to hold you back
    group = await channel.get()                      # or channel.get().wait() outside of an event loop
    groups = await channel.get_batch(weight=4096)    # items until their weights add up to it
    async for group in channel: ...                  # until it is closed; a producer's error is raised

Invariant: nothing put before `close` is lost, and nothing comes out twice: what a waiter was given that has gone by
then returns to its place. Items of one key come out in the order in which they were put; keys do not see each other. A
failure at one end reaches the other: the producer's error after what was put before it, and the death of every
consumer (of every producer) whoever puts (gets) after it, until another takes its place.

This class lives in one process. `cluster.channel(name)` makes one that any worker can use, with the same methods
(`ClusterChannel`, flow/link.py).
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar

from untail.flow.failures import ChannelBroken, ChannelClosed
from untail.flow.handle import Handle, if_cancelled

T = TypeVar("T")
Key = Hashable
Told = list[Callable[[], None]]
"""What waiters are told once the channel's own books are in order."""


@dataclass(frozen=True)
class Item(Generic[T]):
    value: T
    weight: float


class Readable(Generic[T]):
    """The reading end of a channel, wherever the channel is."""

    name: str

    def _take(self, key: Key, weight: float | None) -> "Future[list[Item[T]]]":
        """The oldest item of the key, or those that weigh so much together."""
        raise NotImplementedError

    def _give_back(self, key: Key, items: list[Item[T]]) -> None:
        """Nobody was there to take them."""
        raise NotImplementedError

    def _value(self, item: Item[T]) -> T:
        return item.value

    def get(self, key: Key = "") -> Handle[T]:
        """The oldest item of the key."""
        return self._handle(key, None, lambda items: self._value(items[0]))

    def get_batch(self, weight: float, key: Key = "") -> Handle[list[T]]:
        """The oldest items of the key whose weights add up to at least `weight`; what is left, where that is less and
        the channel is closed."""
        if not weight > 0:
            raise ValueError(f"channel {self.name!r}: get_batch(weight={weight}) asks for nothing; give more than 0")
        return self._handle(key, weight, lambda items: [self._value(item) for item in items])

    def _handle(self, key: Key, weight: float | None, convert: Callable[[list[Item[T]]], Any]) -> Handle[Any]:
        undo = lambda items: self._give_back(key, items)
        return Handle(self._take(key, weight), f"get from channel {self.name!r}", undo, convert)

    async def __aiter__(self) -> AsyncIterator[T]:
        with suppress(ChannelClosed):
            while True:
                yield await self.get()

    def __iter__(self) -> Iterator[T]:
        with suppress(ChannelClosed):
            while True:
                yield self.get().wait()


@dataclass(eq=False)
class _Put(Generic[T]):
    item: Item[T]
    future: "Future[None]"


@dataclass(eq=False)
class _Get(Generic[T]):
    owner: str
    future: "Future[list[Item[T]]]"
    weight: float | None  # None: one item, whatever it weighs
    taken: list[Item[T]] = field(default_factory=list)

    @property
    def is_served(self) -> bool:
        return bool(self.taken) if self.weight is None else sum(item.weight for item in self.taken) >= self.weight


@dataclass
class _Lane(Generic[T]):
    """The items of one key, and who waits for them or for room."""

    items: deque[Item[T]] = field(default_factory=deque)
    puts: deque[_Put[T]] = field(default_factory=deque)
    gets: deque[_Get[T]] = field(default_factory=deque)


class _End:
    """Those who have been seen at one end: the dead by name, and whether anybody is alive."""

    def __init__(self) -> None:
        self.alive: set[str] = set()
        self.dead: list[str] = []

    def seen(self, owner: str) -> None:
        self.alive.add(owner)
        if owner in self.dead:
            self.dead.remove(owner)

    def lost(self, owner: str) -> None:
        if owner in self.alive:
            self.alive.discard(owner)
            self.dead.append(owner)

    @property
    def is_deserted(self) -> bool:
        return bool(self.dead) and not self.alive


class Channel(Readable[T]):
    def __init__(self, name: str = "channel", capacity: float | None = None):
        """`capacity` is the weight that each key may hold; an item heavier than that fits when there is no other."""
        if capacity is not None and not capacity > 0:
            raise ValueError(f"channel {name!r}: capacity = {capacity} holds nothing; leave it out for no bound")
        self.name = name
        self.capacity = capacity
        self._lanes: dict[Key, _Lane[T]] = {}
        self._consumers, self._producers = _End(), _End()
        self._closed = False
        self._error: BaseException | None = None
        self._lock = Lock()

    def put(self, item: T, key: Key = "", weight: float = 1.0, owner: str = "") -> Handle[None]:
        """The item is in the channel when this returns; the handle is done once there is room for it."""
        if not weight >= 0:
            raise ValueError(f"channel {self.name!r}: an item of weight {weight} cannot be put; give 0 or more")
        future: Future[None] = Future()
        with self._lock:
            told: Told = []
            if self._closed:
                told.append(partial(future.set_exception, ChannelClosed(f"channel {self.name!r} is closed")))
            elif self._consumers.is_deserted:
                told.append(partial(future.set_exception, self._deserted("consumer", self._consumers)))
            else:
                self._producers.seen(owner)
                self._lane(key).puts.append(_Put(Item(item, weight), future))
                told = self._serve(key)
        _tell(told)
        return Handle(future, f"put to channel {self.name!r}")

    def size(self, key: Key = "") -> int:
        """Items of the key that nobody has got yet, those that wait for room with them."""
        with self._lock:
            lane = self._lane(key)
            return len(lane.items) + len(lane.puts)

    def close(self, error: BaseException | None = None) -> None:
        """No more will come; `error` is raised to whoever gets when nothing is left."""
        with self._lock:
            self._closed, self._error = True, error
            told = [tell for key in list(self._lanes) for tell in self._serve(key)]
        _tell(told)

    def lost(self, owner: str) -> None:
        """Somebody died: what it was waiting for goes to others, and so does what it had half of."""
        with self._lock:
            told: Told = []
            for key, lane in self._lanes.items():
                for get in [get for get in lane.gets if get.owner == owner]:
                    self._put_back(lane, get)
                    lane.gets.remove(get)
                told += self._serve(key)
            for end in (self._consumers, self._producers):
                end.lost(owner)
            told += self._break_if_deserted()
        _tell(told)

    def take(self, key: Key, weight: float | None, owner: str) -> "Future[list[Item[T]]]":
        """For `owner`; a future that is cancelled takes nothing."""
        get: _Get[T] = _Get(owner, Future(), weight)
        with self._lock:
            self._consumers.seen(owner)
            self._lane(key).gets.append(get)
            told = self._serve(key) + self._break_if_deserted()
        _tell(told)
        if_cancelled(get.future, partial(self._serve_others, key))
        return get.future

    def give_back(self, key: Key, items: list[Item[T]]) -> None:
        """What was taken and not used returns to its place."""
        with self._lock:
            self._lane(key).items.extendleft(reversed(items))
            told = self._serve(key)
        _tell(told)

    def _take(self, key: Key, weight: float | None) -> "Future[list[Item[T]]]":
        return self.take(key, weight, "")

    def _give_back(self, key: Key, items: list[Item[T]]) -> None:
        self.give_back(key, items)

    def _lane(self, key: Key) -> _Lane[T]:
        return self._lanes.setdefault(key, _Lane())

    def _serve(self, key: Key) -> Told:
        """Match what is there with who waits. Pre: the lock is held."""
        lane, told = self._lanes[key], []
        self._drop_cancelled(lane)
        while True:
            told += self._let_in(lane)
            if not (lane.gets and lane.items):
                break
            get = lane.gets[0]
            get.taken.append(lane.items.popleft())
            if get.is_served:
                told += self._deliver(lane, get)
        if self._closed:
            for get in list(lane.gets):
                told += self._deliver(lane, get) if get.taken else self._fail(lane, get, self._reason())
        return told

    def _let_in(self, lane: _Lane[T]) -> Told:
        told: Told = []
        while lane.puts and self._has_room(lane, lane.puts[0].item):
            put = lane.puts.popleft()
            lane.items.append(put.item)
            if put.future.set_running_or_notify_cancel():  # else nobody waits for room; the item is in all the same
                told.append(partial(put.future.set_result, None))
        return told

    def _has_room(self, lane: _Lane[T], item: Item[T]) -> bool:
        if self.capacity is None or self._closed or not lane.items:
            return True
        return sum(other.weight for other in lane.items) + item.weight <= self.capacity

    def _deliver(self, lane: _Lane[T], get: _Get[T]) -> Told:
        lane.gets.remove(get)
        if not get.future.set_running_or_notify_cancel():  # cancelled in this very moment
            self._put_back(lane, get)
            return []
        return [partial(get.future.set_result, get.taken)]

    def _fail(self, lane: _Lane[T], get: _Get[T], error: BaseException) -> Told:
        lane.gets.remove(get)
        return [partial(get.future.set_exception, error)] if get.future.set_running_or_notify_cancel() else []

    def _drop_cancelled(self, lane: _Lane[T]) -> None:
        for get in [get for get in lane.gets if get.future.cancelled()]:
            lane.gets.remove(get)
            self._put_back(lane, get)

    def _serve_others(self, key: Key) -> None:
        with self._lock:
            told = self._serve(key)
        _tell(told)

    @staticmethod
    def _put_back(lane: _Lane[T], get: _Get[T]) -> None:
        lane.items.extendleft(reversed(get.taken))
        get.taken = []

    def _break_if_deserted(self) -> Told:
        told: Told = []
        for lane in self._lanes.values():
            if self._consumers.is_deserted:
                error = self._deserted("consumer", self._consumers)
                told += [partial(put.future.set_exception, error) for put in lane.puts if not put.future.cancelled()]
                lane.puts.clear()
            if self._producers.is_deserted and not lane.items:
                for get in list(lane.gets):
                    told += self._fail(lane, get, self._deserted("producer", self._producers))
        return told

    def _deserted(self, role: str, end: _End) -> ChannelBroken:
        names = ", ".join(end.dead)
        return ChannelBroken(
            f"channel {self.name!r} has no {role} any more: {names} died; look at why it died, and start another in "
            "its place or close the channel"
        )

    def _reason(self) -> BaseException:
        return self._error if self._error is not None else ChannelClosed(f"channel {self.name!r} is closed")


def _tell(told: Told) -> None:
    """Outside of the lock: whoever is told may come back with the next request at once."""
    for tell in told:
        tell()
