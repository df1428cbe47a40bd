"""The page as a file: what is in it, and what cannot get out of its place."""

import base64
import gzip
import importlib.util
import json
import re
from collections import Counter

import pytest
from tests.helpers.lively import Lively

from untail.errors import UserError
from untail.observe.report import write_report
from untail.observe.report.page import survival


def test_the_share_at_least_as_long():
    curve = survival(Counter({10: 5, 20: 4, 100: 1}))
    assert (curve["tokens"], curve["share"], curve["n"]) == ([10, 20, 100], [1.0, 0.5, 0.1], 10)
    assert (curve["percent"], curve["mark"], curve["mark_share"]) == ([50, 90, 99], [10, 20, 100], [1.0, 0.5, 0.1])
    assert survival(Counter())["mark"] == []


def test_a_long_curve_is_thinned_but_keeps_its_ends():
    curve = survival(Counter(dict.fromkeys(range(1, 5001), 1)))
    assert len(curve["tokens"]) <= 402
    assert (curve["tokens"][0], curve["tokens"][-1]) == (1, 5000)


def unpack(page: str, name: str) -> dict:
    packed = re.search(rf'id="{name}">([^<]*)</script>', page)
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))


def test_hostile_names_and_texts_stay_in_their_places(tmp_path):
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\ud800 {{plotly}}"
    run = Lively(slots=4, groups=1, size=3, prompt=hostile, answer=hostile)
    run.step(1)
    folder = tmp_path / "<img src=x>"
    run.write(folder)
    page = write_report([folder]).read_text()
    assert "alert(1)" not in page
    assert "<img src=x" not in page
    assert "&lt;img src=x&gt;" in page
    assert unpack(page, "picture-1-0")["groups"]["prompt"] == [hostile]
    assert unpack(page, "data")["runs"][0]["label"] == "<img src=x>"


def test_where_a_report_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        run = Lively(slots=4, groups=1, size=3)
        run.step(1)
        run.write(tmp_path / "both" / name)
    both = tmp_path / "both"
    assert write_report([both / "one"]) == both / "one" / "report.html"
    assert write_report([both]) == both / "report.html"
    assert write_report([both / "one", both / "two"]).resolve() == tmp_path / "untail-report.html"
    assert write_report([both], tmp_path / "new" / "x.html").exists()
    assert not list(tmp_path.rglob("*.part"))
    with pytest.raises(UserError, match="choose another place with --out"):
        write_report([both], both)


def test_without_plotly_it_says_what_to_install(tmp_path, monkeypatch):
    run = Lively(slots=4, groups=1, size=3)
    run.step(1)
    run.write(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=re.escape("pip install 'untail[report]'")):
        write_report([tmp_path])
