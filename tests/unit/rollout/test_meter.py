"""What the fullest engine's KV pool holds, asked of those alone that spoke."""

from types import SimpleNamespace

from untail.backends.base import Load
from untail.rollout.meter import Meter


def test_the_fullest_engine_as_engines_fill_and_empty():
    shares = [0.0, 0.0, 0.0]
    asked = []

    def engine(number: int) -> SimpleNamespace:
        def load() -> Load:
            asked.append(number)
            return Load(shares[number], busy_s=0.0, computed=0, sampled=0, recomputed=0, preemptions=0)

        return SimpleNamespace(load=load)

    meter = Meter([engine(number) for number in range(3)])
    meter.begin()
    asked.clear()
    for number, share, fullest in [
        (0, 0.5, 0.5),
        (1, 0.7, 0.7),
        (2, 0.6, 0.7),
        (1, 0.2, 0.6),
        (2, 0.6, 0.6),
        (2, 0.1, 0.5),
    ]:
        shares[number] = share
        assert meter.kv_used({number}) == fullest
    assert asked == [0, 1, 2, 1, 2, 2]
    assert meter.kv_used() == 0.5
    meter.begin()
    assert meter.kv_used() == 0.5
