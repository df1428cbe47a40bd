"""The length curriculum: when the budget doubles, and whose is longer."""

import json

import pytest
from tests.helpers.rollout import FakeView, make_prompt, whole

from untail.errors import ConfigError

from .helpers import build, plan_for, remember


def step(curriculum, *rewards: float) -> None:
    curriculum.after_step([whole(make_prompt(), list(rewards))], FakeView())


def budget(curriculum, view: FakeView, number: int = 0) -> int:
    return curriculum.shape(plan_for(view, view.prompts[number]), view).budget


def test_it_starts_at_an_eighth_with_a_mild_penalty():
    plan = build("curriculum").shape(plan_for(view := FakeView(), view.prompts[0]), view)
    assert (plan.budget, plan.truncated_reward) == (1024, -0.1)


def test_it_doubles_when_the_reward_has_risen_enough_since_the_last_doubling():
    curriculum, view = build("curriculum", memory=0), FakeView()
    budgets = []
    for reward in (0.30, 0.34, 0.36, 0.40, 0.20, 0.42, 0.70, 0.80, 0.95):
        step(curriculum, reward, reward)
        budgets.append(budget(curriculum, view))
    # marks: 0.30, then 0.36, 0.42 (by 0.06 each), 0.70; at the full budget it stays.
    assert budgets == [1024, 1024, 2048, 2048, 2048, 4096, 8192, 8192, 8192]


def test_the_rise_is_that_of_the_ema():
    curriculum = build("curriculum")
    step(curriculum, 0.0, 0.0)
    step(curriculum, 0.0, 0.9)  # EMA 0.045
    assert curriculum.fraction == 1 / 8
    assert curriculum.ema == pytest.approx(0.045)
    step(curriculum, 0.0, 0.9)  # 0.9 x 0.045 + 0.1 x 0.45 = 0.0855
    assert curriculum.fraction == 1 / 4
    assert curriculum.mark == pytest.approx(0.0855)


def test_what_is_masked_and_an_empty_batch_do_not_count():
    curriculum = build("curriculum", memory=0)
    curriculum.after_step([], FakeView())
    assert curriculum.state() == build("curriculum").state()
    group = whole(make_prompt(), [0.2, 1.0])
    group.trajectories[1].masked = True
    curriculum.after_step([group], FakeView())
    assert curriculum.ema == 0.2


def test_hard_prompts_get_more():
    curriculum, view = build("curriculum"), FakeView()
    remember(view, view.prompts[0], [0.0] * 8)  # p = 0.1
    remember(view, view.prompts[1], [1.0] * 4 + [0.0] * 4)
    remember(view, view.prompts[2], [1.0] * 8)
    assert [budget(curriculum, view, n) for n in range(3)] == [round(1024 * 1.4), 1024, round(1024 * 0.6)]


def test_unknown_prompts_count_by_their_length():
    prompts = [make_prompt(0, 4), make_prompt(1, 8), make_prompt(2, 10), make_prompt(3, 18)]  # 10 on average
    curriculum, view = build("curriculum"), FakeView(prompts=prompts)
    assert [budget(curriculum, view, n) for n in range(4)] == [512, round(1024 * 0.8), 1024, 1536]


def test_easy_prompts_shrink_again_once_the_fraction_is_one():
    view = FakeView()
    remember(view, view.prompts[0], [1.0] * 8)  # p = 0.9, difficulty 0.6
    remember(view, view.prompts[1], [1.0] * 7 + [0.0] * 3)  # p = 2/3
    assert budget(build("curriculum", start=0.5), view, 0) == round(8192 * 0.5 * 0.6)
    assert budget(build("curriculum", start=1.0), view, 0) == round(8192 * 0.6 * 0.5)
    assert budget(build("curriculum", start=1.0), view, 1) == round(8192 * (0.5 + 1 / 3))


def test_the_budget_stays_within_what_there_is():
    view = FakeView(budget=2)
    remember(view, view.prompts[0], [0.0] * 8)
    assert budget(build("curriculum", start=0.01), view) == 1
    assert budget(build("curriculum", start=1.0), view) == 2  # not 1.4 times
    plan = plan_for(view := FakeView(), view.prompts[0])
    plan.budget = 10
    assert build("curriculum").shape(plan, view).budget == 10


def test_state_goes_through_json():
    curriculum, resumed = build("curriculum"), build("curriculum")
    for reward in (0.1, 0.7, 0.3):
        step(curriculum, reward, reward)
    assert curriculum.fraction > 1 / 8
    assert curriculum.ema != curriculum.mark
    resumed.restore(json.loads(json.dumps(curriculum.state())))
    assert resumed.state() == curriculum.state()
    for reward in (0.9, 1.0, 1.0, 1.0):
        step(curriculum, reward, reward)
        step(resumed, reward, reward)
        assert resumed.state() == curriculum.state()
    assert curriculum.fraction == 1


@pytest.mark.parametrize(
    ("field", "value"), [("start", 0), ("rise", 0), ("memory", 1.0), ("truncated_reward", 0.1), ("doubling", 2)]
)
def test_bad_config(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.curriculum\.{field}"):
        build("curriculum", **{field: value})


def test_contradiction():
    with pytest.raises(ConfigError, match=r"mechanisms\.curriculum\.easiest = 2.0 exceeds"):
        build("curriculum", easiest=2.0)


def test_a_budget_that_cuts_most_responses_doubles_though_no_reward_rises():
    """With 512 tokens an eighth may be too short for any answer."""
    view, curriculum = FakeView(budget=512), build("curriculum")

    def after_a_step(cut: int) -> float:
        group = whole(make_prompt(), [-0.1] * 8)
        for trajectory in group.trajectories[:cut]:
            trajectory.end = "length"
        curriculum.after_step([group], view)
        return curriculum.fraction

    assert [after_a_step(cut) for cut in (8, 5, 4, 4, 8, 8)] == [1 / 4, 1 / 2, 1 / 2, 1 / 2, 1, 1]
