"""Wrong input from a user: exit 2, one sentence that names the field and the fix, no traceback."""

import json

import pytest

from tests.e2e.conftest import SMALL, rows, untail

CASES = {
    "unknown model": (["generate", "--model=nowhere", "hi"], "there is no model folder 'nowhere'"),
    "unknown recipe": (["train", "grpoo"], "unknown recipe 'grpoo'; did you mean 'grpo'?"),
    "unknown key": (["train", "--set=learn.lrr=1"], "unknown key 'learn.lrr'; did you mean 'lr'?"),
    "unknown task": (["train", "--task=chain_sun"], "did you mean 'chain_sum'?"),
    "bad value": (["train", "--set=learn.lr=-1"], "learn.lr = -1 is not valid"),
    "impossible betas": (["train", "--set=learn.betas=[1.5, 2.0]"], "learn.betas.0 = 1.5 is not valid"),
    "no room": (["train", "--set=rollout.max_tokens=100000"], "rollout.max_tokens = 100000 leaves no room"),
    "too few prompts": (["train", "--set=task.size=8"], "fewer than rollout.prompts = 32"),
    "pool too large": (["train", *SMALL, "--set=engine.kv_blocks=99999999999"], "the KV pool would take"),
    "group of one": (["train", "--set=rollout.group=1"], "rollout.group = 1 is not valid"),
    "infinite weight decay": (["train", "--set=learn.weight_decay=inf"], "learn.weight_decay = inf is not valid"),
    "temperature too small": (["train", "--set=rollout.temperature=1e-9"], "rollout.temperature = 1e-09 is not valid"),
    "pool too small": (["train", *SMALL, "--set=engine.kv_blocks=2"], "KV blocks of 16, but the pool has 2"),
    "resume of nothing": (["train", "--resume", "--out=nothing"], "holds no run"),
    "resume without a folder": (["train", "--resume"], "--resume needs --out"),
    "NaN temperature": (["generate", "--model=tiny", "--temperature=nan", "1+1=?"], "temperature = nan is not allowed"),
    "budget 0": (["generate", "--model=tiny", "--max-tokens=0", "1+1=?"], "greater than or equal to 1"),
    "long prompt": (["generate", "--model=tiny", "1+" * 5000], "but the context holds"),
    "unknown peer": (["bench", "engine", "--model=tiny", "--peer=nobody"], "unknown peer 'nobody'"),
    "unknown workload": (["bench", "engine", "--model=tiny", "--workload=odd"], "unknown workload 'odd'"),
    "responses beyond the model": (
        ["bench", "draft", "--model=tiny", "--length=5000"],
        "has to fit into tiny's 1024 tokens",
    ),
    "no temperature": (["bench", "draft", "--model=tiny", "--temperature=inf"], "--temperature inf is no temperature"),
    "unknown command": (["trian"], "No such command 'trian'. Did you mean 'train'?; see untail --help"),
    "unknown option": (["train", "--nope"], "No such option: --nope"),
    "no steps": (["train", "--steps=0"], "'--steps': Input should be greater than or equal to 1; see untail train"),
    "nothing to compare": (["compare"], "Missing argument 'RECIPE...'; see untail compare --help"),
    "no such ablation": (["compare", "untail", "--ablate=some"], "'--ablate': 'some' is not one of 'out', 'only'; see"),
    "turns that overlap": (["simulate", "--schedule=async"], "schedule = 'async' with mode = 'collocated'"),
    "no such mode": (["simulate", "--mode=mixed"], "'--mode': 'mixed' is not one of 'collocated'"),
    "learners without devices": (
        ["simulate", "--devices=2", "--mode=disaggregated", "--learners=2"],
        "learners = 2 of 2 devices",
    ),
    "unknown environment": (
        ["train", *SMALL, "--set=environment.name=tryagain"],
        "unknown environment 'tryagain'; did you mean 'try_again'?",
    ),
    "nameless environment": (["train", *SMALL, "--set=environment.turns=3"], "environment has no name"),
    "environment's field": (
        ["eval", "--model=tiny", "--task=arithmetic", "--set=environment.name=calculator", "--set=environment.turns=0"],
        "environment.turns = 0 is not valid",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_sentence_and_exit_2(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, sentence = CASES[case]
    outcome = untail(*arguments)
    assert outcome.code == 2, outcome.err
    (line,) = outcome.lines_of_error
    assert line.startswith("error: ")
    assert sentence in line
    assert outcome.out == ""


def data_file(tmp_path, lines) -> str:
    path = tmp_path / "data.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return f"--task={path}"


GOOD = [{"prompt": f"{n}+1=?", "answer": str(n + 1)} for n in range(16)]
DATA = {
    "empty": ([], "has no rows"),
    "row without an answer": ([*GOOD, {"prompt": "2+2=?"}], "line 17"),
    "same prompt, two answers": ([*GOOD, {"prompt": "3+1=?", "answer": "5"}], "same prompt but different values"),
    "prompt that does not fit": ([*GOOD, {"prompt": "1+" * 900, "answer": "1"}], "line 17 is a prompt of"),
    "not Unicode": ([*GOOD, '{"prompt": "\\ud800 1+1", "answer": "2"}'], "line 17 has a prompt that is not valid"),
    "not JSON": ([*GOOD, "{"], "line 17"),
}


@pytest.mark.parametrize("case", DATA)
def test_data_that_cannot_be_used(case, tmp_path):
    lines, sentence = DATA[case]
    fewer = [option for option in SMALL if "task.size" not in option]
    outcome = untail("train", *fewer, data_file(tmp_path, lines), "--out", tmp_path / "run")
    assert outcome.code == 2, outcome.err
    assert sentence in outcome.err
    assert "Traceback" not in outcome.err


def test_a_folder_that_holds_a_run_is_refused(trained):
    folder, _ = trained
    before = rows(folder)
    outcome = untail("train", *SMALL, "--out", folder)
    assert outcome.code == 2
    assert "already holds a run; continue it with --resume" in outcome.err
    assert rows(folder) == before


def test_a_run_goes_on_with_no_other_recipe(trained):
    folder, _ = trained
    outcome = untail("train", "untail", "--resume", "--out", folder)
    assert outcome.code == 2
    (line,) = outcome.lines_of_error
    assert "is of another recipe" in line


def test_a_folder_with_something_else_in_it_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    outcome = untail("train", *SMALL, "--out", tmp_path)
    assert (outcome.code, outcome.err) == (2, f"error: --out {tmp_path} is not an empty folder; choose another\n")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("command", [["train"], ["compare", "grpo"]])
def test_an_out_folder_that_is_a_file_or_a_run(command, tmp_path, trained):
    (tmp_path / "file").write_text("")
    outcome = untail(*command, *SMALL, "--out", tmp_path / "file")
    assert (outcome.code, outcome.err) == (2, f"error: --out {tmp_path / 'file'} is a file; choose a folder\n")
    outcome = untail(*command, *SMALL, "--out", trained[0])
    assert outcome.code == 2
    assert "already holds a run; continue it with --resume" in outcome.err


REWARDS = """
def raises(response, prompt):
    raise ValueError("no idea")

def nan(response, prompt):
    return float("nan")

def text(response, prompt):
    return "good"

def sometimes(response, prompt):
    if len(response) % 2:
        raise ValueError("odd")
    return 1.0
"""


@pytest.mark.parametrize(
    ("function", "says"), [("raises", "raised: ValueError: no idea"), ("nan", "not a number"), ("text", "not a number")]
)
def test_a_reward_that_never_works_stops_the_run(function, says, tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(tmp_path)
    reward = f"--set=task.reward={{name = 'function', path = 'my_rewards:{function}'}}"
    outcome = untail("train", "--steps=2", *SMALL, reward, "--out", tmp_path / "run")
    assert outcome.code == 2, outcome.err
    assert says in outcome.err
    assert "answers of the validation after step 0 failed to be scored" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_reward_that_fails_now_and_then_costs_those_answers(tmp_path, monkeypatch):
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(tmp_path)
    reward = "--set=task.reward={name = 'function', path = 'my_rewards:sometimes'}"
    outcome = untail("train", "--steps=1", *SMALL, reward, "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    failures = rows(tmp_path / "run")[0]["score_failures"]
    assert 0 < failures["raised"] < 16


def test_a_wrong_input_leaves_no_run_behind(tmp_path):
    wrong = untail("train", *SMALL, "--model=nowhere", "--out", tmp_path / "run")
    assert wrong.code == 2
    right = untail("train", *SMALL, "--steps=1", "--out", tmp_path / "run")
    assert right.code == 0, right.err


def test_an_out_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    outcome = untail("train", *SMALL, "--out", tmp_path / "file" / "run")
    assert outcome.code == 2
    assert "cannot write to --out" in outcome.err
