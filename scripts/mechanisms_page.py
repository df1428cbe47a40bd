"""Write docs/mechanisms.md from the registry: python scripts/mechanisms_page.py."""

import re
import sys
from pathlib import Path
from typing import Any

from untail.draft.build import CHOOSERS, DRAFTERS
from untail.registry import Registry
from untail.rollout.mechanisms import MECHANISMS

PAGE = Path(__file__).parents[1] / "docs" / "mechanisms.md"
HEAD = """# The mechanisms

What `untail recipes` lists under "sections" are the numbers of this page, written by `scripts/mechanisms_page.py` from
the registry. A recipe takes a mechanism with `[mechanisms.NAME]` and sets its fields there, the command line with
`--set mechanisms.NAME.FIELD=VALUE`; see [rollout.md](rollout.md) for when each is asked and what goes together. Lengths
in tokens are written for budgets of 8192 and more and shrink with smaller ones. Two sections are not mechanisms: 6.1 is
to wait for all, which is what a recipe without a mechanism does, and 8.1 the advantage (`learn.advantage`).

| section | name | what it does | fields and their defaults |
|---|---|---|---|
"""


DRAFTING = """
## Drafting

`[draft.drafters.NAME]` takes a drafter, `draft.choose` says who chooses among them; see [drafting.md](drafting.md).

| section | name | what it does | fields and their defaults |
|---|---|---|---|
"""


def page() -> str:
    mechanisms = {name: (cls.sections, cls) for name, cls in _ours(MECHANISMS).items()}
    drafting = {name: (cls.section, cls) for registry in (DRAFTERS, CHOOSERS) for name, cls in _ours(registry).items()}
    return HEAD + _rows(mechanisms) + DRAFTING + _rows(drafting)


def _ours(registry: Registry[Any]) -> dict[str, Any]:
    """A test's or another package's plug-ins are not on this page."""
    classes = {name: registry.get(name) for name in registry.names()}
    return {name: cls for name, cls in classes.items() if cls.__module__.startswith("untail.")}


def _rows(classes: dict[str, tuple[str, Any]]) -> str:
    ranked = sorted(classes.items(), key=lambda item: (_order(item[1][0]), item[0]))
    return "".join(_row(name, *described) for name, described in ranked)


def _order(section: str) -> list[Any]:
    return [(int(number or 0), letter) for number, letter in re.findall(r"(\d+)([a-z]?)", section)]


def _row(name: str, section: str, cls: Any) -> str:
    fields = ", ".join(f"`{field} = {_value(info.default)}`" for field, info in cls.Config.model_fields.items())
    return f"| {section} | `{name}` | {_what(cls)} | {fields or 'none'} |\n"


def _what(cls: type) -> str:
    """The first sentence of its file, without the number that the table has already."""
    text = " ".join((sys.modules[cls.__module__].__doc__ or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[a-z0-9)%])[.;:] (?=[A-Z`])|\.$", text)[0]
    return re.sub(r"^(Section )?[\d.]+[a-z]?,? ", "", sentence).replace("|", "\\|")


def _value(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:.4g}" if isinstance(default, float) else repr(default)


if __name__ == "__main__":
    PAGE.write_text(page())
