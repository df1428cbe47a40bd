"""What is read again from its start and worked out only as far as somebody reads."""

from itertools import count, islice

from untail.rollout.admit.shared import Replay


def test_readers_share_what_is_worked_out():
    worked_out = []
    squares = Replay(worked_out.append(number) or number**2 for number in count())
    assert list(islice(squares, 3)) == [0, 1, 4]
    first, second = iter(squares), iter(squares)
    assert [next(first), next(second), next(first), next(second)] == [0, 0, 1, 1]
    assert worked_out == [0, 1, 2]
    assert list(islice(first, 3)) == [4, 9, 16]
    assert list(islice(second, 4)) == [4, 9, 16, 25]
    assert worked_out == [0, 1, 2, 3, 4, 5]


def test_it_ends_for_every_reader():
    known = Replay(iter("ab"))
    assert [list(known), list(known)] == [["a", "b"]] * 2
