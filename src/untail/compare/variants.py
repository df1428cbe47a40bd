"""What is compared: recipes by name, one recipe with its mechanisms left out or kept alone, or one field swept.

Invariant: rows start from the same weights and share prompts, slots, seed and number of steps; recipes that differ in
one of these are refused, unless it is the very field that is swept. No torch here.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from untail.config import QUICKSTART, RECIPES, Recipe, layer, load_recipe, read_toml
from untail.errors import UserError

Load = Callable[[str, list[str]], Recipe]
"""A recipe by its name or file, with more `a.b=c` assignments on top."""
SHARED = ("model", "task", "environment", "validation", "seed", "steps", "engine.max_seqs")
CHECKS = 5  # validations on the way, so that it can be told when a score was reached


@dataclass(frozen=True, slots=True)
class Variant:
    """One row. `may_fail`: nobody wrote this recipe, so that it may make no sense; the others go on without it."""

    name: str
    recipe: Recipe
    may_fail: bool = False


def loader(changes: dict[str, Any], assignments: list[str]) -> Load:
    """Recipes as `untail train` reads them, but validated on the way unless they or the user say how often."""

    def load(source: str, more: list[str]) -> Recipe:
        steps = load_recipe(source, changes, assignments + more).steps
        every = {"validation": {"every": max(1, round(steps / CHECKS))}}
        ground = layer(read_toml(RECIPES / f"{QUICKSTART}.toml"), every)
        return load_recipe(source, changes, assignments + more, ground)

    return load


def named(sources: Sequence[str], load: Load) -> list[Variant]:
    names = distinct([_short(source) for source in sources])
    variants = [Variant(name, load(source, [])) for name, source in zip(names, sources, strict=True)]
    _refuse_unlike(variants)
    return variants


def distinct(names: Sequence[str]) -> list[str]:
    """A recipe that is named again, to see how far two runs of the same differ, gets a number: grpo, grpo (2)."""
    seen: Counter[str] = Counter()
    rows = []
    for name in names:
        seen[name] += 1
        rows.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return rows


def ablated(source: str, how: Literal["out", "only"], load: Load) -> list[Variant]:
    """The recipe and what it is without each mechanism and drafter; or nothing of it, and each of them alone."""
    recipe = load(source, [])
    parts = {**recipe.mechanisms, **recipe.draft.drafters}
    names = [name for name, table in parts.items() if table is not False]
    if not names:
        raise UserError(f"--ablate: the recipe {source!r} has no mechanisms; name one that has (`untail recipes`)")
    whole = _short(source)
    if how == "out":
        rows = {whole: [], **{f"{whole} - {name}": [name] for name in names}}
    else:
        rows = {"plain": names, **{f"+ {name}": [other for other in names if other != name] for name in names}}
    return [Variant(row, _without(recipe, gone), may_fail=row != whole) for row, gone in rows.items()]


def _without(recipe: Recipe, gone: Sequence[str]) -> Recipe:
    left = lambda tables: {name: table for name, table in tables.items() if name not in gone}
    draft = recipe.draft.model_copy(update={"drafters": left(recipe.draft.drafters)})
    return recipe.model_copy(update={"mechanisms": left(recipe.mechanisms), "draft": draft})


def varied(source: str, sweep: str, load: Load) -> list[Variant]:
    """`sweep` is KEY=A,B,C."""
    key, equals, values = sweep.partition("=")
    if not equals or not key or not all(values.split(",")):
        raise UserError(f"--vary {sweep!r} is not of the form KEY=A,B: a field and the values to give it")
    variants = [Variant(f"{key}={value}", load(source, [f"{key}={value}"])) for value in values.split(",")]
    _refuse_unlike(variants, swept=key)
    return variants


def _short(source: str) -> str:
    """A recipe's name, also if it is a file."""
    return Path(source).stem if source.endswith(".toml") else source


def _refuse_unlike(variants: Sequence[Variant], swept: str | None = None) -> None:
    first = variants[0]
    for field in SHARED:
        if swept is not None and (swept + ".").startswith(field + "."):
            continue
        for other in variants[1:]:
            mine, theirs = _field(first.recipe, field), _field(other.recipe, field)
            if mine != theirs:
                raise UserError(
                    f"compared recipes must have the same {field}, but {first.name} has {mine!r} and {other.name} has "
                    f"{theirs!r}; set it for all of them with --set {field}=..."
                )


def _field(recipe: Recipe, dotted: str) -> Any:
    value: Any = recipe.model_dump(mode="json")
    for key in dotted.split("."):
        value = value[key]
    return value
