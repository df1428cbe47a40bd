"""The tables of benchmarks/README.md, from the files in benchmarks/data.

python benchmarks/tables.py
"""

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

DATA = Path(__file__).parent / "data"
SEEDS = (0, 1, 2)
Row = dict[str, Any]


def read(name: str) -> Any:
    """None where it was not measured."""
    path = DATA / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def rows_of(name: str) -> list[Row]:
    return [row for row in (read(name) or {"rows": []})["rows"] if "error" not in row]


def show(title: str, head: list[str], lines: list[list[str]]) -> None:
    print(f"\n## {title}\n")
    for line in (head, ["---"] * len(head), *lines):
        print("| " + " | ".join(line) + " |")


def percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}%}"


def interval(bounds: list[float] | None, digits: int = 1) -> str:
    return "-" if bounds is None else f"{bounds[0]:.{digits}%} to {bounds[1]:.{digits}%}"


def each(values: list[str]) -> str:
    return f"({', '.join(values)})"


def compared(name: str) -> None:
    """Means over seeds of what each recipe is against the first, and every seed's ratio."""
    seeds = [rows for seed in SEEDS if (rows := rows_of(f"{name}-seed{seed}"))]
    lines = []
    for number, first in enumerate(seeds[0] if seeds else []):
        rows = [rows[number] for rows in seeds]
        ratios = [row["ett"] / rows[0]["ett"] for row, rows in zip(rows, seeds, strict=True)]
        mean = lambda key, rows=rows: fmean(row[key] for row in rows)
        lines.append(
            [
                f"`{first['recipe']}`",
                f"{mean('speedup'):.2f}",
                f"{mean('ett'):.0f}",
                f"{fmean(ratios):.2f} {each([f'{ratio:.2f}' for ratio in ratios])}",
                percent(mean("slot_bubble"), 1),
                percent(mean("tail_share")),
                percent(mean("zero_variance")),
                f"{fmean(row['staleness']['mean'] for row in rows):.2f}",
                f"{mean('score_after'):.1%} {each([percent(row['score_after'], 1) for row in rows])}",
            ]
        )
    head = ["recipe", "speed", "ETT", "against `grpo` (each seed)", "slot bubble", "tail", "flat groups", "staleness"]
    if lines:
        show(name, [*head, "score after (each seed)"], lines)


def ablated(name: str, title: str) -> None:
    """What each part is worth: the figures without it, against the whole."""
    rows = rows_of(name)
    lines = [
        [
            f"`{row['recipe']}`",
            f"{row['wall_s'] / rows[0]['wall_s']:.2f}",
            f"{row['ett'] / rows[0]['ett']:.2f}",
            percent(row["slot_bubble"], 1),
            percent(row["tail_share"]),
            percent(row["bad_generation"], 1),
            percent(row["zero_variance"]),
            f"{row['staleness']['mean']:.2f}",
            f"{row['score_after']:.1%} ({interval(row['ci95_after'])})",
        ]
        for row in rows
    ]
    head = ["row", "seconds", "ETT", "slot bubble", "tail", "bad tokens", "flat groups", "staleness", "score"]
    if lines:
        show(title, head, lines)


def plain(name: str, title: str) -> None:
    lines = [
        [
            row["recipe"],
            f"{row['speedup']:.2f}",
            f"{row['ett']:.0f}",
            percent(row["slot_bubble"], 1),
            percent(row["tail_share"]),
            percent(row["bad_generation"], 1),
            percent(row["zero_variance"]),
            str(round(row["forks"])),
            f"{row['turns']:.2f}",
            percent(row["score_after"], 1),
            interval(row["ci95_after"]),
            f"{row['tokens']:,.0f}",
        ]
        for row in rows_of(name)
    ]
    head = ["row", "speed", "ETT", "bubble", "tail", "bad", "flat groups", "forks", "turns", "score", "95 %", "tokens"]
    if lines:
        show(title, head, lines)


def at_equal_tokens(names: tuple[str, ...]) -> None:
    """Scores on held-out prompts at the tokens that the thriftiest of all runs generated, interpolated between two
    validations."""
    rows = [(name, row) for name in names for row in rows_of(name)]
    if not rows:
        return
    tokens = min(row["tokens"] for _, row in rows)
    lines = []
    for name, row in rows:
        score, half = score_at(row["validations"], tokens)
        lines.append(
            [
                name,
                row["recipe"],
                percent(row["zero_variance"]),
                percent(sum(reason["ratio"] for reason in row["pruning"].values()), 1),
                percent(row["bad_generation"], 1),
                str(round(row["forks"])),
                f"{row['tokens']:,.0f}",
                f"{score:.1%} ± {100 * half:.1f}",
                percent(row["score_after"], 1),
            ]
        )
    head = [
        "data",
        "row",
        "flat groups",
        "stopped",
        "bad tokens",
        "forks",
        "tokens",
        f"at {tokens:,.0f} tokens",
        "last",
    ]
    show("Held-out scores at equal tokens", head, lines)


def score_at(validations: list[Row], tokens: float) -> tuple[float, float]:
    """And half the width of the 95 % interval of the validation before."""
    for before, after in pairwise(validations):
        if before["tokens"] <= tokens <= after["tokens"]:
            part = (tokens - before["tokens"]) / max(1, after["tokens"] - before["tokens"])
            score = before["score"] + part * (after["score"] - before["score"])
            return score, (before["ci95"][1] - before["ci95"][0]) / 2
    last = validations[-1]
    return last["score"], (last["ci95"][1] - last["ci95"][0]) / 2


def killed(names: tuple[str, ...]) -> None:
    """Of those that were stopped and audited, how many would have been rewarded."""
    lines = [
        [
            name,
            row["recipe"],
            reason,
            str(kills["stopped"]),
            str(kills["audited"]),
            str(kills["false"]),
            percent(kills["rate"]),
            interval(kills["ci95"], 0),
        ]
        for name in names
        for row in rows_of(name)
        for reason, kills in row["false_kills"].items()
    ]
    if lines:
        head = ["data", "row", "reason", "stopped", "audited", "rewarded", "false kills", "95 %"]
        show("Audited false kills", head, lines)


def pruned() -> None:
    lines = []
    for run, found in (read("pruning") or {}).items():
        shares = {"all": found["base"], "at a boundary": found["base_at_boundary"], **found["rules"]}
        for rule, share in shares.items():
            stopped = str(share.get("stopped", "-"))
            without = f"{percent(share['without_reward'], 1)} ({interval(share['ci95'])})"
            lines.append([run, rule, stopped, str(share["known"]), without])
    if lines:
        show("Pruning accuracy", ["run", "rule", "stopped", "known", "without reward"], lines)


def mastered() -> None:
    """Entropy of the last steps, with and without, seed by seed."""
    rows, curves = rows_of("mastered"), read("mastered.curves")
    if not rows or not curves:
        return
    lines = []
    for row in rows:
        runs = [Path(seed["run_dir"]).name for seed in row["seeds"]]
        means = [curve["mean_of_last_10"] for run in runs for curve in curves["curves"] if curve["run"] == run]
        entropies = [mean["entropy"] for mean in means]
        scores = [percent(seed["score_after"], 1) for seed in row["seeds"]]
        lines.append(
            [
                f"`{row['recipe']}`",
                f"{fmean(entropies):.4f} {each([f'{entropy:.4f}' for entropy in entropies])}",
                f"{row['score_after']:.1%} {each(scores)}",
                interval(row["ci95_after"]),
                percent(fmean(mean["pass1"] for mean in means), 1),
            ]
        )
    head = ["row", "entropy, last ten steps (each seed)", "score after (each seed)", "95 %", "pass@1, last ten steps"]
    show("Mastered tokens", head, lines)


def forked() -> None:
    lines = [
        [
            str(row["tokens"]),
            f"{1e6 * row['fork_s']:.0f}",
            f"{1e3 * row['first_token_s']:.2f}",
            f"{1e3 * row['prefill_s']:.2f}",
            f"{row['ratio']:.1f}",
            f"{row['fork_blocks']} / {row['prefill_blocks']}",
        ]
        for row in (read("fork") or {"rows": []})["rows"]
    ]
    if lines:
        head = ["tokens", "fork, µs", "first token after it, ms", "prefill and first token, ms", "ratio", "blocks"]
        show("Forks", head, lines)


def bridged() -> None:
    found = read("bridging")
    if found is None:
        return
    lines = [
        [
            str(seed),
            f"{row['ends']:,.0f}",
            f"{row['error_with']:.3f}",
            f"{row['error_without']:.3f}",
            percent(row["fall"]),
            percent(row["fall_same_run"]),
            f"{row['ends_read']:,.0f}: {percent(row['fall_read'])}",
        ]
        for seed, row in [*zip(found["seeds"], found["by_seed"], strict=True), ("all", found)]
    ]
    head = [
        "seed",
        "segment ends",
        "with",
        "without",
        "fall",
        "fall, same run and critic",
        "ends with all tokens: fall",
    ]
    show("Value bridging", head, lines)


def quickstart() -> None:
    lines = []
    for seed in SEEDS:
        path = DATA / f"quickstart-seed{seed}.validation.jsonl"
        if path.exists():
            scores = [json.loads(line) for line in path.read_text().splitlines()]
            lines.append([str(seed), *(f"{event['score']:.1%} ({interval(event['ci95'])})" for event in scores)])
    if lines:
        show("Quickstart", ["seed", *(f"after {10 * number}" for number in range(len(lines[0]) - 1))], lines)


def simulated(name: str) -> None:
    lines = [
        [
            row["recipe"],
            f"{row['step_s']:.1f}",
            f"{row['speedup']:.2f}",
            percent(row["slot_bubble"], 1),
            percent(row["tail_share"]),
            percent(row["first_segment"]),
            f"{row['staleness']:.2f}",
            f"{row['tok_s']:,.0f}",
        ]
        for row in rows_of(name)
    ]
    head = ["recipe", "s a step", "speed", "slot bubble", "tail", "end in first segment", "staleness", "tok/s"]
    show(name, head, lines)


def main() -> None:
    quickstart()
    compared("compare")
    compared("grpo-untail")
    ablated("ablate-es-grpo", "es-grpo, each part left out")
    plain("turns", "Turns with a slow tool")
    plain("easy", "Short responses only")
    plain("mastered", "Mastered tokens, all figures")
    mastered()
    pruners = ("prune-fork", "vary-dygs", "vary-adaseg", "fork-or-not")
    at_equal_tokens(pruners)
    killed(pruners)
    pruned()
    forked()
    bridged()
    for path in sorted(DATA.glob("sim-*.json")):
        simulated(path.stem)


if __name__ == "__main__":
    main()
