"""From prompts to members in the queue."""

from itertools import cycle

import pytest
from tests.helpers.rig import Rig, lengths
from tests.helpers.tiny import shapes

from untail.history.stats import Record
from untail.rollout.live import State
from untail.rollout.points import Admit, Mechanism
from untail.types import stream_key


class Setting:
    def __init__(self, *made_here, **config):
        self.rig = Rig(lengths(), {}, *made_here, **{"pool": 6, **config})
        self.stage = self.rig.stage
        self.events = []
        self.stage.emit = self.events.append
        # Nothing runs here, and so there is no event loop to ask for the time.
        self.stage.clock = type("Clock", (), {"now": lambda self: 5.0})()
        self.stage.view.step = 3

    def admit(self, count: int) -> int:
        return self.rig.controller.admission.admit(count)

    @property
    def prompts(self) -> list[int]:
        """Of the groups under way."""
        return [group.plan.prompt.tokens[0] for group in self.stage.pool.live.values()]


class Backwards(Mechanism, Admit):
    def rank(self, view):
        return iter(sorted(view.prompts, key=lambda prompt: -prompt.tokens[0]))


class Refuses(Mechanism, Admit):
    def shape(self, plan, view):
        return None


def test_a_group_and_its_members():
    s = Setting(group=3, max_tokens=50)
    s.stage.history.add([Record(p.id, "test", 1, 0, 20, "stop", 1.0) for p in s.rig.prompts])
    assert s.admit(2) == 2
    one, two = s.stage.pool.live.values()
    assert (one.id, two.id, one.step) == ("g00000000", "g00000003", 3)
    assert [(m.id, m.serial, m.state, m.started) for m in two.members] == [
        (f"g00000003/{n}", 3 + n, State.WAITING, False) for n in range(3)
    ]
    assert [m.trajectory.stream for m in two.members] == [stream_key(0, m.id) for m in two.members]
    assert list(s.stage.queue) == one.members + two.members
    assert all(s.stage.members[member.id] is member for member in s.stage.queue)
    assert s.stage.view.started == 6
    assert s.events[0] == {
        **{"e": "admit", "t": 5.0, "step": 3, "group": "g00000000", "prompt": one.plan.prompt.id},
        **{"size": 3, "keep": 3, "budget": 50, "predicted": 20.0, "source": "own", "text": "prompt 0"},
    }
    assert s.prompts == [0, 1]


def test_where_nothing_is_known_the_event_says_so():
    s = Setting()
    s.admit(1)
    assert (s.events[0]["predicted"], s.events[0]["source"]) == (None, "unknown")


def test_prompts_come_in_their_order_from_where_the_last_left_off():
    s = Setting()
    s.admit(2)
    s.admit(3)
    assert s.prompts == [0, 1, 2, 3, 4]


def test_a_prompt_under_way_is_not_asked_again():
    s = Setting(pool=4)
    s.admit(3)
    assert s.admit(3) == 1  # there is one more; the others are under way
    assert sorted(s.prompts) == [0, 1, 2, 3]
    assert s.admit(1) == 0
    s.stage.pool.remove(s.stage.pool.live["g00000000"])
    assert s.admit(2) == 1
    assert sorted(s.prompts) == [0, 1, 2, 3]


def test_a_mechanism_ranks():
    s = Setting(Backwards)
    s.admit(2)
    s.admit(2)
    assert s.prompts == [5, 4, 3, 2]


def test_a_ranking_may_end_or_have_no_end():
    class Two(Backwards):
        def rank(self, view):
            return iter(view.prompts[:2])

    assert Setting(Two).admit(4) == 2

    class Same(Backwards):
        def rank(self, view):
            return cycle(view.prompts[:1])

    assert Setting(Same).admit(4) == 1


def test_mechanisms_shape_plans_one_after_another():
    class Halves(Mechanism, Admit):
        def shape(self, plan, view):
            plan.budget //= 2
            return plan

    s = Setting(shapes(size=6, keep=4, budget=60, priority=2.0), Halves)
    s.admit(1)
    (group,) = s.stage.pool.live.values()
    assert (group.plan.size, group.plan.keep, group.plan.budget, group.plan.priority) == (6, 4, 30, 2.0)
    assert len(group.members) == 6
    assert (s.events[0]["size"], s.events[0]["keep"], s.events[0]["budget"]) == (6, 4, 30)


def test_a_prompt_that_is_refused_is_passed_over():
    class Odd(Mechanism, Admit):
        def shape(self, plan, view):
            return plan if plan.prompt.tokens[0] % 2 else None

    s = Setting(Odd)
    assert s.admit(2) == 2
    assert s.prompts == [1, 3]


def test_where_everything_is_refused_a_step_with_nothing_gets_plain_groups():
    s = Setting(shapes(budget=7), Refuses)
    assert s.admit(2) == 2
    assert {group.plan.budget for group in s.stage.pool.live.values()} == {100}
    assert [event.get("anyway") for event in s.events if event["e"] == "admit"] == [True, True]
    assert s.admit(2) == 0  # now there is something


@pytest.mark.parametrize("mechanisms", [[], [Refuses], [Backwards]])
def test_nothing_is_asked_for_nothing(mechanisms):
    s = Setting(*mechanisms)
    assert s.admit(0) == 0
    assert not s.prompts
