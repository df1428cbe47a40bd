"""The live panel fits a narrow terminal; elsewhere a step is one line."""

import io

import pytest
from rich.console import Console

from untail.observe.display import Display

ROW = {
    "step": 1234,
    "reward": -0.123,
    "trajectories": 8,
    "len_p50": 12345.0,
    "len_p99": 32768,
    "throughput": 123456.7,
    "slot_bubble": 0.45,
    "wall_s": 3600.0,
}


def shown(row: dict, terminal: bool) -> list[str]:
    """What `show` prints for one row, at 80 columns."""
    text = io.StringIO()
    display = Display(steps=9999)
    display.console = Console(file=text, width=80, force_terminal=terminal, color_system=None)
    display._live.console = display.console
    with display:
        display.show(row)
        panel = display._live.get_renderable() if terminal else None
    if panel is not None:
        text = io.StringIO()
        Console(file=text, width=80, color_system=None).print(panel)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_the_panel_is_two_lines_of_80_columns():
    bar, figures = shown(ROW, terminal=True)
    assert "step 1234/9999  ETA 8765:00:00" in bar
    assert figures == "reward -0.123  length p50 12345 p99 32768  123457 tok/s  slot bubble 45%"


def test_elsewhere_a_step_is_one_line():
    (line,) = shown(ROW, terminal=False)
    assert line.startswith("step 1234/9999")
    assert line.endswith("slot bubble 45%")


@pytest.mark.parametrize("terminal", [True, False])
def test_a_step_that_trained_nothing(terminal):
    empty = {**ROW, "trajectories": 0, "reward": None, "len_p50": None, "len_p99": None}
    assert "nothing to train" in shown(empty, terminal)[-1]


def test_an_environment_that_fails_is_told_of():
    failures, step = shown({**ROW, "tool_failures": {"timeout": 2, "raised": 30}}, terminal=False)
    assert failures == "step 1234  the environment gave no reply: 30 x raised, 2 x timeout"
    assert step.startswith("step 1234/9999")
