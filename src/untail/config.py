"""The recipe tree: one TOML file, dotted overrides on top, checked as a whole.

Invariant: nothing a user wrote is ignored. An unknown key or a bad value raises a `ConfigError` that names the field,
the value and the nearest known key. Tables of tasks, rewards, environments and mechanisms stay raw here; the registry
checks each with its own class. This module imports no torch.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from untail.errors import ConfigError, nearest

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Temperature = Annotated[float, Field(ge=1e-3, le=1e3)]
Beta = Annotated[float, Field(ge=0, lt=1)]


def _tables(where: str) -> BeforeValidator:
    """Of things by name: each a table, or false."""

    def check(tables: Any) -> Any:
        for name, table in tables.items() if isinstance(tables, dict) else ():
            if not isinstance(table, dict) and table is not False:
                raise ValueError(
                    f"{where}.{name} = {table!r} is neither a table nor false; set one of its fields, take it with its "
                    f"defaults with --set {where}.{name}={{}}, or leave it out with --set {where}.{name}=false"
                )
        return tables

    return BeforeValidator(check)


MayBeFalse = BeforeValidator(lambda value: None if value is False else value)
"""`false` leaves it out, as it does a mechanism."""
NamedTable = Annotated[dict[str, Any], BeforeValidator(lambda value: {"name": value} if type(value) is str else value)]
"""A plug-in's raw table; its name alone stands for a table with nothing else in it."""
NAMED_TABLES = frozenset({"choose", "advantage", "importance", "credit"})
"""The fields that are such tables."""
LossKind = Literal["token", "sequence", "constant"]
"""Mean over all tokens; mean over sequences of their token means; mean over sequences of token sum / `loss_length`."""


class Strict(BaseModel):
    """The base of every config class: no unknown keys, no coercion of nonsense, no change after the fact."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class EngineConfig(Strict):
    """The native engine."""

    max_seqs: PositiveInt = 256  # slots: sequences computed in one step
    max_batch_tokens: PositiveInt = 2048  # tokens computed in one step, prefill and decode together
    kv_gib: Annotated[float, Field(gt=0, le=2**20)] = 1.0  # size of the KV pool
    kv_blocks: PositiveInt | None = None  # the same in blocks of 16 tokens; wins over kv_gib
    context: PositiveInt | None = None  # the longest sequence; the model's own limit if unset
    prefix_cache: bool = True
    kv_after_update: Literal["recompute", "keep"] = "recompute"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    # auto: float32 on a CPU, bfloat16 on a GPU. float16: rounds eight times finer, so that engine and learner agree
    # six times better, where weights and activations stay below 65504. Beside bfloat16 that holds for queries, keys and
    # values alone.
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"


class CriticConfig(Strict):
    """What PPO's values come from."""

    kind: Literal["head", "model"] = "head"  # two layers on the policy's last hidden state; or a model of its own
    lr: PositiveFloat = 1e-3
    clip: PositiveFloat = 0.2  # how far a value may move in one batch before its gradient ends
    epochs: PositiveInt = 4  # optimizer steps of the critic on one batch


class BridgeConfig(Strict):
    """Segments of unfinished trajectories are trained in the step that made them (8.7)."""

    tokens: Annotated[int, Field(ge=0)] = 16  # of the next segment, whose mean value follows; 0: the last value alone


class PruneConfig(Strict):
    """Tokens that would hardly move the policy leave the loss (8.4)."""

    share: Annotated[float, Field(ge=0, lt=1)] = 0.4
    how: Literal["exact", "detach"] = "exact"
    cosine_every: Annotated[int, Field(ge=0)] = 50  # optimizer steps between looks at how far `detach` is off; 0: never


class DraftConfig(Strict):
    """Speculative decoding. `drafters` and `choose` are raw tables: their registries check them."""

    drafters: Annotated[
        dict[str, dict[str, Any] | Literal[False]], _tables("draft.drafters")
    ] = {}  # the preferred first
    choose: NamedTable = {"name": "first"}  # who drafts in a step, and how deep


class LearnConfig(Strict):
    """The update. `advantage`, `importance`, `credit` and `masks` are raw tables: their registries check them."""

    lr: PositiveFloat = 3e-4
    warmup_steps: Annotated[int, Field(ge=0)] = 3
    betas: tuple[Beta, Beta] = (0.9, 0.99)
    weight_decay: NotNegative = 0.0
    max_grad_norm: PositiveFloat = 1.0
    advantage: NamedTable = {"name": "grpo"}
    importance: NamedTable | None = None  # what tokens of older weights are corrected by; unset: "pois"
    credit: NamedTable = {"name": "once"}  # what tokens that copies share weigh
    masks: Annotated[dict[str, dict[str, Any] | Literal[False]], _tables("learn.masks")] = {}  # by name
    loss: LossKind | None = None  # unset: the loss that the advantage was published with
    loss_length: PositiveInt = 256  # what the loss "constant" divides a sequence's sum by
    clip_low: PositiveFloat | None = None  # unset: the clip that the advantage was published with
    clip_high: PositiveFloat | None = None
    max_drift: Annotated[float, Field(gt=1)] = 3.0  # a minibatch whose tokens drifted further is dropped
    kl: NotNegative = 0.0  # weight of the KL to the start weights; 0 keeps no reference model
    updates: PositiveInt = 1  # optimizer steps per batch: the batch is cut into this many minibatches of whole groups
    # Tokens of one forward and backward pass; auto: 4096, and on a GPU as many as its memory was measured to hold.
    micro_batch_tokens: PositiveInt | Literal["auto"] = "auto"
    # Rows of [rows x vocab] that exist at once in the fused log-prob; auto: 512, and on a GPU half a GiB of them.
    logit_rows: PositiveInt | Literal["auto"] = "auto"
    recompute: bool | Literal["auto"] = "auto"  # activation checkpointing; auto: of a pass that would not fit otherwise
    critic: Annotated[CriticConfig | None, MayBeFalse] = None  # of an advantage that needs values
    # Needs a critic; unset: trajectories are trained when their group is whole.
    bridge: Annotated[BridgeConfig | None, MayBeFalse] = None
    prune: Annotated[PruneConfig | None, MayBeFalse] = None


class RolloutConfig(Strict):
    """What is sampled in a step, and what holds for every mechanism."""

    prompts: PositiveInt = 32  # groups per step
    group: Annotated[int, Field(ge=2)] = 8  # trajectories per group: with one alone there is nothing to compare
    max_tokens: PositiveInt = 512  # the longest response
    temperature: Temperature = 1.0
    watch_every: PositiveInt = 64  # tokens between two looks of the watchers
    # Tokens before a watcher or a group may stop one; "segment": one of its segments; unset: min(2048, max(2 strides,
    # budget / 4)).
    patience: PositiveInt | Literal["segment"] | None = None
    audit: Annotated[float, Field(ge=0, le=1)] = 0.05  # share of the stopped and cancelled that run on, unseen
    max_false_kills: Annotated[float, Field(ge=0, le=1)] = 0.1  # a reason that surely exceeds it switches itself off
    max_staleness: Annotated[int, Field(ge=0)] = 4  # versions between a token's sampling and its training


class RewardConfig(Strict):
    """The scoring processes."""

    workers: PositiveInt = 2
    time_limit_s: PositiveFloat = 2.0  # per answer
    memory_limit_mb: Annotated[int, Field(gt=0, le=2**24)] = 512


class ValidationConfig(Strict):
    """Held-out prompts: those of `task`, or else `prompts` of the training task's own, which are then not trained
    on."""

    task: dict[str, Any] | None = None
    prompts: PositiveInt = 256
    every: Annotated[int, Field(ge=0)] = 0  # steps between validations; 0: only before and after
    temperature: Literal[0] | Temperature = 1.0  # 0 is greedy


class FlowConfig(Strict):
    """Where the roles run, and when."""

    # local: all in this process, on one device. Else in processes of their own: collocated (engines and learner in turn
    # on the same devices), disaggregated (side by side), hybrid (engines on all, the learner on some of them), auto (by
    # a plan, and by another one when what the roles take has changed).
    mode: Literal["local", "collocated", "disaggregated", "hybrid", "auto"] = "local"
    profile: str | None = None  # auto: a file of `untail plan --save`; unset: one device is measured at the start
    # sync: each batch is sampled from the newest weights. one-off: while the next one is sampled, an update runs.
    # async: batches are sampled ahead of updates, as far as `staleness` allows.
    schedule: Literal["sync", "one-off", "async"] = "sync"
    # Versions between a token's sampling and its training that `async` allows; unset: rollout.max_staleness.
    staleness: Annotated[int, Field(ge=0)] | None = None
    backend: Literal["local", "ray"] = "local"  # processes of this machine, or a Ray cluster
    address: str | None = None  # of Ray: HOST:PORT; unset: the one that is running, or a new one
    devices: PositiveInt | None = None  # unset: all that there are
    learner_devices: PositiveInt = 1  # how many of them the learner has, a rank on each; engines have one each
    # Groups that a learner with devices of its own is handed at a time, while the others are still sampled; unset: the
    # whole batch; auto: by the plan.
    portion: PositiveInt | None = None
    # How weights reach the engines: store (shared memory, or Ray's object store), gloo or nccl (torch.distributed; nccl
    # from GPU to GPU, each of which has one role; who misses them there finds them in the store).
    weights: Literal["store", "gloo", "nccl"] = "store"
    lease_s: PositiveFloat = 10.0  # a device's owner that has not been heard of for so long loses it
    # After each update the learner's state is kept outside of its process: one that dies costs nothing.
    recover: bool = True


class Recipe(Strict):
    """A whole run. Tables of tasks, environments and mechanisms are raw: their registries check them."""

    reproduces: str = ""  # one line: what published system this is
    model: str
    task: dict[str, Any]
    steps: PositiveInt = 60
    seed: int = 0
    history: str | None = None  # an earlier run's folder or its history.sqlite: a new run starts with a copy of it
    # The same seed gives the same run on one machine: no prefix cache, KV recomputed, nothing drafted.
    deterministic: bool = False
    checkpoint_every: PositiveInt = 10
    keep_checkpoints: PositiveInt = 2
    trackers: list[Literal["tensorboard", "wandb", "trackio"]] = []
    rollout: RolloutConfig = RolloutConfig()
    environment: dict[str, Any] | None = None  # who answers the model, if a trajectory may have several turns
    # By name, asked in this order; false leaves one out.
    mechanisms: Annotated[dict[str, dict[str, Any] | Literal[False]], _tables("mechanisms")] = {}
    reward: RewardConfig = RewardConfig()
    validation: ValidationConfig = ValidationConfig()
    engine: EngineConfig = EngineConfig()
    draft: DraftConfig = DraftConfig()
    learn: LearnConfig = LearnConfig()
    flow: FlowConfig = FlowConfig()


C = TypeVar("C", bound=BaseModel)
RECIPES = Path(__file__).parent / "recipes"
QUICKSTART = "quickstart"


def parse(cls: type[C], fields: dict[str, Any], where: str) -> C:
    """Check `fields` against `cls`; the first thing wrong becomes one sentence that starts at `where`."""
    try:
        return cls.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(_sentence(cls, error.errors(), where)) from None


def _sentence(cls: type[BaseModel], problems: Any, where: str) -> str:
    problem = problems[0]
    path = _field_path(cls, problem["loc"])
    field = ".".join([*([where] if where else []), *path])
    if problem["type"] == "extra_forbidden":
        return f"unknown key {field!r}; {nearest(path[-1], _known_keys(cls, path[:-1]))}"
    if problem["type"] == "missing":
        return f"{field} is missing; set it in the recipe or with --set {field}=..."
    if problem["type"] == "value_error":
        rule = problem["msg"].removeprefix("Value error, ")
        if field in rule:  # a rule of ours that says itself what it is about
            return rule
        return f"{field} = {problem['input']!r} is not valid: {rule}" if path else rule
    ways = [other["msg"] for other in problems if _field_path(cls, other["loc"]) == path]  # of several allowed kinds
    return f"{field} = {problem['input']!r} is not valid: {' or '.join(ways)}"


def _field_path(cls: Any, place: tuple[str | int, ...]) -> list[str]:
    """Where in the recipe: without the names of types, which pydantic adds where a field may be of several."""
    path = []
    for part in place:
        if cls is not None or isinstance(part, int):
            path.append(str(part))
        cls = _section(cls, part)
    return path


def _known_keys(cls: Any, path: list[str]) -> list[str]:
    for part in path:
        cls = _section(cls, part)
    return list(cls.model_fields) if cls is not None else []


def _section(cls: Any, key: Any) -> type[BaseModel] | None:
    """The class of the section that `key` stands for, if it is one; it may be left unset."""
    field = cls.model_fields.get(key) if cls is not None else None
    kinds = [field.annotation, *get_args(field.annotation)] if field is not None else []
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read the recipe {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def load_recipe(
    source: str | None, changes: dict[str, Any], assignments: list[str], ground: dict[str, Any] | None = None
) -> Recipe:
    """The ground (the quickstart, or on resume the run's own recipe), then the recipe (a name or a TOML file), then
    `changes`, then `a.b=c` assignments."""
    tree = read_toml(RECIPES / f"{QUICKSTART}.toml") if ground is None else ground
    if source is not None and source != QUICKSTART:
        tree = layer(tree, _read_recipe(source))
    return parse(Recipe, override(layer(tree, changes), assignments), "")


def _read_recipe(source: str) -> dict[str, Any]:
    if source in recipe_names():
        return read_toml(RECIPES / f"{source}.toml")
    if source.endswith(".toml"):
        return read_toml(Path(source))
    raise ConfigError(f"unknown recipe {source!r}; {nearest(source, recipe_names())}, or give a .toml file")


def layer(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` wins key by key. A table that names another thing replaces the one below whole, and a validation task
    goes with the training task that it was written for."""
    if "name" in above and "name" in below and above["name"] != below["name"]:
        return _copy(above)
    merged = _copy(below)
    if _renames(below, above, "task"):
        merged.get("validation", {}).pop("task", None)
    for key, value in above.items():
        both_tables = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = layer(merged[key], value) if both_tables else _copy(value)
    return merged


def _renames(below: dict[str, Any], above: dict[str, Any], key: str) -> bool:
    old, new = below.get(key), above.get(key)
    return isinstance(old, dict) and isinstance(new, dict) and new.get("name", old.get("name")) != old.get("name")


def override(tree: dict[str, Any], assignments: list[str]) -> dict[str, Any]:
    """Apply `a.b=c` in order; the value is read as TOML where it is TOML, else as a plain string. `a.b=` unsets."""
    tree = _copy(tree)
    for assignment in assignments:
        dotted, equals, text = assignment.partition("=")
        keys = [key.strip() for key in dotted.split(".")]
        if not equals or not all(keys):
            raise ConfigError(f"--set {assignment!r} is not of the form section.key=value")
        table = tree
        for key in keys[:-1]:
            if key in NAMED_TABLES and isinstance(table.get(key), str):
                table[key] = {"name": table[key]}
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise ConfigError(f"--set {assignment!r}: {key} is a value, not a section")
        table[keys[-1]] = _value(text.strip())
    return tree


def _copy(tree: Any) -> Any:
    return {key: _copy(value) for key, value in tree.items()} if isinstance(tree, dict) else tree


def _value(text: str) -> Any:
    if not text:
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def dump_toml(config: BaseModel) -> str:
    """The fully resolved tree as TOML (fields that are unset by default are left out: TOML has no null)."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))
