"""`untail embodied` as a user types it: real workers, in processes of their own."""

import sys

import pytest

from tests.e2e.conftest import untail

RAY_AT_REST = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
TINY = ["--set=envs=16", "--set=horizon=8", "--set=hidden=8", "--set=learn.epochs=1", "--set=learn.minibatches=2"]


def test_side_by_side_and_then_the_learner_on_all_devices():
    outcome = untail("embodied", "--env=cartpole", "--mode=hybrid", "--iterations=2", "--json", *TINY)
    assert outcome.code == 0, outcome.err
    result = outcome.json
    assert (result["mode"], result["iterations"], result["env_steps"]) == ("hybrid", 2, 256)
    assert [row["env_steps"] for row in result["curve"]] == [128, 256]
    assert result["steps_s"] > result["batches_s"] > 0
    assert result["plan"] is None
    assert "environment steps" in outcome.lines_of_error[-1]


@pytest.mark.slow
@pytest.mark.parametrize("env", ["cartpole", "halfcheetah"])
def test_the_planner_measures_and_says_why(env):
    outcome = untail("embodied", f"--env={env}", "--mode=auto", "--iterations=1", "--json", *TINY)
    assert outcome.code == 0, outcome.err
    plan = outcome.json["plan"]
    assert set(plan["placement"]) == {"env", "policy", "learn"}
    assert plan["predicted_step_s"] > 0
    assert plan["alternatives"]
    assert "rejected:" in outcome.err


@pytest.mark.slow
def test_on_ray_it_learns_the_same(monkeypatch):
    for name, value in RAY_AT_REST.items():
        monkeypatch.setenv(name, value)
    arguments = ["embodied", "--env=cartpole", "--mode=hybrid", "--iterations=2", "--json", *TINY]
    here, there = untail(*arguments), untail(*arguments, "--backend=ray")
    assert there.code == 0, there.err
    rewards = [[row["reward"] for row in outcome.json["curve"]] for outcome in (here, there)]
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "grpo"])
def test_the_pole_is_swung_up(algo):
    """From hanging, at 0.02 a step, to upright half of the time."""
    outcome = untail("embodied", "--env=cartpole", f"--algo={algo}", "--mode=collocated", "--iterations=20", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["reward_first"] < 0.1
    assert outcome.json["reward_last"] > 0.4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--env=cheetah"], "did you mean 'halfcheetah'"),
        (["--algo=grp"], "did you mean 'grpo'"),
        (["--mode=hybird"], "did you mean 'hybrid'"),
        (["--backend=rae"], "did you mean 'ray'"),
        (["--mode=collocated", "--address=auto"], "is an address of Ray"),
        (["--mode=hybrid", "--devices=1"], "needs two devices or more"),
        (["--mode=collocated", "--devices=4096"], "ask for"),
        (["--mode=collocated", "--set=envs=7"], "multiple of 2"),
        (["--mode=collocated", "--set=lr=1"], "unknown key 'embodied.lr'"),
        (["--mode=collocated", "--iterations=0"], "iterations"),
    ],
)
def test_bad_input_is_one_sentence(arguments, says):
    outcome = untail("embodied", *arguments)
    assert outcome.code == 2
    assert len(outcome.lines_of_error) == 1
    assert says in outcome.err


def test_without_mujoco_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    outcome = untail("embodied", "--env=halfcheetah", "--mode=collocated")
    assert outcome.code == 2
    assert "pip install 'untail[embodied]'" in outcome.lines_of_error[0]
