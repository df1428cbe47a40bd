"""The learner: one batch of finished groups in, at once or in portions, one or more optimizer steps on the shared
weights.

Invariant: groups that teach nothing cost nothing; a gradient that is not finite moves nothing, and neither does a
minibatch whose tokens the policy has drifted too far from; all are counted. The parameters are those the engine samples
from, changed in place: the caller pauses the engine around `update` and bumps its weight version afterwards.

pi_prox is the policy at the start of `update`. The first minibatch needs no pass of its own for it, since it is the
policy that is being trained; later minibatches do.

Portions: gradients add up, and what a step's loss is divided by is a sum over its samples (`sample.normalise`). So
`learn` gathers the gradient of some groups before the others exist, and `update` gets the rest, divides and steps: as
if all had come at once, to rounding. What needs the whole batch before the first pass is refused (`needs_whole_batch`).
"""

import copy
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from untail.config import LearnConfig, RolloutConfig
from untail.engine.models.decoder import Decoder
from untail.engine.models.names import split_out
from untail.engine.models.product import at_least_float32
from untail.learn.logprob import rows_at_once
from untail.learn.loss import PolicyLoss
from untail.learn.memory import Memory, gauge_of
from untail.learn.optimizer import Optimizer
from untail.learn.pack import LossColumns, MicroBatch
from untail.learn.parts import part_of
from untail.learn.policy import Hear, Policy
from untail.learn.prune import dot_products, prune
from untail.learn.ranks import Ranks
from untail.learn.rules import rules_of
from untail.learn.sample import Sample, normalise, samples_of, teaches
from untail.learn.shelf import Shelf
from untail.learn.tally import Tally
from untail.learn.underway import Gathered, Minibatch, UnderWay
from untail.learn.values import Judged, Values
from untail.types import Batch

Outcome = Literal["taken", "skipped", "dropped"]
"""Of a minibatch: a step was taken; its gradient was not finite; its tokens had drifted too far."""


class Trainer:
    """`temperature` is the policy's (`policy_temperature`); `longest`, the longest response that is sampled. `hear`
    gets the hidden states of all that is trained on, once, from the pass that is made for the gradient anyway.

    With a `group` the decoder is sharded over its ranks, in place: every rank makes a trainer of the same weights and
    calls it with the same batches; losses, figures and weights are those of one alone, to rounding.

    With `kl` > 0 the reference is a copy of the decoder as it is now, so a resumed run makes its trainer from the start
    weights and then calls `load_state_dict`. Groups that teach nothing are left out of that KL too.
    """

    def __init__(
        self,
        decoder: Decoder,
        config: LearnConfig,
        temperature: float = 1.0,
        longest: int = RolloutConfig().max_tokens,
        hear: Hear | None = None,
        group: ProcessGroup | None = None,
    ):
        self.config = config
        self.hear = hear
        self.rules = rules_of(config, longest)
        self.ranks = Ranks(group)
        self.memory = Memory(config, gauge_of(decoder.embed.device), self.ranks)
        self._dtype = decoder.embed.dtype
        logit_rows = rows_at_once(config.logit_rows, decoder.output_weight)
        self.policy = Policy(decoder, temperature, logit_rows)
        self.reference: Policy | None = None
        if config.kl > 0:
            start = copy.deepcopy(decoder).requires_grad_(False)
            self.ranks.shard(start)
            self.reference = Policy(start, temperature, logit_rows)
        self.values: Values | None = None
        if self.rules.advantage.needs_values:
            self.values = Values(decoder, config, self.rules.advantage, self.memory)
        self.ranks.shard(decoder)
        self._optimizer = Optimizer(decoder.named_parameters(), config)
        # What a sharded reference holds of its weights stays with the machinery that gathers them.
        of_reference = [] if self.reference is None or group is not None else self.reference.decoder.parameters()
        of_critic = [] if self.values is None else self.values.critic.optimizer.own
        self._shelf = Shelf([*self._optimizer.own, *of_reference, *of_critic])
        low, high = self.rules.advantage.clip
        self._loss = PolicyLoss(self.rules.importance, config.clip_low or low, config.clip_high or high, config.kl)
        self._under_way: UnderWay | None = None  # what `learn` has begun

    def learn(self, portion: Batch) -> float:
        """Some groups of the step's batch, ahead of the others: their gradient is gathered, and nothing moves before
        `update`. Returns the seconds that it took. Pre: nothing needs the whole batch."""
        self.wake()
        self._under_way = under_way = self._begun(portion.step)
        before = sum(under_way.seconds.values())
        (minibatch,) = self._prepare(Judged(portion.groups, {}, {}), portion.version, under_way)
        with under_way.timed("update_s"):
            self._gather(minibatch, under_way.gathered[0], self.hear)
            if (device := self.policy.decoder.embed.device).type == "cuda":
                torch.cuda.synchronize(device)  # else these were the seconds that it takes to launch the passes
        return sum(under_way.seconds.values()) - before

    def update(self, batch: Batch) -> dict[str, float]:
        """Train on `batch`, and on what `learn` was given of this step before; returns this update's figures.
        `optimizer_steps` is 0 where no group taught anything."""
        self.wake()
        under_way, self._under_way = self._begun(batch.step), None
        with under_way.timed("logprob_s"):
            judged = Judged(batch.groups, {}, {}) if self.values is None else self.values.judge(batch)
        minibatches = self._prepare(judged, batch.version, under_way)
        tally = Tally()
        with under_way.timed("update_s"):
            pairs = list(zip(minibatches, under_way.gathered, strict=True))
            outcomes = Counter(self._step(m, gathered, tally) for m, gathered in pairs if m.micros or gathered.micros)
        micros = under_way.micros
        counts = self.ranks.gather((sum(len(m.columns.target_R) for m in micros), sum(m.tokens for m in micros)))
        return (
            tally.figures()
            | judged.figures
            | {
                "zero_variance_groups": under_way.counts["zero_variance_groups"],
                "loss_tokens": sum(in_loss for in_loss, _ in counts),
                "computed_tokens": sum(computed for _, computed in counts),
                "masked_tokens": under_way.counts["masked_tokens"],
                "optimizer_steps": outcomes["taken"],
                "skipped_updates": outcomes["skipped"],
                "dropped_minibatches": outcomes["dropped"],
                **under_way.seconds,
            }
        )

    @property
    def bytes(self) -> int:
        """What it holds on its device while it learns; activations come and go."""
        optimizers = [self._optimizer] + ([] if self.values is None else [self.values.critic.optimizer])
        of_reference = [] if self.reference is None else self.reference.decoder.parameters()
        return sum(optimizer.bytes for optimizer in optimizers) + sum(part_of(own).nbytes for own in of_reference)

    @property
    def memory_wanted(self) -> int:
        """Bytes of its device that the next update would like to have free."""
        return self.memory.wanted + (self._shelf.bytes if self._shelf.holds else 0)

    def sleep(self) -> None:
        """Put what only an update needs away in host memory; the next update takes it back."""
        self._shelf.put_away()

    def wake(self) -> None:
        self._shelf.take_back()

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights and optimizer state as flat tensors (not copied: write them before the next update), and numbers."""
        tensors, numbers = self._optimizer.tensors(), {"optimizer_steps": self._optimizer.steps}
        if self.values is None:
            return tensors, numbers
        return tensors | self.values.tensors(), numbers | {"critic": self.values.numbers()}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face's names and whole tensors in the precision that is computed in; of a sharded learner every rank
        has to take all of them, and what is taken may be gone when the next one comes."""
        decoder = self.policy.decoder
        if not decoder.is_sharded:
            return split_out(decoder)
        from untail.learn.sharded import full_weights

        return full_weights(decoder, self._dtype)

    def load_state_dict(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Continue from `state_dict`, in place: the engine's weights change too."""
        self._under_way = None  # it was of other weights
        self._optimizer.load(tensors, numbers["optimizer_steps"])
        self.ranks.refresh(self.policy.decoder)
        if self.values is not None:
            self.values.load(tensors, numbers["critic"])
            for module in self.values.critic.modules:
                self.ranks.refresh(module)

    def _begun(self, step: int) -> UnderWay:
        """The update of this step as far as it has come; what was begun for another is forgotten."""
        if self._under_way is not None and self._under_way.step == step:
            return self._under_way
        self._optimizer.discard()
        return UnderWay(step, self.config.updates)

    def _prepare(self, judged: Judged, version: int, under_way: UnderWay) -> list[Minibatch]:
        """The minibatches of these groups, with all log-probs that their passes need."""
        with under_way.timed("logprob_s"):
            groups = [samples_of(group, self.rules, judged.estimates) for group in judged.groups]
            self._over_batch([sample for group in groups for sample in group])
            under_way.counts["zero_variance_groups"] += sum(not teaches(group) for group in groups)
            under_way.counts["masked_tokens"] += sum(map(_masked_tokens, groups))
            minibatches = self._minibatches(groups, version)
            self._fill_logprobs(minibatches)
        return minibatches

    def _over_batch(self, samples: list[Sample]) -> None:
        in_loss = [sample.weight_N != 0 for sample in samples]
        advantages = self.rules.advantage.over_batch([sample.advantage_N for sample in samples], in_loss)
        for sample, advantage_N in zip(samples, advantages, strict=True):
            sample.advantage_N = advantage_N

    def _minibatches(self, groups: list[list[Sample]], version: int) -> list[Minibatch]:
        """Groups dealt out to `updates` minibatches, those that teach first, so that each gets its share of them."""
        dealt = sorted(groups, key=lambda group: not teaches(group))
        loss = self.config.loss or self.rules.advantage.loss
        weight = self.policy.decoder.output_weight
        dtype = at_least_float32(weight.dtype)
        minibatches = []
        for number in range(self.config.updates):
            hand = dealt[number :: self.config.updates]
            divisor = normalise([sample for group in hand for sample in group], loss, self.config.loss_length)
            samples = [sample for group in hand if teaches(group) for sample in group]
            if self.config.prune is not None:
                prune(samples, self.config.prune)
            micros = self.memory.pack(self.ranks.share(samples), weight.device, dtype, version)
            minibatches.append(Minibatch(micros, divisor))
        self.ranks.level([minibatch.micros for minibatch in minibatches], weight.device, dtype)
        return minibatches

    def _fill_logprobs(self, minibatches: list[Minibatch]) -> None:
        """Before the first step: the reference's log-probs, and pi_prox's of all minibatches but the first."""

        def fill(micro: MicroBatch, is_first: bool) -> None:
            if not is_first:
                micro.columns.prox_R = self.policy.logprobs(micro)
            if self.reference is not None:
                micro.columns.reference_R = self.reference.logprobs(micro)

        for number, minibatch in enumerate(minibatches):
            self.memory.run(minibatch.micros, partial(fill, is_first=number == 0), undo=lambda: None)

    def _step(self, minibatch: Minibatch, gathered: Gathered, tally: Tally) -> Outcome:
        """One optimizer step on the sum of all passes' losses, unless they say that it must not be taken."""
        self._look_at_constants(minibatch, tally)
        self._gather(minibatch, gathered, self.hear)
        loss, own = self.ranks.sum(gathered.loss), self.ranks.join(gathered.tally)
        tally.take(own)
        # exp(mean |log(pi_prox / mu)|) > max_drift; not so where a backend told no log-probs, and the mean is NaN.
        if own.mean_of("drift_mean") > math.log(self.config.max_drift):
            self._optimizer.discard()
            return "dropped"
        lr = self._optimizer.lr
        self._optimizer.divide(gathered.divisor)
        norm, taken = self._optimizer.step()
        tally.mean(loss=loss, grad_norm=norm, lr=torch.tensor(lr, dtype=torch.float64))
        return "taken" if taken else "skipped"

    def _gather(self, minibatch: Minibatch, into: Gathered, hear: Hear | None = None) -> None:
        """Its passes are made, and what they give is added. Each sequence is heard once, whatever has to be computed
        again; where memory runs out, that is all that was gathered."""

        def tell(micro: MicroBatch, hidden_TD: Tensor) -> None:
            names = {sample.trajectory.id for sample in micro.samples}
            if hear is not None and not names <= into.heard:
                into.heard.update(names)
                hear(micro, hidden_TD)

        def add(micro: MicroBatch) -> None:
            loss = self.policy.loss(micro, partial(self._loss_of_rows, micro.columns, into.tally), tell)
            loss.backward()
            into.losses.append(loss.detach())

        def undo() -> None:
            self._optimizer.discard()
            minibatch.micros[:0] = into.take_back()

        self.memory.run(minibatch.micros, add, undo, measure=True)
        into.micros += minibatch.micros
        into.divisor += minibatch.divisor

    def _look_at_constants(self, minibatch: Minibatch, tally: Tally) -> None:
        """Now and then: how far the gradient with constants is off the exact one."""
        config = self.config.prune
        if config is None or not config.cosine_every or self._optimizer.steps % config.cosine_every:
            return
        if any(self.ranks.gather(any(micro.live < micro.tokens for micro in minibatch.micros))):
            exact = Minibatch([replace(micro, live=micro.tokens) for micro in minibatch.micros])
            dots = self.ranks.sum(dot_products(self._gradients(exact), self._gradients(minibatch)))
            tally.mean(prune_cosine=dots[0] / (dots[1] * dots[2]).sqrt())

    def _gradients(self, minibatch: Minibatch) -> list[Tensor]:
        """Of all parameters, what of them this rank holds; the optimizer is left without."""
        self._gather(minibatch, Gathered())
        gradients = self._optimizer.gradients
        self._optimizer.discard()
        return gradients

    def _loss_of_rows(
        self, columns: LossColumns, tally: Tally, rows: slice, logprob: Tensor, entropy: Tensor
    ) -> Tensor:
        return self._loss(logprob, entropy, columns.rows(rows), tally)


def _masked_tokens(samples: list[Sample]) -> int:
    """Tokens that the model wrote and that weigh nothing."""
    return sum(sample.written - int(np.count_nonzero(sample.weight_N)) for sample in samples)
