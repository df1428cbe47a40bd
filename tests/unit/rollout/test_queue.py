"""Who gets the next slot."""

from tests.helpers.rollout import make_group, make_plan, make_prompt, write

from untail.rollout.live import Member
from untail.rollout.queue import Queue


def member(group: str, serial: int, tokens: int = 0, priority: float = 0.0) -> Member:
    made = make_group(make_plan(make_prompt(), size=1, priority=priority), name=group).members[0]
    made.serial = serial
    return write(made, [1] * tokens)


def order(queue: Queue) -> list[int]:
    return [waiting.serial for waiting in queue]


def test_overdue_then_unfinished_then_new_by_priority_and_each_by_age():
    queue = Queue()
    queue.hurry({"late"})
    waiting = [
        member("a", 8, priority=1.0),
        member("a", 7),
        member("b", 9, priority=2.0),
        member("b", 4, tokens=3),
        member("b", 3, tokens=3, priority=-5.0),  # priority is for new work
        member("late", 6),
        member("late", 5, tokens=3),
    ]
    for one in waiting:
        queue.put(one)
    assert order(queue) == [5, 6, 3, 4, 9, 8, 7]
    assert len(queue) == 7


def test_what_is_overdue_may_change():
    queue = Queue()
    for one in (member("a", 1, tokens=1), member("b", 2, tokens=1), member("c", 3)):
        queue.put(one)
    queue.hurry({"c"})
    assert order(queue) == [3, 1, 2]
    queue.hurry({"b"})
    assert order(queue) == [2, 1, 3]


def test_a_ghost_is_never_overdue():
    queue, ghost = Queue(), member("late", 1, tokens=1)
    ghost.ghost = "loop"
    queue.hurry({"late"})
    for one in (ghost, member("late", 2)):
        queue.put(one)
    assert order(queue) == [2, 1]


def test_whoever_left_is_gone():
    queue, first, second = Queue(), member("a", 1), member("a", 2)
    queue.put(first)
    queue.put(second)
    queue.remove({first, member("a", 2)})
    assert list(queue) == [second]
