"""What is simulated: the devices, who has which of them, and how far rollout may run ahead of learning.

Modes (9.5): `collocated`, engines and learner have all devices in turn; `disaggregated`, each has its own; `hybrid`,
engines have all, and those of the learner's devices stand still while it learns. Schedules: `sync`, a rollout waits for
the update before it; `one-off`, it begins with the weights of the update before that one; `async`, it begins at once
with whatever weights there are, new ones reach it as it runs, and no token is trained that is older than the bound.

Invariant: a scene that contradicts itself is refused when it is made.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from untail.backends.sim import SimConfig
from untail.config import RolloutConfig
from untail.errors import ConfigError

Mode = Literal["collocated", "disaggregated", "hybrid"]
Schedule = Literal["sync", "one-off", "async"]
LEARNERS_SHARE = 4  # one device in so many is the learner's, unless it is said how many are


@dataclass(frozen=True)
class Scene:
    devices: int
    law: str  # a law's name, or a trace
    steps: int = 20  # that are measured
    warmup: int = 6
    update_s: float = 0.0  # of every update, however many devices it has
    learn_tok_s: float = math.inf  # tokens that one device learns from in a second
    handover_s: float = 0.0  # to hand the devices over, or new weights to engines that have their own
    mode: Mode = "collocated"
    schedule: Schedule = "sync"
    staleness: int | None = None  # versions that a token may be old when it is trained; unset: what the recipe says
    learners: int | None = None  # devices of the learner, unless they are all
    engine: SimConfig = field(default_factory=SimConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.mode == "collocated":
            if self.schedule != "sync":
                raise ConfigError(
                    f"schedule = {self.schedule!r} with mode = 'collocated': who takes turns cannot overlap; use "
                    "schedule = 'sync', or mode = 'disaggregated' or 'hybrid'"
                )
            if self.learners is not None:
                raise ConfigError(f"learners = {self.learners} with mode = 'collocated': the learner has all devices")
        elif self.mode == "disaggregated" and not 0 < self.learner_devices < self.devices:
            raise ConfigError(
                f"learners = {self.learner_devices} of {self.devices} devices with mode = 'disaggregated': rollout and "
                "learner need at least one device each; give more devices, or other learners"
            )
        elif not 0 < self.learner_devices <= self.devices:
            raise ConfigError(f"learners = {self.learner_devices} must be between 1 and devices = {self.devices}")
        if self.schedule == "sync" and self.staleness is not None:
            raise ConfigError(
                f"staleness = {self.staleness} with schedule = 'sync', where rollout never runs ahead; use 'async', or "
                "set rollout.max_staleness for what is deferred"
            )

    @property
    def learner_devices(self) -> int:
        if self.mode == "collocated":
            return self.devices
        return max(1, self.devices // LEARNERS_SHARE) if self.learners is None else self.learners

    @property
    def engines(self) -> int:
        """One on each device that rollout has."""
        return self.devices - self.learner_devices if self.mode == "disaggregated" else self.devices

    def bound(self, rollout: RolloutConfig) -> int:
        """Versions that a token may be old when it is trained."""
        return rollout.max_staleness if self.staleness is None else self.staleness

    def lead(self, rollout: RolloutConfig) -> int:
        """Updates that a rollout need not wait for."""
        bound = self.bound(rollout)
        return {"sync": 0, "one-off": min(1, bound), "async": bound}[self.schedule]

    def update_seconds(self, tokens: int) -> float:
        return self.update_s + tokens / (self.learn_tok_s * self.learner_devices)
