"""Every variant trained with every seed, each run in a folder of its own."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from untail.compare.contender import LocalContender, Show
from untail.compare.race import Lane, race
from untail.compare.rows import Result, SeedRun
from untail.compare.variants import Variant
from untail.observe.figures import run_figures


async def train_all(
    variants: Sequence[Variant], seeds: Iterable[int], out: Path, say: Callable[[str], None]
) -> list[Result]:
    """Seed after seed; whoever is out with one is a row without figures."""
    results = [Result(variant.name) for variant in variants]
    width, note = max(len(variant.name) for variant in variants), _once(say)
    for seed in seeds:
        folders = [out / _folder_name(number, variant.name, seed) for number, variant in enumerate(variants, 1)]
        lanes = []
        for variant, folder in zip(variants, folders, strict=True):
            recipe = variant.recipe.model_copy(update={"seed": seed})
            show = _teller(f"{variant.name:{width}}  seed {seed}", recipe.steps, say)
            lanes.append(Lane(partial(LocalContender, recipe, folder, show, note), variant.may_fail))
        await race(lanes)
        for result, lane, folder in zip(results, lanes, folders, strict=True):
            if lane.error is None:
                result.runs.append(SeedRun(seed, folder, run_figures(folder / "events.jsonl")))
            else:
                result.error = lane.error
    return results


def _folder_name(number: int, name: str, seed: int) -> str:
    """The number keeps names apart that look alike without their odd characters, and the same recipe named twice."""
    return f"{number}-{re.sub(r'[^A-Za-z0-9._=-]+', '-', name).strip('-')}-seed{seed}"


def _once(say: Callable[[str], None]) -> Callable[[str], None]:
    """All variants have the same data, and the same notes on it."""
    said: set[str] = set()

    def note(text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    return note


def _teller(who: str, steps: int, say: Callable[[str], None]) -> Show:
    def tell(row: dict[str, Any]) -> None:
        where = f"{who}  step {row['step']:>3}/{steps}"
        if "validation" in row:
            say(f"{where}  held-out score {row['validation']['score']:.1%}")
        else:
            reward = "none" if row["reward"] is None else f"{row['reward']:.3f}"
            say(f"{where}  {row['wall_s']:6.2f} s  reward {reward}  bubble {row['slot_bubble']:.0%}")

    return tell
