"""Drafts by the model itself with layers left out (7.4).

Where nobody verifies them (`verified = false`), a lone survivor's tokens carry the skipping model's own log-probs and
are marked lossy. The full model computes what it missed when it has to go on: another sequence came.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from untail.config import PositiveInt, Strict
from untail.draft.base import DRAFTERS, Drafter
from untail.engine.draft import NONE, Ask, Draft
from untail.engine.sequence import Sequence
from untail.errors import ConfigError

if TYPE_CHECKING:
    from untail.engine.runner import Runner


@DRAFTERS.register("layer_skip")
class LayerSkip(Drafter):
    class Config(Strict):
        layers: Annotated[float, Field(gt=0, lt=1)] = 0.5  # share of the layers that are kept
        keep: Literal["first", "spread"] = "first"  # the first of them, or as many over the whole depth
        verified: bool = True  # false: a lone survivor's tokens are the skipping model's own, and lossy
        after: PositiveInt = 2048  # tokens of a response before that may happen

    config: Config
    section = "7.4"

    @classmethod
    def is_lossy(cls, config: Config) -> bool:
        return not config.verified

    def attach(self, runner: "Runner") -> None:
        from untail.draft.skim import Skimmer  # here: a recipe is read without torch

        depth = runner.decoder.shape.layers
        count = max(1, round(depth * self.config.layers))
        if count >= depth:
            raise ConfigError(
                f"draft.drafters.layer_skip.layers = {self.config.layers} keeps all {depth} layers of this model; "
                "lower it, or leave the drafter out"
            )
        kept = range(count) if self.config.keep == "first" else [number * depth // count for number in range(count)]
        self._skimmer = Skimmer(runner, kept)

    def propose(self, asks: list[Ask]) -> list[Draft]:
        return self._skimmer.drafts(asks) if self.config.verified else [NONE] * len(asks)

    def unverified(self, sequence: Sequence) -> Draft | None:
        if self.config.verified or len(sequence.tokens) - sequence.prompt_length < self.config.after:
            return None
        return self._skimmer.next_token(sequence)
