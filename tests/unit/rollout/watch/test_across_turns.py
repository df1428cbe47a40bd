"""Watchers look at what the model wrote, in whichever turn, and never at a reply."""

import pytest
from tests.helpers.rollout import FakeView, make_group, write

from untail.rollout.points import MECHANISMS
from untail.rollout.watch import babble, collapse, loop, recital  # noqa: F401  (they register)

LOOP = [1, 2, 3, 4] * 32  # of the model, in two turns
FIRES = {
    "loop": ({"window": 128, "period": 16}, {}),
    "collapse": ({"window": 128}, {"entropy": 0.001}),
    "recital": ({"window": 128}, {"logprob": -0.001}),
    "babble": ({"window": 128}, {"entropy": 4.5}),
}


def member(tokens: list[int], reply: list[int], **figures):
    """Half of the tokens, a reply, and the other half."""
    made, half = make_group().members[0], len(tokens) // 2
    write(made, tokens[:half], **figures)
    made.trajectory.take_reply(reply, 0)
    return write(made, tokens[half:], **figures)


@pytest.mark.parametrize("name", FIRES)
def test_a_reply_neither_hides_nor_feeds_what_it_looks_for(name):
    fields, figures = FIRES[name]
    watcher = MECHANISMS.build({"name": name, **fields}, name)
    look = lambda tokens, reply, **f: watcher.look(member(tokens, reply, **f), FakeView())
    new = list(range(1000, 1128))
    assert look(LOOP, list(range(500, 540)), **figures) is not None
    assert look(LOOP[:-2], list(range(500, 540)), **figures) is None, "a reply is not in its window"
    assert look(new, [7] * 200) is None, "a reply that loops, and that nobody was unsure of"


def test_an_answer_marker_in_a_reply_is_not_the_model_s():
    watcher = MECHANISMS.build({"name": "recital", "window": 128, "marker_ids": [9, 9]}, "recital")
    assert watcher.look(member(LOOP, [9, 9], logprob=-0.001), FakeView()) is not None
    assert watcher.look(member([9, 9, *LOOP], [5], logprob=-0.001), FakeView()) is None
