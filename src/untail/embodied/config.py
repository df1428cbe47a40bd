"""What is simulated and how it is learned from; no torch.

Invariant: the environments are cut into `shards` of equal size and whole groups, and everything random hangs on the
seed and on a shard's number. So an experience does not depend on which worker has which shard, nor on the mode.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, FiniteFloat, PositiveFloat, PositiveInt, model_validator

from untail.config import Strict, parse
from untail.errors import UserError, nearest

Share = Annotated[float, Field(ge=0, le=1)]
Algo = Literal["ppo", "grpo"]
EnvName = Literal["halfcheetah", "cartpole"]
Chance = Literal["states", "actions", "order"]
"""Where episodes begin, what the policy samples, and in which order an update goes through the steps."""


class LearnerConfig(Strict):
    """An update makes `epochs` passes over the experience, each in `minibatches` steps of the optimizer."""

    lr: PositiveFloat = 1e-3
    epochs: PositiveInt = 4
    minibatches: PositiveInt = 8
    clip: PositiveFloat = 0.2
    gamma: Share = 0.99
    lam: Share = 0.95
    reward_scale: PositiveFloat = 0.1  # of what the critic learns; returns are reported as they are
    max_grad_norm: PositiveFloat = 1.0


class EmbodiedConfig(Strict):
    env: EnvName = "cartpole"
    algo: Algo = "ppo"
    envs: PositiveInt = 1024
    shards: PositiveInt = 2  # what a policy acts for at once: envs / shards environments
    horizon: PositiveInt = 32  # steps of every environment in an iteration; with grpo an iteration is an episode
    episode: PositiveInt = 200  # steps until an environment begins anew
    group: PositiveInt = 1  # environments that begin alike and are compared; 1 with ppo
    hidden: PositiveInt = 64  # width of both layers of policy and critic
    log_std: FiniteFloat = -0.5  # of the actions at the start
    seed: Annotated[int, Field(ge=0)] = 0
    learn: LearnerConfig = LearnerConfig()

    @model_validator(mode="after")
    def _check(self) -> "EmbodiedConfig":
        if self.envs % (self.shards * self.group):
            raise ValueError(
                f"envs = {self.envs} cannot be cut into {self.shards} shards of whole groups of {self.group}; "
                f"take a multiple of {self.shards * self.group}"
            )
        if self.algo == "grpo" and self.group < 2:
            raise ValueError("group = 1 leaves grpo nothing to compare; take 2 or more")
        if self.algo == "grpo" and self.horizon != self.episode:
            raise ValueError(
                f"grpo learns from whole episodes: horizon = {self.horizon} must be episode = {self.episode}"
            )
        if self.algo == "ppo" and self.group > 1:
            raise ValueError(f"group = {self.group} means nothing to ppo; leave it at 1 or take grpo")
        fewest = self.shard_envs * (self.horizon if self.algo == "ppo" else 1)  # rows that a shard is sure to have
        if self.learn.minibatches > fewest:
            raise ValueError(f"learn.minibatches = {self.learn.minibatches} is more than the {fewest} rows of a shard")
        return self

    @property
    def steps(self) -> int:
        """Environment steps of an iteration."""
        return self.envs * self.horizon

    @property
    def shard_envs(self) -> int:
        return self.envs // self.shards

    def stream(self, what: Chance, iteration: int, shard: int) -> int:
        """The seed of one kind of chance in a shard's iteration."""
        kinds = get_args(Chance)
        return ((self.seed * 1_000_003 + iteration) * self.shards + shard) * len(kinds) + kinds.index(what)


PRESETS: dict[tuple[EnvName, Algo], dict[str, Any]] = {
    ("cartpole", "ppo"): {},
    ("cartpole", "grpo"): {"horizon": 200, "group": 16, "envs": 512},
    ("halfcheetah", "ppo"): {
        "envs": 32,
        "horizon": 128,
        "episode": 1000,
        "learn": {"lr": 5e-4, "epochs": 8, "minibatches": 8},
    },
    ("halfcheetah", "grpo"): {
        "envs": 32,
        "horizon": 200,
        "episode": 200,
        "group": 8,
        "learn": {"lr": 5e-4, "epochs": 8, "minibatches": 8},
    },
}
"""What each example is run with, where it differs from the defaults."""


def preset(env: str, algo: str, changes: dict[str, Any] | None = None) -> EmbodiedConfig:
    """The example `env` learned by `algo`, with `changes` to its fields."""
    for option, name, known in (("--env", env, EnvName), ("--algo", algo, Algo)):
        names = list(get_args(known))
        if name not in names:
            raise UserError(f"{option} {name!r} is unknown; {nearest(name, names)}")
    fields: dict[str, Any] = {"env": env, "algo": algo} | PRESETS[env, algo]  # type: ignore[index]
    for name, value in (changes or {}).items():
        both_tables = isinstance(value, dict) and isinstance(fields.get(name), dict)
        fields[name] = fields[name] | value if both_tables else value
    return parse(EmbodiedConfig, fields, "embodied")
