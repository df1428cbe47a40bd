"""What a critic adds to an update: which part of each trajectory is trained now, what it was worth, and the critic's
own steps towards that.

Invariant: all of this happens before the policy moves, so that values, advantages and hidden states are of the weights
that the update starts from.

Figures, over the tokens of trajectories that have ended, with G_t the return that token t really had:
  value_error = mean |V_t - G_t|;   explained_variance = 1 - Var(G - V) / Var(G), left out where all returns are equal
and at the ends of segments where a trajectory once rested, when it has ended, with G the return there (bridge.py):
  bridge_error = mean (bridged value - G)^2;   bridge_error_last = mean (V at the segment's last token - G)^2
over all `bridge_ends`; with `_read`, over those where the bridge had its tokens and did not take the return itself.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from untail.config import CriticConfig, LearnConfig
from untail.engine.models.decoder import Decoder
from untail.learn.advantage import TokenAdvantage
from untail.learn.bridge import Bridge, Stretch, estimate_of
from untail.learn.critic import Critic
from untail.learn.gae import Estimates, final_return
from untail.learn.memory import Memory
from untail.types import Batch, Group

PREFIX = "critic."  # of its tensors in a checkpoint


@dataclass(frozen=True, slots=True)
class Judged:
    """The groups to be trained, what is to be known about their trajectories, and the figures of finding out."""

    groups: list[Group]
    estimates: Estimates
    figures: dict[str, float]


class Values:
    def __init__(self, decoder: Decoder, config: LearnConfig, advantage: TokenAdvantage, memory: Memory):
        self.critic = Critic(decoder, config.critic or CriticConfig(), config, memory)
        self.bridge = Bridge(config.bridge)
        self._advantage = advantage

    def judge(self, batch: Batch) -> Judged:
        start = time.perf_counter()
        groups, stretches = self.bridge.stretches(batch)
        reading = self.critic.read(list(stretches.values()))
        estimates = {name: estimate_of(stretch, reading.value_N[name]) for name, stretch in stretches.items()}
        returns, taught = self._returns(groups, estimates)
        figures = self.critic.learn(reading, returns, taught)
        figures |= self._figures(stretches, estimates)
        if self.bridge.config is not None:
            figures |= self.bridge.crossed(batch, stretches.values(), estimates, self._gamma).figures()
            figures["bridged_tokens"] = int(
                sum(taught[name].sum() for name, stretch in stretches.items() if stretch.beyond)
            )
        figures |= {"values_not_finite": reading.not_finite, "critic_s": time.perf_counter() - start}
        return Judged(groups, estimates, figures)

    def _returns(
        self, groups: list[Group], estimates: Estimates
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """R_t of every token that is trained now, masked trajectories' too, and which tokens those are."""
        returns, taught = {}, {}
        for group in groups:
            for trajectory, advantage_N in zip(
                group.trajectories, self._advantage.per_token(group, estimates), strict=True
            ):
                estimate = estimates[trajectory.id]
                own = np.zeros(len(trajectory.tokens), dtype=bool)
                own[estimate.tokens(trajectory)] = True
                returns[trajectory.id] = advantage_N + estimate.value_N[: len(own)]
                taught[trajectory.id] = own
        return returns, taught

    def _figures(self, stretches: dict[str, Stretch], estimates: Estimates) -> dict[str, float]:
        values, truths = [], []
        for name, stretch in stretches.items():
            if not stretch.beyond:
                own = estimates[name].tokens(stretch.trajectory)
                values.append(estimates[name].value_N[own])
                truths.append(final_return(stretch.trajectory, own, self._gamma))
        value, truth = (np.concatenate(parts or [np.empty(0)]) for parts in (values, truths))
        figures = {"value_error": np.abs(value - truth).mean()} if len(value) else {}
        if len(value) and truth.var() > 0:
            figures["explained_variance"] = 1 - (truth - value).var() / truth.var()
        return {name: float(figure) for name, figure in figures.items() if np.isfinite(figure)}

    @property
    def _gamma(self) -> float:
        return self._advantage.config.gamma

    def tensors(self) -> dict[str, Tensor]:
        return {PREFIX + name: tensor for name, tensor in self.critic.optimizer.tensors().items()}

    def numbers(self) -> dict[str, Any]:
        return {"steps": self.critic.optimizer.steps, "bridge": self.bridge.state()}

    def load(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        own = {name.removeprefix(PREFIX): t for name, t in tensors.items() if name.startswith(PREFIX)}
        self.critic.optimizer.load(own, numbers["steps"])
        self.bridge.restore(numbers["bridge"])
