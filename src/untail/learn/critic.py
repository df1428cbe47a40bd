"""The critic: what the rest of a response is worth, token by token.

V_t is read off the hidden state that predicts token t, by two layers: V = w tanh(A h + a) + b, with w and b 0 at the
start. `head` reads the policy's own last hidden state and leaves the trunk alone: the policy is moved by its own loss
only, and the critic costs one forward pass. `model` is a copy of the policy's trunk as it is when the run begins, and
all of it learns.

With R_t the GAE return (gae.py), V_old the value before the update, over all n tokens of the batch:
  loss = 1/n sum_t 1/2 max((V_t - R_t)^2, (clip(V_t, V_old - c, V_old + c) - R_t)^2)

Invariant: it learns from every token that is trained and from those of masked trajectories too. A value that is not
finite counts as 0 and is counted, and a gradient that is not finite moves nothing.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from untail.config import CriticConfig, LearnConfig
from untail.engine.models.decoder import Decoder
from untail.engine.models.product import at_least_float32
from untail.learn.bridge import Stretch
from untail.learn.logprob import rows_at_once
from untail.learn.memory import Memory
from untail.learn.optimizer import Optimizer
from untail.learn.pack import MicroBatch
from untail.learn.policy import Policy
from untail.learn.sample import Sample
from untail.types import Trajectory


class ValueHead(nn.Module):
    def __init__(self, hidden: int, device: torch.device, dtype: torch.dtype):
        super().__init__()
        noise = torch.randn(hidden, hidden, generator=torch.Generator().manual_seed(0)) / hidden**0.5
        self.inner = nn.Parameter(noise.to(device, dtype))
        self.inner_bias = nn.Parameter(torch.zeros(hidden, device=device, dtype=dtype))
        self.outer = nn.Parameter(torch.zeros(hidden, device=device, dtype=dtype))
        self.outer_bias = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))

    def forward(self, hidden_RD: Tensor) -> Tensor:
        inner_RD = torch.tanh(hidden_RD.to(self.inner.dtype) @ self.inner.T + self.inner_bias)
        return inner_RD @ self.outer + self.outer_bias


@dataclass(slots=True)
class Reading:
    """The critic's values before an update: by trajectory id, and in the micro-batches they were computed in."""

    value_N: dict[str, np.ndarray]
    not_finite: int
    micros: list[MicroBatch]
    hidden: dict[int, Tensor]  # of each micro-batch, by its `id`, where the trunk does not learn


class Critic:
    def __init__(self, decoder: Decoder, config: CriticConfig, learn: LearnConfig, memory: Memory):
        self.config = config
        self._memory = memory
        self._own_trunk = config.kind == "model"
        trunk = copy.deepcopy(decoder) if self._own_trunk else decoder
        weight = decoder.output_weight
        self._reader = Policy(trunk, 1.0, rows_at_once(learn.logit_rows, weight))
        self._dtype = at_least_float32(weight.dtype)
        self.head = ValueHead(decoder.shape.hidden, weight.device, self._dtype)
        memory.ranks.shard(self.head)
        if self._own_trunk:
            memory.ranks.shard(trunk)
        parameters = dict(self.head.named_parameters(prefix="head"))
        if self._own_trunk:
            parameters |= dict(trunk.named_parameters(prefix="trunk"))
        self.optimizer = Optimizer(parameters.items(), learn.model_copy(update={"lr": config.lr}))

    @property
    def modules(self) -> list[nn.Module]:
        """What learns."""
        return [self.head, self._reader.decoder] if self._own_trunk else [self.head]

    @torch.no_grad()
    def read(self, stretches: Sequence[Stretch]) -> Reading:
        """Values of every token of the stretches that the model wrote, and of the positions beyond them."""
        ranks, device = self._memory.ranks, self.head.inner.device
        samples = [_wanted(stretch) for stretch in stretches]
        micros = self._memory.pack(ranks.share(samples), device, self._dtype)
        ranks.level([micros], device, self._dtype)
        reading = Reading({s.trajectory.id: np.zeros(len(s.weight_N)) for s in samples}, 0, micros, {})

        def forget() -> None:
            reading.not_finite = 0
            reading.hidden.clear()

        self._memory.run(micros, partial(self._read, reading), forget)
        own = {sample.trajectory.id: reading.value_N[sample.trajectory.id] for m in micros for sample in m.samples}
        said = ranks.gather((own, reading.not_finite))
        for values, _ in said:
            reading.value_N.update(values)
        reading.not_finite = sum(not_finite for _, not_finite in said)
        return reading

    def _read(self, reading: Reading, micro: MicroBatch) -> None:
        value_R = self.head(self._hidden(reading, micro)).double().cpu().numpy()
        reading.not_finite += int((~np.isfinite(value_R)).sum())
        value_R = np.where(np.isfinite(value_R), value_R, 0.0)
        begin = 0
        for sample in micro.samples:
            rows = np.flatnonzero(sample.weight_N)
            reading.value_N[sample.trajectory.id][rows] = value_R[begin : begin + len(rows)]
            begin += len(rows)

    def learn(
        self, reading: Reading, returns: dict[str, np.ndarray], taught: dict[str, np.ndarray]
    ) -> dict[str, float]:
        """`epochs` optimizer steps towards `returns` at the tokens that `taught` marks, both by trajectory id."""
        tokens = sum(mask.sum() for mask in taught.values())
        losses, taken = [], 0
        for _ in range(self.config.epochs if tokens else 0):
            losses.append(self._sum_gradients(reading, returns, taught) / tokens)
            self.optimizer.divide(tokens)
            taken += self.optimizer.step()[1]
        skipped = len(losses) - taken
        return {"critic_skipped": skipped, **({"value_loss": losses[0]} if losses and np.isfinite(losses[0]) else {})}

    def _sum_gradients(self, reading: Reading, returns: dict[str, np.ndarray], taught: dict[str, np.ndarray]) -> float:
        """The sum of all tokens' losses; its gradient is with the optimizer. A mean's would vanish in fp16."""
        total = 0.0

        def add(micro: MicroBatch) -> None:
            nonlocal total
            old_R, return_R, taught_R = self._columns(micro, reading.value_N, returns, taught)
            value_R = self.head(self._hidden(reading, micro))
            loss = self._value_loss(value_R[taught_R], old_R[taught_R], return_R[taught_R])
            loss.backward()
            total += loss.item()

        def undo() -> None:
            nonlocal total
            total = 0.0
            reading.hidden.clear()
            self.optimizer.discard()

        self._memory.run(reading.micros, add, undo)
        return sum(self._memory.ranks.gather(total))

    def _hidden(self, reading: Reading, micro: MicroBatch) -> Tensor:
        if self._own_trunk:
            return self._reader.hidden(micro)
        if id(micro) not in reading.hidden:
            with torch.no_grad():
                reading.hidden[id(micro)] = self._reader.hidden(micro)
        return reading.hidden[id(micro)]

    def _value_loss(self, value_R: Tensor, old_R: Tensor, return_R: Tensor) -> Tensor:
        clipped_R = torch.clamp(value_R, old_R - self.config.clip, old_R + self.config.clip)
        return 0.5 * torch.maximum((value_R - return_R) ** 2, (clipped_R - return_R) ** 2).sum()

    def _columns(self, micro: MicroBatch, *by_id: dict[str, np.ndarray]) -> list[Tensor]:
        """Each of `by_id` in the order of the rows; rows beyond a trajectory's columns are not taught."""
        device, columns = self.head.inner.device, []
        for column in by_id:
            parts = [np.empty(0, next(iter(column.values())).dtype)]
            for sample in micro.samples:
                rows = np.flatnonzero(sample.weight_N)
                own = column[sample.trajectory.id]
                parts.append(np.append(own, [0])[np.minimum(rows, len(own))].astype(own.dtype))
            whole = torch.from_numpy(np.concatenate(parts)).to(device)
            columns.append(whole if whole.dtype == torch.bool else whole.to(self._dtype))
        return columns


def _wanted(stretch: Stretch) -> Sample:
    """A sample that has a row for every position whose value is asked for."""
    trajectory = stretch.trajectory
    if stretch.beyond and stretch.beyond[-1] == len(trajectory.tokens):
        trajectory = _with_one_more(trajectory)
    wanted_N = np.zeros(len(trajectory.tokens))
    wanted_N[stretch.begin : stretch.end] = trajectory.from_model[stretch.begin : stretch.end]
    wanted_N[list(stretch.beyond)] = 1.0
    return Sample(trajectory, np.zeros(len(wanted_N)), wanted_N)


def _with_one_more(trajectory: Trajectory) -> Trajectory:
    """Followed by a token that does not exist yet: the last token is what predicts it, and that has a value."""
    return replace(
        trajectory,
        tokens=[*trajectory.tokens, 0],
        policy_logprob=[],
        behaviour_logprob=[],
        version=[*trajectory.version, 0],
        mixed_kv=[],
        lossy=[],
        from_model=[*trajectory.from_model, True],
    )
