"""Drafters that learn, in a learner's process: trained while it waits for rollouts.

Invariant: nothing is trained while the learner is at work (`at_rest`) or off its device, nor while the engine on that
device has many slots busy. Of several ranks the first trains, from the hidden states of its own share of the batch;
where weights are spread over ranks it has the target's embedding and head whole.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor

from untail.config import Recipe
from untail.draft.adaptive.target import Ends
from untail.draft.training import DraftTraining
from untail.engine.models.decoder import Decoder
from untail.flow.build import build_draft_training
from untail.flow.far_drafters import name_of, that_learn
from untail.flow.link import Link
from untail.flow.weights import Tensors, publish
from untail.learn.policy import Hear


class BesideLearner:
    def __init__(self, recipe: Recipe, decoder: Decoder, rank: int, world: int):
        """Pre: the decoder is still whole."""
        trains = rank == 0 and bool(that_learn(recipe))
        self._ends = Ends(decoder) if trains and world > 1 else None
        self.training = build_draft_training(recipe, self._ends or decoder) if trains else DraftTraining()
        self._is_on = True
        self.training.start()
        self.training.begin_rollout()

    @property
    def hear(self) -> Hear | None:
        return self.training.hear_pass if self.training else None

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """The learner is at work: it changes weights, or needs its device."""
        self.training.end_rollout()
        try:
            yield
        finally:
            if self._is_on:
                self.training.begin_rollout()

    def onload(self) -> None:
        self._is_on = True

    def offload(self) -> None:
        """Others need the device's memory. Post: nothing is being trained."""
        self._is_on = False
        self.training.end_rollout()

    def target_is(self, weights: Mapping[str, Tensor]) -> None:
        """Whole, where this rank has them."""
        if self._ends is not None:
            self._ends.update(weights)

    def publish(self, link: Link, version: int) -> list[str]:
        """What was learned since the last time, for engines to fetch; of which drafters."""
        learned = self.training.fresh()
        if learned:
            publish(link, version, {name_of(drafter): Tensors(own) for drafter, own in learned.items()})
        return list(learned)
