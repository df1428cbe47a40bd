"""Time that is never waited for."""

import asyncio

import pytest

from untail.backends.base import LoopClock
from untail.backends.virtual_loop import run_virtual


def test_a_month_passes_at_once():
    async def sleep() -> float:
        clock = LoopClock()
        await clock.sleep(86400 * 30)
        return clock.now()

    assert run_virtual(sleep()) == pytest.approx(86400 * 30)


def test_tasks_wake_in_the_order_of_their_times():
    async def main() -> list[tuple[str, float]]:
        woken = []

        async def sleep(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append((name, asyncio.get_running_loop().time()))

        await asyncio.gather(sleep("c", 3.0), sleep("a", 1.0), sleep("b", 2.0), sleep("b2", 2.0))
        return woken

    assert run_virtual(main()) == [("a", 1.0), ("b", 2.0), ("b2", 2.0), ("c", 3.0)]


def test_time_stands_still_while_a_task_is_ready():
    async def main() -> float:
        timer = asyncio.create_task(asyncio.sleep(5))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not timer.done()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0.0


def test_a_timeout_is_in_virtual_time():
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7):
                await asyncio.sleep(8)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 7.0


def test_what_would_hang_raises():
    cleaned = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    with pytest.raises(RuntimeError, match="nothing is scheduled: every task waits for another"):
        run_virtual(wait())
    assert cleaned


def test_a_file_descriptor_that_is_ready_goes_before_the_next_timer():
    async def main() -> list[str]:
        loop, order = asyncio.get_running_loop(), []
        loop.call_later(1, order.append, "timer")
        loop.call_soon_threadsafe(lambda: loop.call_soon_threadsafe(order.append, "descriptor"))
        await asyncio.sleep(2)
        return order

    assert run_virtual(main()) == ["descriptor", "timer"]


def test_an_error_is_the_callers():
    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run_virtual(fail())
