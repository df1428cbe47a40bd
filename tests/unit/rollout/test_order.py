"""The order of prompts is a function of the seed and the place, and an epoch has none twice."""

from itertools import islice

from tests.helpers.rollout import make_prompt

from untail.rollout.order import PromptOrder

PROMPTS = [make_prompt(number) for number in range(10)]


def drawn(order: PromptOrder, count: int) -> list[int]:
    return [prompt.tokens[0] for prompt in islice(order.draw(lambda name: False), count)]


def test_every_prompt_comes_once_per_epoch_in_an_order_of_its_own():
    numbers = drawn(PromptOrder(PROMPTS, seed=1), 30)
    epochs = [numbers[begin : begin + 10] for begin in (0, 10, 20)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3


def test_each_asking_goes_on_where_the_last_left_off():
    order = PromptOrder(PROMPTS, seed=1)
    parts = drawn(order, 3) + drawn(order, 4) + drawn(order, 8)
    assert parts == drawn(PromptOrder(PROMPTS, seed=1), 15)
    assert order.place == 15


def test_it_depends_on_the_seed_and_the_place_alone():
    expected = drawn(PromptOrder(PROMPTS, seed=1), 40)
    for place in (0, 7, 10, 29):
        order = PromptOrder(PROMPTS, seed=1)
        order.place = place
        assert drawn(order, 11) == expected[place : place + 11]
    assert drawn(PromptOrder(PROMPTS, seed=2), 10) != expected[:10]


def test_one_whose_turn_comes_while_it_is_under_way_gets_it_later():
    order, usual = PromptOrder(PROMPTS, seed=1), drawn(PromptOrder(PROMPTS, seed=1), 20)
    busy = {PROMPTS[number].id for number in usual[1:3]}
    first = [prompt.tokens[0] for prompt in islice(order.draw(lambda name: name in busy), 4)]
    assert first == [usual[0], *usual[3:6]]
    busy = {PROMPTS[usual[1]].id}
    assert [prompt.tokens[0] for prompt in islice(order.draw(lambda name: name in busy), 2)] == [usual[2], usual[6]]
    assert [prompt.tokens[0] for prompt in order.missed] == [usual[1]]


def test_it_ends_where_all_are_under_way():
    assert list(PromptOrder(PROMPTS, seed=1).draw(lambda name: True)) == []
