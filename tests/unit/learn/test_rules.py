"""The tables of `learn`: names alone, fields written out, and what cannot be learned from what a backend gives."""

import subprocess
import sys

import pytest
from tests.unit.learn.helpers import rules

from untail.config import LearnConfig, load_recipe, recipe_names
from untail.errors import ConfigError
from untail.learn.rules import Rollout, refuse_blind, refuse_unfit, resolved

LAST = {"name": "pois_segment", "loss_scope": "last_segment"}
GOOD = {"entropy": True, "logprobs": True}


def test_a_name_alone_is_a_table():
    assert LearnConfig(importance="tis") == LearnConfig(importance={"name": "tis"})
    assert load_recipe("grpo", {}, ["learn.advantage=rloo"]).learn.advantage == {"name": "rloo"}


def test_resolved_writes_every_field_out_once_and_for_all():
    config = LearnConfig(importance="tis", advantage="dapo", masks={"mastered": {"p": 0.9}, "pruned": False})
    written = resolved(config)
    assert written.importance == {"name": "tis", "cap": 2.0}
    assert written.advantage == {"name": "dapo", "overlong": 0.2}
    assert written.masks == {"mastered": {"p": 0.9, "entropy": 0.2, "reward": 1.0}}
    assert resolved(written) == written
    assert resolved(LearnConfig()).importance is None


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_that_ships_learns_by_rules_that_there_are(name):
    learn = load_recipe(name, {}, []).learn
    assert resolved(resolved(learn)) == resolved(learn)


WRONG = {
    "importance": ({"importance": "tiss"}, "unknown importance 'tiss'; did you mean 'tis'?"),
    "credit": ({"credit": "twice"}, "unknown credit 'twice'; .*known: none, once, progressive, weights"),
    "mask": ({"masks": {"masterd": {}}}, "unknown mask 'masterd'"),
    "mask left out": ({"masks": {"masterd": False}}, "unknown mask 'masterd'"),
    "field": ({"importance": {"name": "tis", "capp": 1}}, r"unknown key 'learn\.importance\.capp'; did you mean 'cap'"),
    "scope": ({"importance": {"name": "pois_segment", "loss_scope": "first"}}, r"learn\.importance\.loss_scope"),
    "no name": ({"credit": {}}, r"learn\.credit has no name"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case):
    fields, sentence = WRONG[case]
    for use in (resolved, lambda config: rules(**fields)):
        with pytest.raises(ConfigError, match=sentence):
            use(LearnConfig(**fields))


@pytest.mark.parametrize(
    "fields", [{}, {"importance": "on_policy"}, {"credit": "progressive"}, {"masks": {"pruned": {}}}]
)
def test_a_backend_without_log_probs_will_do_for_rules_that_need_none(fields):
    assert rules(**fields).needing_logprobs == []
    refuse_blind(rules(**fields), "other", **{**GOOD, "logprobs": False})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"importance": "tis"}, "learn.importance"),
        ({"importance": "segment"}, "learn.importance"),
        ({"importance": "pois_segment"}, "learn.importance"),
        ({"credit": "weights"}, "learn.credit"),
        ({"masks": {"mastered": {}}}, "learn.masks.mastered"),
    ],
)
def test_and_not_for_others(fields, field):
    refuse_blind(rules(**fields), "native", **GOOD)
    with pytest.raises(ConfigError, match=f"{field} needs the log-prob of every token.*'other' does not give"):
        refuse_blind(rules(**fields), "other", **{**GOOD, "logprobs": False})


def test_masks_that_need_the_entropy():
    with pytest.raises(ConfigError, match=r"learn\.masks\.low_entropy needs the entropy.*low_entropy=false"):
        refuse_blind(rules(masks={"low_entropy": {}}), "other", **{**GOOD, "entropy": False})
    refuse_blind(rules(masks={"low_entropy": False}), "other", **{**GOOD, "entropy": False})


@pytest.mark.parametrize("importance", ["on_policy", "pois", "pois_segment"])
def test_tokens_from_something_else_than_the_policy_need_a_rule_with_mu_in_it(importance):
    lossy = Rollout(lossy=["mechanisms.fork"])
    with pytest.raises(ConfigError, match=r"mechanisms\.fork samples tokens.*'tis' or 'segment'"):
        refuse_unfit(rules(importance=importance), False, lossy)
    refuse_unfit(rules(importance=importance), False, Rollout())
    refuse_unfit(rules(importance=importance, credit="weights"), False, lossy)


@pytest.mark.parametrize("importance", ["segment", "tis"])
def test_rules_with_mu_in_them_may_have_such_tokens(importance):
    assert rules(importance=importance).importance.knows_sampling
    refuse_unfit(rules(importance=importance), False, Rollout(lossy=["mechanisms.fork"]))


def test_rules_are_checked_without_torch():
    code = "import sys, untail.learn.rules; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("rollout", "sentence"),
    [
        (Rollout(sure_pruners=["tournament"]), r"'weights' .* mechanisms\.tournament prunes without a draw"),
        (Rollout(masking_pruners=["outliers"]), r"'weights' counts everybody.*mechanisms\.outliers\.stopped = 'mask'"),
    ],
)
def test_weights_need_survivors_that_a_draw_spared(rollout, sentence):
    with pytest.raises(ConfigError, match=sentence):
        refuse_unfit(rules(credit="weights"), False, rollout)
    refuse_unfit(rules(credit="weights"), False, Rollout())
    refuse_unfit(rules(credit="once"), False, rollout)


@pytest.mark.parametrize(
    ("fields", "rollout", "sentence"),
    [
        ({}, Rollout(), r"learn\.bridge .* steps leave nothing over"),
        ({}, Rollout(defers=True, copiers=["fork"]), r"learn\.bridge .* mechanisms\.fork shares"),
        ({"masks": {"last_segment": {}}}, Rollout(defers=True), r"learn\.bridge .* 'last_segment'"),
        (
            {"importance": {"name": "pois_segment", "loss_scope": "last_segment"}},
            Rollout(defers=True),
            "'last_segment'",
        ),
    ],
)
def test_a_bridge_that_cannot_hold(fields, rollout, sentence):
    with pytest.raises(ConfigError, match=sentence):
        refuse_unfit(rules(**fields), True, rollout)
    refuse_unfit(rules(**fields), False, rollout)
    refuse_unfit(rules(), True, Rollout(defers=True))
