"""generate, doctor, eval, tasks and --version, as a user types them."""

import json
import re

import untail as package
from tests.e2e.conftest import untail


def test_version():
    outcome = untail("--version")
    assert (outcome.code, outcome.out.strip()) == (0, f"untail {package.__version__}")


def test_generate_answers_every_prompt_and_repeats_itself():
    arguments = ["generate", "--model=tiny", "--max-tokens=40", "12+7-3=?", "5+5+5=?", "--json"]
    first, second = untail(*arguments), untail(*arguments)
    assert first.code == 0, first.err
    outputs = first.json["outputs"]
    assert outputs == second.json["outputs"]
    assert len(outputs) == 2
    for output in outputs:
        assert output["finish"] in ("stop", "length")
        assert output["text"]
        assert all(isinstance(token, int) for token in output["tokens"])
    assert first.json["tok_s"] > 0
    assert untail(*arguments, "--seed=1").json["outputs"] != outputs


def test_generate_prints_the_answer_to_standard_output():
    outcome = untail("generate", "--model=tiny", "--temperature=0", "--max-tokens=60", "1+2+3=?")
    assert outcome.code == 0
    assert outcome.out.strip()
    assert re.search(r"\d+ tokens, [\d.]+ per second", outcome.err)


def test_doctor_says_what_is_there():
    outcome = untail("doctor", "--json")
    assert outcome.code == 0, outcome.err
    checks = {check["name"]: check for check in outcome.json["checks"]}
    assert checks["native engine"]["ok"]
    assert checks["torch"]["ok"]
    assert all(check["detail"] for check in checks.values())


def test_bench_engine_compares_with_transformers():
    outcome = untail("bench", "engine", "--model=tiny", "--sequences=3", "--median=4", "--runs=1", "--json")
    assert outcome.code == 0, outcome.err
    rows = {row["engine"]: row for row in outcome.json["rows"]}
    assert set(rows) == {"untail", "transformers padded", "transformers continuous"}
    assert rows["untail"]["ratio"] == 1.0
    assert outcome.json["toy_host_overhead_ms"] > 0


def test_tasks_export_and_train_on_the_file(tmp_path):
    out = tmp_path / "sums.jsonl"
    outcome = untail("tasks", "export", "arithmetic", "--set=size=12", "--out", out, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["n"] == 12
    assert len([json.loads(line) for line in out.read_text().splitlines()]) == 12
    scored = untail("eval", "--model=tiny", "--task", out, "--max-tokens=48", "--json")
    assert scored.code == 0, scored.err
    assert scored.json["n"] == 12
