"""Partial scores: what each says about a text that is not finished, and that none of them can do harm."""

import asyncio
from pathlib import Path

import pytest

from untail.errors import ConfigError
from untail.rewards.partial import PARTIALS, build_partial
from untail.rewards.scorer import PartialScore, Scorer
from untail.types import Prompt

PROMPT = Prompt("p", "t", "What?", (1, 2), {})


def score(name: str, text: str, **fields) -> float | None:
    return build_partial({"name": name, **fields}, "task.partial").score(text, PROMPT)


CODE = "Let me see.\n```python\n{}\n```\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I think", None),
        ("```python\ndef f(:", None),  # still open
        (CODE.format("def f(x): return x"), 1.0),
        (CODE.format("def f(:"), 0.0),
        (CODE.format("def f(:") + CODE.format("x = 1"), 1.0),
        (CODE.format("x = '\0'"), 0.0),
        (CODE.format("x = '\\d'"), 1.0),
    ],
)
def test_compiles(text, expected):
    assert score("compiles", text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no tags, but 1 < 2 > 0", None),
        ("<think>hm", 1.0),
        ("<think>hm</think><answer>4", 1.0),
        ("<think>hm</think><answer>4</answer>", 1.0),
        ("</think>", 0.0),
        ("<think><think>", 0.0),
        ("<think><answer></think>", 0.0),
        ("<think></think><think>", 0.0),
    ],
)
def test_tags_balance(text, expected):
    assert score("tags_balance", text) == expected


def test_tags_may_come_again_where_a_recipe_says_so():
    assert score("tags_balance", "<a></a><a>", tags=("a",)) == 0.0
    assert score("tags_balance", "<a></a><a>", tags=("a",), once=False) == 1.0


def test_endless_wait():
    assert score("endless_wait", "It is awaited.") is None
    assert score("endless_wait", "Wait, no. wait!", most=4) == 0.5
    assert score("endless_wait", "wait " * 30) == 0.0
    assert score("endless_wait", "wait " * 30 + "\\boxed{4}") == 1.0


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"name": "tags"}, "unknown partial score 'tags'"),
        ({"name": "tags_balance", "tags": ["a|b"]}, r"task.partial.tags.0 = 'a\|b' is not valid"),
        ({"name": "endless_wait", "most": 0}, "task.partial.most = 0 is not valid"),
        ({"name": "function"}, "task.partial.path is missing"),
        ({}, "task.partial has no name; set task.partial.name to one of: compiles, endless_wait"),
    ],
)
def test_a_wrong_table_is_refused(table, sentence):
    with pytest.raises(ConfigError, match=sentence):
        build_partial(table, "task.partial")


def test_every_one_has_a_name():
    assert PARTIALS.names() == ["compiles", "endless_wait", "function", "tags_balance"]


HOSTILE = """
import time
def act(text, prompt):
    if text == "hang":
        time.sleep(1000)
    if text == "raise":
        raise ValueError("no such thing")
    return {"none": None, "nan": float("nan"), "half": 0.5, "text": "x"}[text]
"""


async def test_one_that_hangs_or_raises_costs_itself_alone(tmp_path: Path, monkeypatch):
    (tmp_path / "hostile_partials.py").write_text(HOSTILE)
    monkeypatch.chdir(tmp_path)
    partials = {"t": {"name": "function", "path": "hostile_partials:act"}}
    texts = ["hang", "half", "raise", "none", "nan", "text"]
    async with Scorer({"t": {"name": "numeric"}}, workers=2, time_limit_s=1.0, partials=partials) as scorer:
        found = await asyncio.gather(*(scorer.partial(PROMPT, text) for text in texts))
        reward = await scorer.score(Prompt("p", "t", "", (1,), {"answer": "4"}), "4")
        assert await scorer.partial(Prompt("p", "other", "", (1,)), "half") == PartialScore(None)
    assert dict(zip(texts, found, strict=True)) == {
        "hang": PartialScore(None, "timeout"),
        "half": PartialScore(0.5),
        "raise": PartialScore(None, "raised: ValueError: no such thing"),
        "none": PartialScore(None),
        "nan": PartialScore(None, "not a number: nan"),
        "text": PartialScore(None, "not a number: 'x'"),
    }
    assert reward.value == 1.0
    assert not scorer.failures, "a partial score is no reward"


async def test_one_that_cannot_be_prepared_is_refused():
    scorer = Scorer({"t": {"name": "numeric"}}, partials={"t": {"name": "function", "path": "no_such_module:f"}})
    with pytest.raises(ConfigError, match=r"the partial of task 't'\.path = 'no_such_module:f' cannot be imported"):
        await scorer.start()
