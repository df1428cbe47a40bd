"""Utility per second: VADE's gain over what a response costs."""

import json
from itertools import islice

import pytest
from tests.helpers.rollout import FakeView, make_plan, make_prompt, whole

from untail.errors import ConfigError

from .helpers import build, remember


def some_view(**fields) -> FakeView:
    """20 prompts of which every third is long; nothing is free: all slots are taken."""
    fields = {"running": 64, "prompts": [make_prompt(n) for n in range(20)], **fields}
    view = FakeView(**fields)
    for number, prompt in enumerate(view.prompts):
        remember(view, prompt, [0.0], 4000 if number % 3 == 0 else 100 + number)
    return view


def gains_of(view: FakeView) -> dict[str, float]:
    return {prompt.id: gain for gain, prompt in build("vade").drawn.at(view)}


def length_of(view: FakeView, prompt) -> float:
    return view.predictor.predict(prompt).mean


def test_with_all_slots_taken_it_is_gain_per_token():
    view = some_view()
    gains = gains_of(view)
    ranked = list(build("utility", by_gain=0).rank(view))
    worth = [gains[p.id] / length_of(view, p) for p in ranked]
    assert len(ranked) == 20
    assert worth == sorted(worth, reverse=True)
    assert ranked != list(build("vade").rank(view))


def test_the_floor_counts_where_a_response_is_shorter():
    view = some_view()
    gains = gains_of(view)
    ranked = list(build("utility", by_gain=0, floor_tokens=1000).rank(view))
    worth = [gains[p.id] / max(1000, length_of(view, p)) for p in ranked]
    assert worth == sorted(worth, reverse=True)


def test_where_another_sequence_costs_nothing_the_gain_alone_decides():
    view = some_view(running=0, tau=0.01, tau_per_sequence=0.0, concurrency=1000)  # 125 groups find a place
    assert list(build("utility", by_gain=0).rank(view)) == list(build("vade").rank(view))


def test_the_marginal_cost_by_hand():
    # tau(c) = 0.01 + 0.0001 c: one more costs 0.0001, with all 200 taken a token costs 0.03 / 200 = 0.00015.
    view = some_view(running=8, tau=0.01, tau_per_sequence=0.0001, concurrency=200)
    assert build("utility")._marginal(view) == pytest.approx(2 / 3)
    gains = gains_of(view)
    ranked = list(build("utility", by_gain=0, floor_tokens=80).rank(view))
    worth = [gains[p.id] / max(80, length_of(view, p) * 2 / 3) for p in ranked]
    assert worth == sorted(worth, reverse=True)


def test_after_the_free_slots_the_length_counts_in_full():
    view = some_view(running=64 - 24, tau_per_sequence=0.0)  # places for 3 groups of 8
    ranked = list(build("utility", by_gain=0).rank(view))
    by_gain = list(build("vade").rank(view))
    full = [p for p in build("utility", by_gain=0).rank(some_view()) if p not in by_gain[:3]]
    assert ranked == by_gain[:3] + full


@pytest.mark.parametrize("per_token", [0.0, 0.01, 0.3, 1.0, 7.0])
def test_the_lazy_order_is_the_sorted_one(per_token):
    view = FakeView(prompts=[make_prompt(n) for n in range(60)])
    for number, prompt in enumerate(view.prompts):
        remember(view, prompt, [0.0], 1 + 37 * number**2 % 2000)
    utility = build("utility")
    worth = [
        gain / max(length * per_token, 64)
        for (gain, _), length in zip(utility.drawn.at(view), utility.lengths.at(view), strict=True)
    ]
    assert list(utility._order(view, per_token)) == sorted(range(60), key=lambda number: -worth[number])


@pytest.mark.parametrize("name", ["vade", "utility"])
def test_a_refill_looks_at_few_of_many_prompts(name):
    view = FakeView(prompts=[make_prompt(n) for n in range(2000)], running=32, tau_per_sequence=1e-4)
    mechanism = build(name)
    list(mechanism.rank(view))  # a step's first ranking looks at all
    looked = CountedList(mechanism.drawn.at(view))
    mechanism.drawn._known = (view.step, looked)
    for prompt in islice(mechanism.rank(view), 4):
        mechanism.shape(make_plan(prompt), view)
    assert 0 < looked.reads < 200


class CountedList(list):
    """How many of its items were read."""

    reads = 0

    def __iter__(self):
        for item in super().__iter__():
            self.reads += 1
            yield item

    def __getitem__(self, place):
        self.reads += 1
        return super().__getitem__(place)


def view_of_long_gain(**fields):
    """And the prompts by gain: the first three are so long that by cost they would come last."""
    view = FakeView(running=64, prompts=[make_prompt(n) for n in range(63)], **fields)
    by_gain = list(build("vade").rank(view))
    for number, prompt in enumerate(by_gain):
        remember(view, prompt, [0.0], 10**9 if number < 3 else 100)
    return view, by_gain


def test_every_twentieth_place_goes_by_gain():
    view, by_gain = view_of_long_gain()
    ranked = list(build("utility").rank(view))
    assert [ranked[19], ranked[39], ranked[59]] == by_gain[:3]
    assert len({prompt.id for prompt in ranked}) == len(ranked) == 63


def test_places_are_counted_over_steps_so_that_small_steps_have_one_too():
    view, by_gain = view_of_long_gain(step=5, wanted=4)  # 16 places went to the steps before
    ranked = list(build("utility").rank(view))
    assert [ranked[3], ranked[23], ranked[43]] == by_gain[:3]


def test_places_are_counted_over_rounds():
    view, by_gain = view_of_long_gain()
    utility = build("utility")
    first = list(utility.rank(view))
    for prompt in first[:15]:
        utility.shape(make_plan(prompt), view)
    again = list(utility.rank(view))
    assert again[4] == by_gain[0]
    assert [prompt.id for prompt in again[:48]] == [prompt.id for prompt in first[15:]]
    assert {prompt.id for prompt in again[48:]} == {prompt.id for prompt in first[:15]}


def test_an_unknown_length_is_the_mean_of_the_known():
    view = FakeView(prompts=[make_prompt(0), make_prompt(1)], budget=8000)
    other = make_prompt(2)
    utility = build("utility")
    assert utility.lengths.at(view) == [2000.0, 2000.0]  # a quarter of the budget
    view.step = 2
    remember(view, view.prompts[0], [1.0], 300)
    other_task = type(other)(other.id, "another task", other.text, other.tokens)
    view.prompts.append(other_task)
    lengths = dict(zip([p.id for _, p in utility.drawn.at(view)], utility.lengths.at(view), strict=True))
    # The second prompt is of the same task, whose median is 300, too.
    assert lengths == {view.prompts[0].id: 300.0, view.prompts[1].id: 300.0, other.id: 300.0}
    view.step = 3
    remember(view, view.prompts[1], [1.0], 500)
    lengths = dict(zip([p.id for _, p in utility.drawn.at(view)], utility.lengths.at(view), strict=True))
    assert lengths[other.id] == 400.0


def test_the_same_prompt_twice_in_the_task_is_no_trouble():
    view = FakeView(prompts=[make_prompt(0), make_prompt(0), make_prompt(1)])
    assert len(list(build("utility").rank(view))) == 3


def test_state_is_that_of_vade():
    utility, resumed = build("utility"), build("utility")
    utility.after_step([whole(make_prompt(1), [1.0, 0.0, 0.0])], FakeView())
    resumed.restore(json.loads(json.dumps(utility.state())))
    view = some_view(step=2)
    assert list(resumed.rank(view)) == list(utility.rank(view))
    assert list(resumed.rank(view)) != list(build("utility").rank(view))


@pytest.mark.parametrize(("field", "value"), [("by_gain", 1.1), ("floor_tokens", 0), ("unknown", 0), ("gains", "hard")])
def test_bad_config(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.utility\.{field}"):
        build("utility", **{field: value})
