"""From a recipe's `draft` section to what the engine drafts with; no torch.

Invariant: what a recipe asks for is checked before anything is loaded. Importing this module registers all that ship.
"""

from typing import Any

import untail.draft.adaptive.drafter
import untail.draft.choose
import untail.draft.history
import untail.draft.layer_skip
import untail.draft.ngram  # noqa: F401  (these five register what is in them)
from untail.config import DraftConfig, parse
from untail.draft.base import DRAFTERS, Drafter, LearningDrafter
from untail.draft.choose.base import CHOOSERS, Chooser
from untail.draft.speculation import Speculator
from untail.draft.training import DraftTraining
from untail.errors import ConfigError


def resolved(config: DraftConfig) -> DraftConfig:
    """With every field written out, and without the drafters that it leaves out."""
    # One left out has to be known, too.
    configs = {name: DRAFTERS.get(name, f"draft.drafters.{name}").Config for name in config.drafters}
    tables = {
        name: parse(configs[name], table, f"draft.drafters.{name}").model_dump(mode="json", exclude_none=True)
        for name, table in config.drafters.items()
        if table is not False
    }
    chooser = _chooser(config, seed=0)
    fields = chooser.config.model_dump(mode="json", exclude_none=True)
    return config.model_copy(update={"drafters": tables, "choose": {"name": config.choose["name"], **fields}})


def lossy(config: DraftConfig) -> list[str]:
    """Drafters whose tokens may be taken unverified. Pre: resolved."""
    kept = {name: table for name, table in config.drafters.items() if table is not False}
    is_lossy = lambda cls, name: cls.is_lossy(parse(cls.Config, kept[name], f"draft.drafters.{name}"))
    return [f"draft.drafters.{name}" for name in kept if is_lossy(DRAFTERS.get(name), name)]


def build(config: DraftConfig, seed: int) -> Speculator | None:
    """None where nobody drafts."""
    drafters: dict[str, Drafter] = {}
    for name, table in config.drafters.items():
        if table is not False:
            drafters[name] = DRAFTERS.build({**table, "name": name}, f"draft.drafters.{name}")
    return Speculator(drafters, _chooser(config, seed)) if drafters else None


def learning(config: DraftConfig) -> dict[str, type[LearningDrafter]]:
    """The drafters that learn while a run goes on, by name."""
    classes = {name: DRAFTERS.get(name) for name, table in config.drafters.items() if table is not False}
    return {name: cls for name, cls in classes.items() if issubclass(cls, LearningDrafter)}


def build_training(config: DraftConfig, target: Any) -> DraftTraining:
    """Of all that learn, beside a target's weights (draft/adaptive/target.py)."""
    tables: dict[str, Any] = config.drafters
    parsed = lambda name, cls: parse(cls.Config, tables[name], f"draft.drafters.{name}")
    return DraftTraining({name: cls.trainer(parsed(name, cls), target) for name, cls in learning(config).items()})


def refuse_if_it_cannot(config: DraftConfig, can_draft: bool, backend: str) -> None:
    names = [name for name, table in config.drafters.items() if table is not False]
    if names and not can_draft:
        raise ConfigError(
            f"draft.drafters.{names[0]} needs a backend that verifies drafts, which {backend!r} does not; use another "
            f"backend, or leave it out with --set draft.drafters.{names[0]}=false"
        )


def _chooser(config: DraftConfig, seed: int) -> Chooser:
    names: list[Any] = [name for name, table in config.drafters.items() if table is not False]
    return CHOOSERS.build(config.choose, "draft.choose", names, seed)
