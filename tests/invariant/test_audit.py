"""The audit against the truth: what it says about a watcher is right on average, and a bad watcher goes by it.

The truth is the law's: every response that the watcher stops would have been rewarded with probability q.
"""

from dataclasses import dataclass
from statistics import fmean

import pytest

from tests.helpers.steps import Steps, assert_close, simulate_steps, small_recipe
from untail.backends.laws import ENTROPY, Draw, LogNormal
from untail.rollout.points import Mechanism, Verdict, Watch
from untail.types import Prompt, stream_key

REASON = "suspect"


@dataclass(frozen=True)
class Judged(LogNormal):
    """What is rewarded is three times as long: an audit that lost the long ones would be found out."""

    q: float = 0.3

    def draw(self, prompt: Prompt, stream: int) -> Draw:
        rewarded = self._uniform(prompt, "reward", stream) < self.q
        short = 20 + int(20 * self._uniform(prompt, "length", stream))
        return Draw(3 * short if rewarded else short, float(rewarded), ENTROPY)


class Suspects(Mechanism, Watch):
    """Stops a third of all, whatever they write, up to step `until`: what it began to audit then comes to its end."""

    def __init__(self, until: int):
        super().__init__(None)
        self.until = until

    def look(self, member, view):
        suspected = stream_key(5, member.id) % 3 == 0 and member.group.step <= self.until
        return Verdict("stop", REASON) if suspected else None


def run(name: str, q: float, seed: int, steps: int = 10, **rollout) -> Steps:
    recipe = small_recipe(name, **{"audit": 0.5, "max_false_kills": 1.0, **rollout})
    return simulate_steps(recipe, Judged(seed, q=q), steps + 4, [Suspects(steps)], seed=seed)


@pytest.mark.parametrize(("name", "q"), [("grpo", 0.05), ("es-grpo", 0.3)])
def test_the_false_kill_rate_is_unbiased(name, q):
    rates, audited, stopped = [], 0, 0
    for seed in range(12):
        figures = run(name, q, seed).fates.false_kills()[REASON]
        rates.append(figures["rate"])
        audited, stopped = audited + figures["audited"], stopped + figures["stopped"]
    assert_close(fmean(rates), q, (q * (1 - q) / audited) ** 0.5)
    assert_close(audited / stopped, 0.5, (0.25 / stopped) ** 0.5)


@pytest.mark.parametrize("seed", range(3))
def test_a_bad_watcher_is_switched_off(seed):
    taken = run("grpo", 0.5, seed, steps=20, max_false_kills=0.1)
    events = [event for step in taken.events for event in step]
    (off,) = (number for number, event in enumerate(events) if event["e"] == "off")
    assert events[off]["reason"] == REASON
    stops = [number for number, event in enumerate(events) if event["e"] == "stop"]
    assert len(stops) > 0
    assert max(stops) < off, "it stops although it is switched off"
    figures = {"audited": 0, "false_kills": 0}
    for event in events[:off]:
        if event["e"] == "audit":
            figures["audited"] += 1
            figures["false_kills"] += event["reward"] > 0
    assert {name: events[off][name] for name in figures} == figures
    assert len(taken.all("score")) > 0


@pytest.mark.parametrize("seed", range(3))
def test_a_good_watcher_stays_on(seed):
    taken = run("grpo", 0.02, seed, steps=20, max_false_kills=0.1)
    assert not taken.all("off")
    assert {event["step"] for event in taken.all("stop")} == set(range(1, 21))


@pytest.mark.parametrize("name", ["grpo", "dapo", "hadb"])
def test_what_is_audited_is_trained_as_if_it_had_been_stopped(name):
    """With every stopped trajectory audited, the updates are those of a run without any audit."""
    with_audit, without = (run(name, 0.3, 0, audit=share) for share in (1.0, 0.0))
    assert len(with_audit.all("audit")) == len(with_audit.all("stop")) > 0
    assert not without.all("audit")
    trained = lambda taken: [(step, t.id, t.tokens, t.reward, t.stopped, t.masked) for step, t in taken.trained]
    assert trained(with_audit) == trained(without)
    stopped_at = {event["id"]: event["tokens"] for event in with_audit.all("stop")}
    audits = {event["id"]: event for event in with_audit.all("audit")}
    for _, t in with_audit.trained:
        assert t.stopped == (REASON if t.id in stopped_at else None)
        if t.stopped:
            assert (len(t.tokens), t.reward) == (stopped_at[t.id], -1.0)
            assert audits[t.id]["tokens"] - audits[t.id]["extra"] == len(t.tokens)
            assert audits[t.id]["extra"] > 0
