"""VADE: posteriors that decay, draws that repeat, and what gets chosen in the long run."""

import json
import random
from collections import Counter

import pytest
from tests.helpers.rollout import FakeView, make_plan, make_prompt, whole

from untail.errors import ConfigError
from untail.rollout.admit.vade import Posterior

from .helpers import build


def test_update_by_hand():
    posterior = Posterior(selected=0.2, unselected=0.999)
    assert posterior.at("p", 7) == (0.0, 0.0)
    posterior.update("p", 1, correct=3, wrong=5)
    assert posterior.at("p", 2) == (3.0, 5.0)
    posterior.update("p", 2, correct=8, wrong=0)
    assert posterior.at("p", 3) == pytest.approx((0.2 * 3 + 8, 0.2 * 5))


def test_lazy_decay_is_that_of_every_step():
    """Against the formula as it is written: all prompts, at every step."""
    l1, l2, rng = 0.2, 0.9, random.Random(1)
    posterior, plain = Posterior(l1, l2), dict.fromkeys("abcd", (0.0, 0.0))
    for step in range(1, 40):
        for name in "abcd":
            assert posterior.at(name, step) == pytest.approx(plain[name])
        chosen = rng.sample("abcd", rng.randint(0, 3))
        for name, (a, b) in plain.items():
            if name in chosen:
                correct = rng.randint(0, 8)
                posterior.update(name, step, correct, 8 - correct)
                plain[name] = (l1 * a + correct, l1 * b + 8 - correct)
            else:
                plain[name] = (l2 * a, l2 * b)


def test_a_reward_above_zero_is_correct_and_an_unknown_one_does_not_count():
    vade, prompt = build("vade"), make_prompt(3)
    group = whole(prompt, [1.0, 0.5, 0.0, -1.0, 0.0])
    group.trajectories[4].failure = "timeout"
    vade.after_step([group], FakeView(step=1))
    assert vade.posterior.at(prompt.id, 2) == (2.0, 2.0)


def test_two_groups_of_one_prompt_are_one_update():
    vade, prompt = build("vade"), make_prompt(3)
    vade.after_step([whole(prompt, [1.0, 0.0])], FakeView(step=1))
    vade.after_step([whole(prompt, [1.0, 0.0]), whole(prompt, [1.0, 1.0])], FakeView(step=2))
    assert vade.posterior.at(prompt.id, 3) == pytest.approx((0.2 + 3, 0.2 + 1))


def test_where_no_reward_is_known_the_past_stays():
    vade, prompt = build("vade"), make_prompt(3)
    vade.after_step([whole(prompt, [1.0, 0.0])], FakeView(step=1))
    failed = whole(prompt, [0.0, 0.0])
    for trajectory in failed.trajectories:
        trajectory.failure = "died"
    vade.after_step([failed], FakeView(step=2))
    assert vade.posterior.at(prompt.id, 3) == pytest.approx((0.999, 0.999))


def test_rank_has_every_prompt_once_and_repeats_within_a_step():
    view = FakeView()
    ranked = list(build("vade").rank(view))
    assert sorted(p.id for p in ranked) == sorted(p.id for p in view.prompts)
    assert ranked == list(build("vade").rank(view))
    assert ranked != list(build("vade").rank(FakeView(step=2)))


def test_rank_is_by_falling_gain_of_the_draws():
    view = FakeView()
    rng = view.rng("vade")
    drawn = {prompt.id: rng.betavariate(1, 1) for prompt in view.prompts}
    for gain, formula in (("hard", lambda p: p * (1 - p) ** 2), ("plain", lambda p: p * (1 - p))):
        gains = [formula(drawn[prompt.id]) for prompt in build("vade", gain=gain).rank(view)]
        assert gains == sorted(gains, reverse=True)


def test_what_the_step_asked_comes_last_until_the_next_step():
    view, vade = FakeView(), build("vade")
    first = list(vade.rank(view))
    for prompt in first[:3]:
        vade.shape(make_plan(prompt), view)
    assert list(vade.rank(view)) == first[3:] + first[:3]
    view.step = 2
    again = list(vade.rank(view))
    assert again == list(build("vade").rank(view))


def chosen_in_the_long_run(rates: list[float], **fields) -> Counter[float]:
    """How often prompts of each true success rate are among the top 4, in the second half of 200 steps."""
    vade, rng, chosen = build("vade", **fields), random.Random(7), Counter[float]()
    prompts = [make_prompt(number) for number in range(len(rates))]
    rate_of = {prompt.id: rate for prompt, rate in zip(prompts, rates, strict=True)}
    view = FakeView(prompts=prompts)
    for step in range(1, 201):
        view.step, batch = step, []
        for prompt, _ in zip(vade.rank(view), range(4), strict=False):
            rate = rate_of[prompt.id]
            batch.append(whole(prompt, [float(rng.random() < rate) for _ in range(32)], length=1))
            chosen[rate] += step > 100
        vade.after_step(batch, view)
    return chosen


def test_prompts_near_a_third_are_chosen_most():
    rates = [0.02, 1 / 3, 0.6, 0.8, 0.98]
    chosen = chosen_in_the_long_run(rates * 4)
    assert chosen.most_common(1)[0][0] == 1 / 3
    assert chosen[1 / 3] > 0.5 * chosen.total()
    assert chosen[0.02] + chosen[0.98] < 0.05 * chosen.total()


def test_the_plain_gain_prefers_a_half():
    rates = [0.2, 0.5, 0.8] * 4
    assert chosen_in_the_long_run(rates, gain="plain").most_common(1)[0][0] == 0.5
    chosen = chosen_in_the_long_run(rates)
    assert chosen[0.2] > 2 * chosen[0.8]


def test_kin_judges_what_was_never_asked():
    """Long prompts always fail and short ones succeed by thirds: among strangers, the short ones are drawn."""
    short, long = ([make_prompt(n, length) for n in range(40)] for length in (8, 30))
    batch = [whole(prompt, [1.0, 0.0, 0.0] * 4) for prompt in short[:8]] + [whole(p, [0.0] * 12) for p in long[:8]]
    strangers = short[8:] + long[8:]
    best = {}
    for kin in (0, 24):
        vade = build("vade", kin=kin)
        vade.after_step(batch, FakeView(step=1))
        ranked = list(vade.rank(FakeView(step=2, prompts=strangers)))
        best[kin] = sum(prompt in short for prompt in ranked[:16])
    assert best[24] == 16 > best[0]


def test_kin_counts_for_so_many_trajectories_and_no_more():
    vade = build("vade", kin=6)
    vade.after_step([whole(make_prompt(n, 8), [1.0, 0.0, 0.0, 0.0]) for n in range(5)], FakeView(step=1))
    assert vade._judge(make_prompt(9, 8), 2) == pytest.approx((1.5, 4.5))  # of 20, a quarter right
    assert vade._judge(make_prompt(1, 8), 2) == pytest.approx((1 + 1.5, 3 + 4.5))
    assert vade._judge(make_prompt(9, 30), 2) == (0.0, 0.0)


def test_the_sharper_the_closer_to_what_is_known():
    """Few prompts succeed half of the time, many nearly always: among the many, somebody is always lucky."""
    few, many = ([make_prompt(n, length) for n in range(count)] for length, count in ((30, 8), (8, 150)))
    right = {1: 0, 30: 0}
    for sharp in right:
        vade = build("vade", gain="plain", kin=8, sharp=sharp)
        vade.after_step([whole(few[0], [1.0, 0.0] * 8), whole(many[0], [1.0] * 14 + [0.0] * 2)], FakeView(step=1))
        best = list(vade.rank(FakeView(step=2, prompts=few[1:] + many[1:])))[:7]
        right[sharp] = sum(prompt in few for prompt in best)
    assert right[30] == 7 > right[1]


def test_state_goes_through_json():
    vade, prompts = build("vade", kin=4), [make_prompt(n) for n in range(8)]
    for step in range(1, 6):
        vade.after_step([whole(prompts[step], [1.0, 0.0, 0.0])], FakeView(step=step))
    resumed = build("vade", kin=4)
    resumed.restore(json.loads(json.dumps(vade.state())))
    view = FakeView(step=6, prompts=prompts)
    assert [resumed.posterior.at(p.id, 6) for p in prompts] == [vade.posterior.at(p.id, 6) for p in prompts]
    assert list(resumed.rank(view)) == list(vade.rank(view))
    assert resumed.state() == vade.state()


@pytest.mark.parametrize(
    ("field", "value"),
    [("gain", "soft"), ("selected", -0.1), ("unselected", 1.5), ("kin", -1), ("sharp", 0), ("l1", 0.2)],
)
def test_bad_config(field, value):
    with pytest.raises(ConfigError, match=rf"mechanisms\.vade\.{field}"):
        build("vade", **{field: value})
