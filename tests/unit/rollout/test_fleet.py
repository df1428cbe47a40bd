"""Sequences in and out of slots, against scripted engines. A token takes a second."""

from contextlib import asynccontextmanager

import pytest
from tests.helpers.rig import lengths
from tests.helpers.rollout import make_group, make_plan, make_prompt
from tests.helpers.scripted import Scripted, Ticker

from untail.backends.virtual_loop import run_virtual
from untail.rollout.fleet import Fleet
from untail.rollout.live import Member, State
from untail.types import Chunk, SamplingParams

SAMPLING = SamplingParams(temperature=0.7, stop_ids=(0,))


class Setting:
    def __init__(self, engines: int = 1, slots: int = 4, length: int = 9):
        ticker = Ticker()
        self.backends = [Scripted(lengths(default=length), ticker=ticker) for _ in range(engines)]
        self.heard: list[tuple[str, Chunk | Exception]] = []
        self.fleet = Fleet(list(self.backends), slots, lambda name, item: self.heard.append((name, item)))
        self.members = make_group(make_plan(make_prompt(3), size=4, budget=20)).members

    def go(self, member: Member, stride: int = 4, engine: int = 0, chunk: int | None = None) -> None:
        self.fleet.go(member, engine, stride, SAMPLING, chunk)

    async def until(self, time: float) -> None:
        clock = self.fleet.clock
        await clock.sleep(time - clock.now() + 0.5)

    def take(self, member: Member) -> list[tuple[int, str | None]]:
        """What has come of it since: tokens, and the end; its trajectory gets them."""
        mine = [item for name, item in self.heard if name == member.id]
        self.heard = [item for item in self.heard if item[0] != member.id]
        for chunk in mine:
            member.trajectory.take(chunk)
        return [(len(chunk.tokens), chunk.end) for chunk in mine]


@asynccontextmanager
async def setting(**fields):
    made = Setting(**fields)
    try:
        yield made
    finally:
        await made.fleet.close()
        assert not any(backend.alive for backend in made.backends)


def run(test):
    """An async test in virtual time."""

    def wrapped():
        run_virtual(test())

    wrapped.__name__ = test.__name__
    return wrapped


@run
async def test_a_sequence_is_started_once_and_extended_then():
    async with setting() as s:
        member, backend = s.members[0], s.backends[0]
        s.go(member)
        assert (member.state, member.engine, member.slot, member.stride) == (State.RUNNING, 0, 0, 4)
        await s.until(4)
        assert s.take(member) == [(4, "boundary")]
        s.fleet.rest(member)
        assert (member.state, member.engine, member.slot) == (State.WAITING, 0, None)
        s.go(member, stride=3)
        await s.until(8)
        assert s.take(member) == [(3, "boundary")]
        s.fleet.go_on(member, 5)  # in its slot
        assert (member.slot, member.stride) == (0, 5)
        await s.until(11)
        assert s.take(member) == [(2, "stop")]
        (spec,) = backend.called("generate")
        assert (spec.id, spec.tokens, spec.budget, spec.stream) == (
            *(member.id, member.trajectory.prompt.tokens, 4, member.trajectory.stream),
        )
        assert (spec.sampling, spec.chunk, spec.done) == (SAMPLING, 20, 0)
        assert [call[2] for call in backend.calls if call[0] == "extend"] == [3, 5]
        s.fleet.forget(member)
        assert (member.engine, member.slot, s.fleet.slots.free) == (None, None, 4)


@run
async def test_chunks_are_as_long_as_somebody_wants_to_see():
    async with setting() as s:
        s.go(s.members[0], stride=5, chunk=2)
        await s.until(6)
        assert s.take(s.members[0]) == [(2, None), (2, None), (1, "boundary")]


@run
async def test_what_has_tokens_starts_with_them():
    async with setting(engines=2) as s:
        member = s.members[0]
        s.go(member)
        await s.until(4)
        s.take(member)
        s.fleet.rest(member)
        s.fleet.forget(member, at_boundary=True)
        s.go(member, engine=1)
        await s.until(9)
        (spec,) = s.backends[1].called("generate")
        assert (spec.tokens, spec.done, spec.chunk) == ((*member.trajectory.prompt.tokens, 1, 2, 3, 4), 4, 16)
        assert s.take(member) == [(4, "boundary")]
        assert member.trajectory.tokens == [1, 2, 3, 4, 5, 6, 7, 8]
        assert s.backends[0].called("release") == [member.id]
        assert not s.backends[0].alive


@run
async def test_cuts_go_to_each_engine_once():
    async with setting(engines=2) as s:
        a, b, c, idle = s.members
        for member, engine in ((a, 0), (b, 0), (c, 1)):
            s.go(member, stride=9, engine=engine)
        await s.until(2)
        s.fleet.cut([a, b, c, idle])
        s.fleet.cut([a, b])
        assert (a.cutting, idle.cutting) == (True, False)
        await s.until(3)
        assert [backend.called("cut") for backend in s.backends] == [[[a.id, b.id]], [[c.id]]]
        assert [s.take(member) for member in (a, b, c)] == [[(2, "boundary")]] * 3
        s.fleet.rest(a)
        s.go(a)  # and may be cut again
        assert not a.cutting


@run
async def test_an_aborted_one_holds_its_slot_until_its_engine_has_let_go():
    async with setting() as s:
        member = s.members[0]
        s.go(member)
        await s.until(2)
        s.fleet.abort(member)
        assert (member.slot, s.heard) == (0, [])
        await s.until(3)
        assert s.take(member) == [(2, "abort")]
        s.fleet.forget(member)
        assert s.fleet.slots.free == 4


@run
async def test_an_abort_finds_one_that_has_come_to_a_boundary():
    async with setting() as s:
        member = s.members[0]
        s.go(member, stride=2)
        await s.until(4)
        s.fleet.abort(member)
        await s.until(5)
        assert s.take(member) == [(2, "boundary"), (0, "abort")]


@run
async def test_a_failure_is_heard_and_its_slot_can_be_taken_again():
    async with setting() as s:
        first, second = s.members[:2]
        s.go(first)
        await s.until(1)
        s.backends[0].alive[first.id].script = lengths(default=9, fails_at=0)(0, 0)
        await s.until(3)
        ((name, error),) = s.heard
        assert name == first.id
        assert isinstance(error, MemoryError)
        s.fleet.forget(first)
        s.go(second)
        assert second.slot == 0


@run
async def test_one_that_never_had_a_slot_can_be_forgotten():
    async with setting() as s:
        s.fleet.forget(s.members[0], at_boundary=True)
        assert s.fleet.slots.free == 4
        assert s.backends[0].calls == []


@run
async def test_closing_lets_go_of_everything_wherever_it_is():
    async with setting(engines=2) as s:
        for member, stride in zip(s.members, (2, 9, 9, 9), strict=True):
            s.go(member, stride=stride, engine=member.serial % 2)
        await s.until(3)
        s.fleet.rest(s.members[0])
        s.fleet.abort(s.members[1])
        s.fleet.cut([s.members[2]])


def test_an_engine_without_a_slot_is_a_fault_of_the_caller():
    async def go() -> None:
        async with setting(slots=1) as s:
            s.go(s.members[0])
            with pytest.raises(IndexError):
                s.go(s.members[1])

    run_virtual(go())
