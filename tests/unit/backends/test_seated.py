"""An engine that was replaced: what is counted goes on."""

from untail.backends.base import EngineLost, Load
from untail.backends.native import SeatedBackend


def load(sampled, drafted, failures=0) -> Load:
    counts = {"proposals": drafted, "drafted": drafted, "failures": failures}
    return Load(kv_used=0.5, busy_s=1.0, computed=9, sampled=sampled, recomputed=0, preemptions=0, drafts={"a": counts})


def test_counts_go_on_with_the_next_engine_and_those_of_nothing_stay():
    backend = SeatedBackend(seat=None, load=load(sampled=5, drafted=0))
    backend._broken = EngineLost("it is gone")
    backend.revive(load(sampled=0, drafted=0))
    assert backend.load().sampled == 5
    assert backend.load().drafts == {"a": {"proposals": 0, "drafted": 0, "failures": 0}}
    backend._broken = EngineLost("it is gone")
    backend._load = load(sampled=7, drafted=3, failures=1)
    backend.revive(load(sampled=2, drafted=4))
    assert backend.load().sampled == 9
    assert backend.load().drafts == {"a": {"proposals": 7, "drafted": 7, "failures": 1}}
