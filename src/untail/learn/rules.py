"""A recipe's rules of learning, by name: advantage, importance, credit and masks. No torch: a recipe is checked here.

Invariant: this is the one place that reads these tables. What cannot be learned from what a rollout gives is refused in
one sentence before anything is generated (`refuse_unfit`, `refuse_blind`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from untail.config import LearnConfig, parse
from untail.errors import ConfigError
from untail.learn.advantage import ADVANTAGES, TokenAdvantage
from untail.learn.credit import CREDITS, Credit
from untail.learn.importance import IMPORTANCES, Importance
from untail.learn.mask import MASKS, Mask
from untail.learn.mask.last_segment import LastSegment
from untail.registry import Registry

IMPORTANCE = {"name": "pois"}


@dataclass(frozen=True, slots=True)
class Rules:
    advantage: TokenAdvantage
    importance: Importance
    credit: Credit
    masks: dict[str, Mask]

    @property
    def scopes(self) -> list[Mask]:
        """The masks, and that of the importance rule if it has one."""
        own = self.importance.scope
        return [*self.masks.values(), *([own] if own is not None else [])]

    @property
    def needing_logprobs(self) -> list[str]:
        """The fields whose rules need the log-probs of every token."""
        rules: dict[str, Importance | Credit | Mask] = {
            "learn.importance": self.importance,
            "learn.credit": self.credit,
        }
        rules |= {f"learn.masks.{name}": mask for name, mask in self.masks.items()}
        return [field for field, rule in rules.items() if rule.needs_logprobs]


def rules_of(config: LearnConfig, longest: int) -> Rules:
    """`longest` is the longest response that the recipe allows."""
    for name in config.masks:
        MASKS.get(name, f"learn.masks.{name}")  # one left out has to be known, too
    advantage = ADVANTAGES.build(config.advantage, "learn.advantage", longest)
    for field in ("critic", "bridge"):
        if getattr(config, field) is not None and not advantage.needs_values:
            raise ConfigError(
                f"learn.{field} is set, but learn.advantage = {config.advantage['name']!r} asks no critic; leave it "
                "out, or set learn.advantage to 'ppo'"
            )
    return Rules(
        advantage,
        IMPORTANCES.build(IMPORTANCE if config.importance is None else config.importance, "learn.importance"),
        CREDITS.build(config.credit, "learn.credit"),
        {
            name: MASKS.build({**table, "name": name}, f"learn.masks.{name}")
            for name, table in config.masks.items()
            if table is not False
        },
    )


def resolved(config: LearnConfig) -> LearnConfig:
    """With every field of its tables written out, and without the masks that it leaves out."""
    rules_of(config, 1)
    masks = {
        name: _written_out(MASKS, name, table, f"learn.masks.{name}")
        for name, table in config.masks.items()
        if table is not False
    }
    tables: dict[str, Any] = {
        field: {"name": table["name"], **_written_out(registry, table["name"], _rest(table), f"learn.{field}")}
        for field, registry in (("advantage", ADVANTAGES), ("importance", IMPORTANCES), ("credit", CREDITS))
        if (table := getattr(config, field)) is not None
    }
    return config.model_copy(update={"masks": masks, **tables})


@dataclass(frozen=True, slots=True)
class Rollout:
    """What the rules have to know of a recipe's rollout: mechanisms by name, and whether steps leave work over."""

    lossy: Sequence[str] = ()  # their tokens are not sampled from the policy itself
    copiers: Sequence[str] = ()
    sure_pruners: Sequence[str] = ()  # without a draw, or with next to no chance to live
    masking_pruners: Sequence[str] = ()
    defers: bool = False


def refuse_unfit(rules: Rules, bridges: bool, rollout: Rollout) -> None:
    """What these rules cannot learn from, whatever the backend."""
    if rollout.lossy and not (rules.importance.knows_sampling or rules.credit.corrects_sampling):
        raise ConfigError(
            f"{rollout.lossy[0]} samples tokens from something else than the policy, and the "
            "recipe's importance rule cannot tell; set learn.importance to 'tis' or 'segment', or learn.credit to "
            "'weights'"
        )
    if rules.credit.needs_survival:
        _refuse_certain_death(rollout)
    if bridges:
        _refuse_broken_bridge(rules, rollout)


def _refuse_certain_death(rollout: Rollout) -> None:
    if rollout.sure_pruners:
        raise ConfigError(
            "learn.credit = 'weights' weighs survivors by their chance to live, but "
            f"mechanisms.{rollout.sure_pruners[0]} prunes without a draw; prune with mechanisms.outliers at a "
            "probability of at most 0.9, or set learn.credit to 'once'"
        )
    if rollout.masking_pruners:
        raise ConfigError(
            "learn.credit = 'weights' counts everybody who was started, but "
            f"mechanisms.{rollout.masking_pruners[0]}.stopped = 'mask' takes the pruned out; set it to 'penalty' or "
            "'zero', or learn.credit to 'once'"
        )


def _refuse_broken_bridge(rules: Rules, rollout: Rollout) -> None:
    if not rollout.defers:
        raise ConfigError(
            "learn.bridge trains segments of what goes on in the next step, but this recipe's steps leave nothing "
            "over; add mechanisms.defer, or leave learn.bridge out"
        )
    if rollout.copiers:
        raise ConfigError(
            f"learn.bridge trains what a copy of mechanisms.{rollout.copiers[0]} shares before the copy is made, and "
            "it would be trained again; leave one of the two out"
        )
    if any(isinstance(mask, LastSegment) for mask in rules.scopes):
        raise ConfigError(
            "learn.bridge trains early segments before the last exists, and the scope 'last_segment' leaves them out "
            "of the loss; leave one of the two out"
        )


def needs_whole_batch(config: LearnConfig, rules: Rules) -> str | None:
    """The setting for which all groups of a batch must be there before the first is learned from, and why; None:
    gradients may be gathered from groups as they come."""
    name = config.advantage["name"]
    if rules.advantage.needs_values:
        return f"learn.advantage = {name!r} trains its critic on the whole batch first"
    if type(rules.advantage).over_batch is not TokenAdvantage.over_batch:
        return f"learn.advantage = {name!r} compares all tokens of a batch"
    if config.updates > 1:
        return f"learn.updates = {config.updates} deals the whole batch out to its optimizer steps"
    if config.prune is not None:
        return f"learn.prune.share = {config.prune.share} is of all tokens of a batch"
    return None


def refuse_blind(rules: Rules, backend: str, *, entropy: bool, logprobs: bool) -> None:
    """`entropy` and `logprobs`: whether the backend tells them of every token."""
    if rules.needing_logprobs and not logprobs:
        raise ConfigError(
            f"{rules.needing_logprobs[0]} needs the log-prob of every token, which the backend {backend!r} does not "
            "give; use another backend or leave it out (learn.importance = 'pois' and learn.credit = 'once' need none)"
        )
    needing_entropy = [name for name, mask in rules.masks.items() if mask.needs_entropy]
    if needing_entropy and not entropy:
        raise ConfigError(
            f"learn.masks.{needing_entropy[0]} needs the entropy of every token, which the backend {backend!r} does "
            f"not give; use another backend, or leave it out with --set learn.masks.{needing_entropy[0]}=false"
        )


def _written_out(registry: Registry[Any], name: str, fields: dict[str, Any], where: str) -> dict[str, Any]:
    config = parse(registry.get(name).Config, fields, where)
    return config.model_dump(mode="json", exclude_none=True)


def _rest(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "name"}
