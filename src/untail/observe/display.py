"""What a person sees while a run goes on: a live panel in a terminal, plain lines elsewhere, a table at the end.

Invariant: every line of the panel fits into 80 columns.
"""

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from untail.types import Progress

BAR = 40


class Display:
    """Hears of every metrics row and every validation (`show`); prints to standard error."""

    def __init__(self, steps: int):
        self.console = Console(stderr=True)
        self.steps = steps
        self._first: tuple[int, float] | None = None  # the step before the first one seen, and when
        self._live = Live(console=self.console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "Display":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, row: dict[str, Any]) -> None:
        if "validation" in row:
            validation = row["validation"]
            low, high = validation["ci95"]
            text = f"step {row['step']:>4}  held-out score {validation['score']:.1%} (95 % {low:.1%} to {high:.1%})"
            self.console.print(text, highlight=False)
            return
        if row.get("tool_failures"):
            counts = ", ".join(f"{count} x {kind}" for kind, count in sorted(row["tool_failures"].items()))
            self.console.print(f"step {row['step']:>4}  the environment gave no reply: {counts}", highlight=False)
        where, figures = f"step {row['step']:>4}/{self.steps}  ETA {self._eta(row)}", line_of(row)
        if self.console.is_terminal:
            self._live.update(self._panel(row["step"] / self.steps, where, figures))
        else:
            self.console.print(f"{where}  {figures}", highlight=False, soft_wrap=True)

    def _eta(self, row: dict[str, Any]) -> str:
        now = time.monotonic()
        if self._first is None:
            self._first = (row["step"] - 1, now - row["wall_s"])
        step, began = self._first
        left = int((self.steps - row["step"]) * (now - began) / (row["step"] - step))
        hours, minutes = left // 3600, left // 60 % 60
        return f"{hours}:{minutes:02d}:{left % 60:02d}" if hours else f"{minutes}:{left % 60:02d}"

    @staticmethod
    def _panel(share: float, where: str, figures: str) -> Table:
        done = int(BAR * share)
        grid = Table.grid()
        grid.add_row(Text("━" * done, style="green") + Text("━" * (BAR - done), style="dim") + Text(f"  {where}"))
        grid.add_row(Text(figures))
        return grid

    def end(self, progress: Progress, folder: Path) -> None:
        """Before against after, and where the files are."""
        table = Table("", "before", "after", title=f"{progress.step} steps in {progress.seconds:.0f} s")
        before, after = progress.validations["0"], progress.validations[str(progress.step)]
        interval = lambda result: "{:.1%} to {:.1%}".format(*result["ci95"])
        table.add_row("held-out score", f"{before['score']:.1%}", f"{after['score']:.1%}")
        table.add_row("95 % interval", interval(before), interval(after))
        table.add_row("mean length", f"{before['mean_len']:.0f}", f"{after['mean_len']:.0f}")
        self.console.print(table)
        self.console.print(f"model: {folder / 'model'}\nmetrics: {folder / 'metrics.jsonl'}", highlight=False)


def line_of(row: dict[str, Any]) -> str:
    """A step's main figures."""
    if not row["trajectories"]:
        return f"nothing to train  {row['throughput']:.0f} tok/s  slot bubble {row['slot_bubble']:.0%}"
    return (
        f"reward {row['reward']:.3f}  length p50 {row['len_p50']:.0f} p99 {row['len_p99']}  "
        f"{row['throughput']:.0f} tok/s  slot bubble {row['slot_bubble']:.0%}"
    )
