"""The tables of a report."""

import re

import pytest
from tests.helpers.lively import Lively

from untail.observe.report.reading import read
from untail.observe.report.runs import find_runs
from untail.observe.report.table import figures_table, stops_table


@pytest.fixture
def runs(tmp_path):
    for name in ("one", "<two>"):
        run = Lively(slots=6, groups=3, size=6, seed=len(name))
        run.log.validation(0, 0.25, half=0.05)
        run.step(1)
        run.step(2)
        run.write(tmp_path / name)
    return read(find_runs([tmp_path / "one", tmp_path / "<two>"]))[0]


def cells(table: str, key: str) -> list[tuple[str, str]]:
    return re.findall(rf'data-figure="{key}" data-value="([^"]*)">([^<]*)<', table)


def test_a_cell_holds_the_figure_to_its_last_digit(runs):
    table = figures_table(runs)
    for key in ("wall_s", "tokens", "tail_share", "ett", "mean_len"):
        assert [float(value) for value, _ in cells(table, key)] == [run.figures[key] for run in runs]
    assert [text for _, text in cells(table, "tokens")] == [f"{run.figures['tokens']:,}" for run in runs]
    assert "&lt;two&gt;" in table
    assert "<two>" not in table


def test_speedup_is_against_the_first_and_a_run_by_itself_has_none(runs):
    walls = [run.figures["wall_s"] for run in runs]
    assert [float(value) for value, _ in cells(figures_table(runs), "speedup")] == [1.0, walls[0] / walls[1]]
    assert cells(figures_table(runs[:1]), "speedup") == []


def test_a_score_has_its_interval_and_one_validation_is_no_after(runs):
    table = figures_table(runs)
    assert [text for _, text in cells(table, "score_before")] == ["25.0 ± 5.0 %"] * 2
    assert table.count('<td data-figure="score_after">–</td>') == 2


def test_what_was_stopped_per_reason(runs):
    table = stops_table(runs)
    stopped = [kills["stopped"] for run in runs for kills in run.figures["false_kills"].values()]
    assert table.count("<tr>") == 1 + len(stopped) > 1
    for run in runs:
        run.figures["false_kills"] = {
            "a<b": {"stopped": 1200, "audited": 4, "false": 1, "rate": 0.25, "ci95": [0.1, 0.5]}
        }
    assert "<td>a&lt;b</td><td>1,200</td><td>4</td><td>1</td><td>25.0 %, 10.0 % to 50.0 %</td>" in stops_table(runs)
    for run in runs:
        run.figures["false_kills"] = {}
    assert stops_table(runs) == ""
