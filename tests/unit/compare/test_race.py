"""Trainings in turn: the order of their steps, who is out, and that all are closed."""

from functools import partial

import pytest

from untail.compare.race import Lane, race
from untail.errors import UserError


class Fake:
    """Writes down what is asked of it. `fails` is where it is refused."""

    def __init__(self, name: str, diary: list[str], steps: int = 3, fails: str = ""):
        self.name, self.diary, self.left, self.fails = name, diary, steps, fails
        self._write("load")

    async def begin(self) -> None:
        self._write("begin")

    async def one_step(self) -> bool:
        if not self.left:
            return False
        self.left -= 1
        self._write("step")
        return True

    async def end(self) -> None:
        self._write("end")

    async def close(self) -> None:
        self.diary.append(f"{self.name} close")

    def _write(self, what: str) -> None:
        if what == self.fails:
            raise UserError(f"{self.name} cannot {what}")
        self.diary.append(f"{self.name} {what}")


def lanes_of(diary: list[str], may_fail: bool = True, **fails: str) -> list[Lane]:
    return [Lane(partial(Fake, name, diary, fails=fails.get(name, "")), may_fail) for name in "abc"]


async def test_each_does_a_step_in_a_round_and_the_first_to_go_changes():
    diary: list[str] = []
    await race(lanes_of(diary))
    steps = "".join(line[0] for line in diary if line.endswith("step"))
    assert steps == "abc" + "bca" + "cab"
    assert diary[:6] == [f"{name} {what}" for what in ("load", "begin") for name in "abc"]
    assert diary[-6:] == [f"{name} {what}" for what in ("end", "close") for name in "abc"]


@pytest.mark.parametrize("when", ["load", "begin", "step", "end"])
async def test_one_that_is_refused_is_out_and_the_others_go_on(when):
    diary: list[str] = []
    lanes = lanes_of(diary, b=when)
    await race(lanes)
    assert [lane.error for lane in lanes] == [None, f"b cannot {when}", None]
    for name in "ac":
        assert [line for line in diary if line[0] == name].count(f"{name} step") == 3
        assert f"{name} end" in diary
    assert ("b close" in diary) == (when != "load")
    assert "b end" not in diary


async def test_one_that_may_not_fail_ends_it_all_and_everything_is_closed():
    diary: list[str] = []
    with pytest.raises(UserError, match="b cannot step"):
        await race(lanes_of(diary, may_fail=False, b="step"))
    assert diary[-3:] == ["a close", "b close", "c close"]
    assert "a end" not in diary


async def test_nobody_begins_before_all_are_loaded():
    diary: list[str] = []
    with pytest.raises(UserError, match="c cannot load"):
        await race(lanes_of(diary, may_fail=False, c="load"))
    assert diary == ["a load", "b load", "a close", "b close"]
