"""Section 4, loop: it says the same over and over.

Within the last 256 tokens: an exact cycle of period <= 64 that stands >= 4 times at the end, or a share of repeated
4-grams > 0.6. The repetitions must together be 64 tokens long: four zeros in a row are a number, not a loop.
"""

from untail.config import PositiveInt
from untail.errors import ConfigError
from untail.rollout.live import Member
from untail.rollout.points import MECHANISMS, View
from untail.rollout.watch.base import Share, Watcher
from untail.rollout.watch.repetition import cycle_repeats, repeats_ngrams


@MECHANISMS.register("loop")
class Loop(Watcher):
    reason = "loop"

    class Config(Watcher.Config):
        window: PositiveInt = 256
        period: PositiveInt = 64
        repeats: PositiveInt = 4
        cycle_tokens: PositiveInt = 64  # of all repetitions together
        ngram: PositiveInt = 4
        share: Share = 0.6

    config: Config

    def check(self, group: int, budget: int) -> None:
        config = self.config
        needed = max(config.period * config.repeats, config.cycle_tokens, config.ngram)
        if needed > config.window:
            raise ConfigError(
                f"mechanisms.loop.window = {config.window} is too short for what it must hold (period x repeats, "
                f"cycle_tokens, ngram); set it to at least {needed}"
            )

    def fires(self, member: Member, view: View) -> bool:
        config = self.config
        window = self.window(view)
        last = member.trajectory.of_model("tokens", window)
        if len(last) < window:
            return False
        return cycle_repeats(last, config.period, config.cycle_tokens) >= config.repeats or repeats_ngrams(
            last, config.ngram, config.share
        )
