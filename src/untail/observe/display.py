"""What a person sees while a run goes on: a live line in a terminal, plain lines elsewhere, a table at the end."""

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from untail.types import Progress


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
        line = self._line(row)
        if self.console.is_terminal:
            self._live.update(self._panel(row, line))
        else:
            self.console.print(line, highlight=False, soft_wrap=True)

    def _line(self, row: dict[str, Any]) -> str:
        return (
            f"step {row['step']:>4}/{self.steps}  reward {row['reward']:.3f}  length p50 {row['len_p50']:.0f} "
            f"p99 {row['len_p99']}  {row['throughput']:.0f} tok/s  slot bubble {row['slot_bubble']:.0%}  "
            f"ETA {self._eta(row)}"
        )

    def _eta(self, row: dict[str, Any]) -> str:
        now = time.monotonic()
        if self._first is None:
            self._first = (row["step"] - 1, now - row["wall_s"])
        step, began = self._first
        left = (self.steps - row["step"]) * (now - began) / (row["step"] - step)
        return f"{int(left) // 60}:{int(left) % 60:02d}"

    def _panel(self, row: dict[str, Any], line: str) -> Table:
        share = row["step"] / self.steps
        bar = Text("━" * int(40 * share), style="green") + Text("━" * (40 - int(40 * share)), style="dim")
        grid = Table.grid()
        grid.add_row(bar)
        grid.add_row(line)
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
