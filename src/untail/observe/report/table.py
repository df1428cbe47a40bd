"""The tables of a report, as HTML: the figures of each run, and what the audit says of those that were stopped.

Invariant: a cell holds the figure to its last digit in `data-value`, and what a reader sees is made from that.
"""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

from untail.observe.report.reading import Run

Show = Callable[[Any], str]


class Figure(NamedTuple):
    key: str  # of observe.figures, or of those made from them below
    name: str
    says: str
    show: Show
    interval: str | None = None  # the key of its 95 % interval


seconds: Show = lambda value: f"{value:,.1f} s" if value >= 10 else f"{value:,.2f} s"
count: Show = lambda value: f"{value:,.0f}"
share: Show = lambda value: f"{100 * value:.1f} %"
ratio: Show = lambda value: f"{value:.2f} ×"
number: Show = lambda value: f"{value:,.2f}"
memory: Show = lambda value: f"{value / 2**30:,.2f} GiB"

FIGURES = (
    Figure("speedup", "speedup", "the first run's seconds of training over this one's", ratio),
    Figure("wall_s", "training time", "seconds of all steps, validation aside", seconds),
    Figure("makespan_p50", "a step, median", "from its begin to the new weights", seconds),
    Figure("makespan_p95", "a step, 95th percentile", "", seconds),
    Figure("tail_share", "tail", "share of the rollout after nine tenths had finished", share),
    Figure("tail_utilisation", "engines at work in the tail", "share of its seconds", share),
    Figure("slot_bubble", "slots idle", "share of slots times seconds of the rollout in which nothing ran", share),
    Figure("device_bubble", "device idle", "share of the step", share),
    Figure("tokens", "tokens generated", "", count),
    Figure("ett", "effective tokens per second", "of responses that taught something", count),
    Figure("etr", "rewarded tokens", "share of those generated", share),
    Figure("bad_generation", "thrown away", "share of tokens in responses that were stopped or cancelled", share),
    Figure("trajectories", "responses trained", "", count),
    Figure("forks", "responses forked", "", count),
    Figure("turns", "turns of a response", "mean", number),
    Figure("zero_variance", "groups that teach nothing", "share whose rewards are all the same", share),
    Figure("mean_len", "mean length", "tokens of a response that was trained", count),
    Figure("staleness_mean", "staleness", "weight versions between sampling and training, mean over tokens", number),
    Figure("pass1", "pass@1", "on training prompts, last quarter of the steps", share),
    Figure("score_before", "held-out score before", "with its 95 % interval", share, "ci95_before"),
    Figure("score_after", "held-out score after", "", share, "ci95_after"),
    Figure("peak_mem", "peak memory", "", memory),
    Figure("unaccounted", "tokens unaccounted for", "anything but 0 is a fault of ours", count),
)


def shown_figures(run: Run, first: Run | None) -> dict[str, Any]:
    """What is in the table, from the figures of the run; a run by itself has no speedup."""
    figures = run.figures
    validations, speedup = figures["validations"], {}
    if first is not None:
        speedup = {"speedup": first.figures["wall_s"] / figures["wall_s"] if figures["wall_s"] else None}
    return {
        **speedup,
        **figures,
        "staleness_mean": figures["staleness"]["mean"],
        "score_before": validations[0]["score"] if validations else None,
        "ci95_before": validations[0]["ci95"] if validations else None,
        "score_after": validations[-1]["score"] if len(validations) > 1 else None,
        "ci95_after": validations[-1]["ci95"] if len(validations) > 1 else None,
        "unaccounted": figures["accounts"]["unaccounted"],
    }


def figures_table(runs: Sequence[Run]) -> str:
    values = [shown_figures(run, runs[0] if len(runs) > 1 else None) for run in runs]
    rows = [_row(figure, values) for figure in FIGURES if figure.key in values[0]]
    heads = "".join(f'<th scope="col">{escape(run.label)}</th>' for run in runs)
    return f'<table class="figures"><thead><tr><td></td>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _row(figure: Figure, values: list[dict[str, Any]]) -> str:
    says = f"<small>{escape(figure.says)}</small>" if figure.says else ""
    cells = "".join(_cell(figure, one) for one in values)
    return f'<tr><th scope="row">{escape(figure.name)}{says}</th>{cells}</tr>'


def _cell(figure: Figure, values: dict[str, Any]) -> str:
    value = values[figure.key]
    if value is None:
        return f'<td data-figure="{figure.key}">–</td>'
    text = figure.show(value)
    if figure.interval:
        low, high = values[figure.interval]
        text = f"{100 * value:.1f} ± {50 * (high - low):.1f} %"
    return f'<td data-figure="{figure.key}" data-value="{value!r}">{escape(text)}</td>'


def stops_table(runs: Sequence[Run]) -> str:
    """Per run and reason; empty if nothing was stopped."""
    rows = [(run.label, reason, kills) for run in runs for reason, kills in run.figures["false_kills"].items()]
    if not rows:
        return ""
    heads = ("run", "reason", "stopped", "let run on", "of these rewarded", "rate, 95 % interval")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th><td>{escape(reason)}</td><td>{count(kills["stopped"])}</td>'
        f"<td>{count(kills['audited'])}</td><td>{count(kills['false'])}</td><td>{_interval(kills)}</td></tr>"
        for label, reason, kills in rows
    )
    return f'<table class="stops"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _interval(kills: dict[str, Any]) -> str:
    if kills["rate"] is None:
        return "–"
    low, high = kills["ci95"]
    return f"{share(kills['rate'])}, {share(low)} to {share(high)}"
