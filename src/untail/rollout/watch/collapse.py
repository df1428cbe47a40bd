"""Section 4, collapse: mean H over the last 128 tokens < 0.02 and, unless `require_repetition` is false, a share of
repeated 4-grams among them > 0.3. Low entropy alone may also be a correct calculation."""

import math

from untail.config import PositiveFloat, PositiveInt
from untail.errors import ConfigError
from untail.rollout.live import Member
from untail.rollout.points import MECHANISMS, View
from untail.rollout.watch.base import Share, Watcher
from untail.rollout.watch.repetition import repeats_ngrams


@MECHANISMS.register("collapse")
class Collapse(Watcher):
    reason = "collapse"
    needs_entropy = True

    class Config(Watcher.Config):
        window: PositiveInt = 128
        entropy: PositiveFloat = 0.02  # nats
        require_repetition: bool = True
        ngram: PositiveInt = 4
        share: Share = 0.3

    config: Config

    def check(self, group: int, budget: int) -> None:
        if self.config.require_repetition and self.config.ngram > self.config.window:
            raise ConfigError(
                f"mechanisms.collapse.ngram = {self.config.ngram} must not exceed mechanisms.collapse.window = "
                f"{self.config.window}; lower it"
            )

    def fires(self, member: Member, view: View) -> bool:
        config, trajectory = self.config, member.trajectory
        window = self.window(view)
        entropy = trajectory.of_model("entropy", window)
        if len(entropy) < window or math.fsum(entropy) >= config.entropy * window:
            return False
        last = trajectory.of_model("tokens", window)
        return not config.require_repetition or repeats_ngrams(last, config.ngram, config.share)
