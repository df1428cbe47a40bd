"""Conversations from the command line: trained, killed and resumed, evaluated."""

import signal

from tests.e2e.conftest import SMALL, rows, start, untail
from tests.e2e.test_train import timeless, wait_for

TURNS = [
    *("--set=environment.name=try_again", "--set=environment.turns=3"),
    *("--set=environment.latency_s=0.3", "--set=environment.latency_sigma=1.5"),
    *("--set=deterministic=true", "--set=rollout.max_tokens=64", "--set=rollout.max_staleness=2"),
    *("--set=rollout.prompts=2", "--set=rollout.group=3", "--set=validation.prompts=2"),
]


def test_killed_while_tools_are_at_work_and_resumed_it_is_the_same_run(tmp_path):
    arguments = ["train", "april", "--steps=4", *SMALL, *TURNS]
    whole = untail(*arguments, "--out", tmp_path / "whole", "--json")
    assert whole.code == 0, whole.err
    killed = tmp_path / "killed"
    process = start(*arguments, "--out", killed)
    wait_for(killed / "metrics.jsonl", 3, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    resumed = untail("train", "--resume", "--out", killed, "--json")
    assert resumed.code == 0, resumed.err
    assert [timeless(row) for row in rows(killed)] == [timeless(row) for row in rows(tmp_path / "whole")]
    events = rows(tmp_path / "whole", "events.jsonl")
    kinds = [event["e"] for event in events]
    assert kinds.count("park") >= kinds.count("reply") > 0
    assert all(row["accounts"]["unaccounted"] == 0 for row in rows(killed))
    assert max(row["turns"] for row in rows(killed)) > 1
    assert "[environment]" in (killed / "recipe.toml").read_text()


def test_another_try_is_worth_something():
    """The same prompts, once with one turn and once with three."""
    evaluate = ["eval", "--model=tiny", "--task=arithmetic", "--n=8", "--max-tokens=120", "--json"]
    once = untail(*evaluate)
    thrice = untail(*evaluate, "--set=environment.name=try_again", "--set=environment.turns=3")
    assert (once.code, thrice.code) == (0, 0), thrice.err
    assert thrice.json["mean_len"] > once.json["mean_len"]
    assert thrice.json["score"] >= once.json["score"]
