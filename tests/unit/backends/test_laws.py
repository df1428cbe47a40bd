"""What is drawn for a trajectory."""

import json
from math import log
from statistics import fmean, median, pvariance, quantiles

import pytest

from untail.backends.laws import LAWS, LogNormal, make_law, reward_of, sim_prompts
from untail.errors import ConfigError, UserError
from untail.types import Trajectory

ROW = {"prompt": "p", "length": 5, "reward": 1.0}


def draws(name: str, prompts: int, streams: int, seed: int = 0):
    law = make_law(name, seed)
    return [[law.draw(prompt, stream) for stream in range(streams)] for prompt in sim_prompts(prompts, law)]


@pytest.mark.parametrize("name", sorted(LAWS))
def test_a_draw_depends_on_seed_prompt_and_stream_alone(name):
    forward = draws(name, 20, 4)
    law = make_law(name, 0)
    backward = [[law.draw(p, stream) for stream in (3, 2, 1, 0)] for p in reversed(sim_prompts(20, law))]
    assert [row[::-1] for row in backward[::-1]] == forward
    assert draws(name, 20, 4, seed=1) != forward


def test_lognormal_has_its_median_and_its_tail():
    lengths = [draw.length for row in draws("lognormal", 8000, 1) for draw in row]
    assert median(lengths) == pytest.approx(2000, rel=0.05)
    assert quantiles(lengths, n=100)[98] == pytest.approx(20000, rel=0.15)
    assert min(lengths) >= 1


def test_most_of_the_variance_of_lognormal_is_the_prompts():
    rows = [[log(draw.length) for draw in row] for row in draws("lognormal", 1000, 16)]
    within = fmean(pvariance(row) * 16 / 15 for row in rows)
    whole = pvariance([value for row in rows for value in row])
    assert 1 - within / whole == pytest.approx(0.7, abs=0.04)


def test_without_a_prompt_share_siblings_are_strangers():
    law = LogNormal(0, prompt_share=0.0)
    means = [fmean(law.draw(p, stream).length for stream in range(200)) for p in sim_prompts(20, law)]
    assert max(means) < 2 * min(means)


def test_rewards_differ_between_prompts_more_than_by_chance():
    means = [fmean(draw.reward for draw in row) for row in draws("lognormal", 500, 32)]
    assert fmean(means) == pytest.approx(0.5, abs=0.05)
    assert pvariance(means) > 1 / 12 / 1.5  # of a uniform success probability; mere chance gives 1/128
    assert {draw.reward for row in draws("lognormal", 50, 8) for draw in row} == {0.0, 1.0}


def test_the_stress_mix():
    rows = draws("stress", 2000, 4)
    long = [row for row in rows if row[0].length > 1000]
    assert len(long) / len(rows) == pytest.approx(0.1, abs=0.02)
    assert all(16384 <= draw.length <= 32768 for row in long for draw in row)
    assert all(draw.length <= 1000 for row in rows if row not in long for draw in row)


def test_short_is_short():
    lengths = [draw.length for row in draws("short", 2000, 2) for draw in row]
    assert max(lengths) <= 1000
    assert median(lengths) == pytest.approx(300, rel=0.1)


def test_prompts_have_ids_of_their_own():
    prompts = sim_prompts(100, make_law("short", 0))
    assert len({prompt.id for prompt in prompts}) == 100
    assert {len(prompt.tokens) for prompt in prompts} == {256}
    assert sim_prompts(100, make_law("stress", 3)) == prompts


def test_the_reward_is_for_what_came_to_its_end():
    law = make_law("short", 0)
    prompt = sim_prompts(1, law)[0]
    stream = next(n for n in range(1000) if law.draw(prompt, n).reward)
    for end, reward in {"stop": 1.0, "length": 0.0, "boundary": 0.0, "abort": 0.0, None: 0.0}.items():
        assert reward_of(law, Trajectory("t", prompt, stream, end=end)) == reward


def write(path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_trace_gives_a_prompt_its_own_rows(tmp_path):
    rows = [{"prompt": p, "length": 100 * n + len(p), "reward": n / 4} for p in ("a", "bb") for n in range(1, 4)]
    law = make_law(write(tmp_path / "rows.jsonl", rows), 0)
    first, second, unknown = sim_prompts(3, law)
    assert (first.id, second.id) == ("a", "bb")
    assert {law.draw(first, stream).length for stream in range(100)} == {101, 201, 301}
    assert {law.draw(second, stream)[:2] for stream in range(100)} == {(102, 0.25), (202, 0.5), (302, 0.75)}
    assert {law.draw(unknown, stream).length for stream in range(200)} == {101, 201, 301, 102, 202, 302}
    assert law.draw(first, 7) == law.draw(first, 7)


def test_a_run_is_a_trace(tmp_path):
    events = [{"e": "run", "schema": 2}]
    for name, prompt, tokens, end in (("x", "a", 10, "stop"), ("y", "a", 20, "length"), ("z", "b", 30, "abort")):
        events += [{"e": "start", "id": name, "prompt": prompt}, {"e": "end", "id": name, "tokens": tokens, "end": end}]
        events += [{"e": "score", "id": name, "reward": tokens / 100, "failure": None}]
    events += [{"e": "start", "id": "w", "prompt": "c"}, {"e": "end", "id": "w", "tokens": 40, "end": "stop"}]
    path = tmp_path / "events.jsonl"
    write(path, events)
    with path.open("a") as file:
        file.write('{"e": "sco')  # the run was killed here
    for source in (tmp_path, path):
        law = make_law(str(source), 0)
        known, other = sim_prompts(2, law)
        assert known.id == "a"
        for prompt in (known, other):
            assert {law.draw(prompt, stream)[:2] for stream in range(50)} == {(10, 0.1), (20, 0.2)}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2: Expecting"),
        ("[1]", "line 2: '\\[1\\]' is not a JSON object"),
        ('{"prompt": "p", "reward": 1}', "line 2: 'length' is missing"),
        ('{"prompt": "p", "length": 0, "reward": 1}', "line 2: length = 0 must be an integer of at least 1"),
        ('{"prompt": "p", "length": 2.5, "reward": 1}', "line 2: length = 2.5 must be"),
        ('{"prompt": 3, "length": 5, "reward": 1}', "line 2: prompt = 3 must be a string"),
        ('{"prompt": "p", "length": 5, "reward": NaN}', "line 2: reward = nan must be a finite number"),
        ('{"prompt": "p", "length": 5, "reward": null}', "line 2: reward = None must be"),
        ('{"e": "start", "id": [], "prompt": "p"}', "line 2: unhashable"),
        ('{"e": "end", "id": "x", "end": "stop"}', "line 2: 'tokens' is missing"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, problem):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + line + "\n")
    with pytest.raises(UserError, match=f"rows.jsonl, {problem}"):
        make_law(str(path), 0)


def test_a_score_without_a_start_is_named(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path, [{"e": "end", "id": "x", "tokens": 3, "end": "stop"}, {"e": "score", "id": "x", "reward": 1.0}])
    with pytest.raises(UserError, match=r"events.jsonl, line 2: the start of 'x' is missing"):
        make_law(str(tmp_path), 0)


def test_an_empty_or_missing_trace_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"events.jsonl: No such file"):
        make_law(str(tmp_path), 0)
    with pytest.raises(UserError, match=r"cannot read the trace .*gone.jsonl: No such file"):
        make_law(str(tmp_path / "gone.jsonl"), 0)
    with pytest.raises(UserError, match="has no finished response"):
        make_law(write(tmp_path / "empty.jsonl", []), 0)
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="is not UTF-8"):
        make_law(str(tmp_path / "binary.jsonl"), 0)


def test_an_unknown_law_is_told_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown law 'stres'; did you mean 'stress'.*run folder"):
        make_law("stres", 0)
