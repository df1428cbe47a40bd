"""Section 4, structure, alone."""

import pytest
from tests.helpers.rollout import FakeView, make_group, write

from untail.config import parse
from untail.rollout.points import MECHANISMS


@pytest.mark.parametrize(
    ("partial", "fields", "fires"),
    [(None, {}, False), (0.0, {}, True), (0.1, {}, False), (0.1, {"hopeless": 0.2}, True), (1.0, {}, False)],
)
def test_it_fires_where_nothing_can_come_of_it(partial, fields, fires):
    cls = MECHANISMS.get("structure")
    watcher = cls(parse(cls.Config, fields, "mechanisms.structure"))
    member = write(make_group().members[0], [1, 2, 3])
    member.partial = partial
    verdict = watcher.look(member, FakeView())
    assert (verdict is not None and verdict.reason == "structure") == fires
    assert watcher.wants_partial
