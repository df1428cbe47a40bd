"""Drafts from what was answered before, and by whom: past responses, siblings, copies, whole segments."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from untail.draft.base import DRAFTERS
from untail.draft.history import HistoryDrafter
from untail.engine.draft import Ask
from untail.engine.sequence import Sequence
from untail.types import SequenceSpec

VOCAB = 100
PROMPT = (90, 91, 92, 93)


def drafter(**fields) -> HistoryDrafter:
    history = HistoryDrafter(HistoryDrafter.Config(**fields))
    history.attach(SimpleNamespace(decoder=SimpleNamespace(shape=SimpleNamespace(vocab=VOCAB))))
    return history


def begun(history: HistoryDrafter, name: str = "x", past=(), prompt=PROMPT, done=(), budget: int = 1000) -> Sequence:
    sequence = Sequence(SequenceSpec(name, (*prompt, *done), budget, 1, done=len(done), past=past))
    history.begin(sequence)
    return sequence


def forked(history: HistoryDrafter, parent: Sequence, name: str) -> Sequence:
    """As the engine does it."""
    child = Sequence(replace(parent.spec, id=name))
    child.tokens, child.budget = list(parent.tokens), parent.budget
    history.begin(child)
    return child


def guess(history: HistoryDrafter, sequence: Sequence, most: int = 100) -> list[int]:
    return history.propose([Ask(sequence, most)])[0].tokens


def wrote(history: HistoryDrafter, sequence: Sequence, tokens: list[int], drafted: int = 0, accepted: int = 0) -> None:
    sequence.tokens += tokens
    sequence.budget -= len(tokens)
    history.hear(sequence, tokens, drafted, accepted)


def size(history: HistoryDrafter) -> int:
    """Of the prompt's index."""
    index = history._prompts[PROMPT].index
    index.catch_up()
    return len(index)


def test_it_is_found_by_its_name_and_asks_for_the_past():
    built = DRAFTERS.build({"name": "history", "mode": "segment"}, "draft")
    assert isinstance(built, HistoryDrafter)
    assert built.wants_past


def test_a_response_follows_the_best_past_one_from_its_first_token_on():
    history = drafter(start=3)
    sequence = begun(history, past=((1, 2, 3, 4, 5), (6, 7, 8, 9)))
    assert guess(history, sequence) == [1, 2, 3]
    wrote(history, sequence, [6])
    assert guess(history, sequence) == [7, 8, 9]


def test_a_sibling_is_followed_while_it_runs_and_when_it_is_done():
    history = drafter(start=4)
    ahead, behind = begun(history, "ahead"), begun(history, "behind")
    assert guess(history, behind) == []
    wrote(history, ahead, [1, 2, 3])
    assert guess(history, behind) == [1, 2, 3]
    ahead.tokens += [4, 5]
    history.end(ahead)
    wrote(history, behind, [2, 3, 4])
    assert guess(history, behind) == [5]


def test_siblings_are_of_one_prompt():
    history = drafter()
    wrote(history, begun(history, "x"), [1, 2, 3, 4, 5])
    stranger = begun(history, "y", prompt=(*PROMPT, 94))
    wrote(history, stranger, [1, 2, 3])
    assert guess(history, stranger) == []


def test_it_repeats_itself_and_its_prompt():
    history = drafter()
    sequence = begun(history)
    wrote(history, sequence, [90, 91, 92])
    assert guess(history, sequence) == [93, 90]
    wrote(history, sequence, [5, 6, 7, 8, 5, 6, 7])
    assert guess(history, sequence) == [8, 5]


def test_tokens_that_came_from_elsewhere_are_in_it():
    history = drafter()
    begun(history, "moved", done=(1, 2, 3, 4, 5))
    sibling = begun(history, "sibling")
    wrote(history, sibling, [2, 3, 4])
    assert guess(history, sibling) == [5]


def test_past_and_prompt_are_entered_once_for_all_siblings():
    history = drafter()
    begun(history, "x", past=((1, 2, 3, 4, 5),))
    once = size(history)
    begun(history, "y", past=((1, 2, 3, 4, 5),))
    assert size(history) == once == 1 + 5  # of the prompt its last token alone has three before it


def test_a_copy_brings_nothing_until_it_goes_on_its_own_way():
    history = drafter(start=3)
    parent = begun(history, "parent")
    wrote(history, parent, [1, 2, 3, 4, 5])
    before = size(history)
    child = forked(history, parent, "child")
    assert size(history) == before
    assert guess(history, child) == []
    wrote(history, child, [10, 11, 12])
    wrote(history, parent, [20, 21])
    assert size(history) == before + 5
    third = begun(history, "third", done=(1, 2, 3, 4, 5))
    assert size(history) == before + 5
    wrote(history, third, [10])
    assert guess(history, third) == [11, 12]
    other = begun(history, "other", done=(1, 2, 3, 4, 5))
    wrote(history, other, [20])
    assert guess(history, other) == [21]


def test_a_copy_outlives_its_parent():
    history = drafter()
    parent = begun(history, "parent")
    wrote(history, parent, [1, 2, 3, 4, 5])
    child = forked(history, parent, "child")
    history.end(parent)
    wrote(history, child, [0, 1, 2, 3])
    assert guess(history, child) == [4, 5]


def test_lengths_are_each_sequences_own_and_wait_while_nothing_matches():
    history = drafter()
    past = (tuple(range(1, 41)),)
    fast, slow = begun(history, "fast", past), begun(history, "slow", past)
    wrote(history, fast, [1, 2, 3], drafted=2, accepted=2)
    wrote(history, slow, [1, 2], drafted=2, accepted=1)
    assert guess(history, fast) == [4, 5, 6, 7]
    assert guess(history, slow) == [3, 4]
    wrote(history, fast, [77])
    assert guess(history, fast) == []
    wrote(history, fast, [3, 4, 5])
    assert guess(history, fast) == [6, 7, 8, 9]
    assert guess(history, fast, most=1) == [6]


def test_the_cap_holds():
    history = drafter(cap=5)
    sequence = begun(history, past=(tuple(range(1, 41)),))
    for begin in (1, 4, 9):
        length = min(2 * (begin // 4) + 2, 5)
        wrote(history, sequence, list(range(begin, begin + length + 1)), drafted=length, accepted=length)
    assert len(guess(history, sequence)) == 5


@pytest.mark.parametrize("mode", ["token", "segment"])
@pytest.mark.parametrize("bad", [VOCAB, -1, 2**32 - 1])
def test_what_is_no_token_is_never_proposed(mode, bad):
    history = drafter(mode=mode, start=9)
    sequence = begun(history, past=((1, 2, 3, bad, 5, 6, 7, 8), (bad, 1, 2)))
    assert guess(history, sequence) == [1, 2, 3]
    wrote(history, sequence, [5, 6, 7])
    assert guess(history, sequence) == []


@pytest.mark.parametrize("mode", ["token", "segment"])
def test_a_past_that_holds_nothing_is_no_past(mode):
    for past in ((), ((),), ((VOCAB,),)):
        history = drafter(mode=mode)
        assert guess(history, begun(history, past=past)) == []


def test_the_index_of_a_prompt_goes_with_its_last_sequence():
    history = drafter()
    parent = begun(history, "parent", past=((1, 2, 3),))
    wrote(history, parent, [1, 2])
    child, other = forked(history, parent, "child"), begun(history, "other", prompt=(1, 2))
    history.end(parent)
    assert set(history._prompts) == {PROMPT, (1, 2)}
    history.end(child)
    wrote(history, child, [3], drafted=1, accepted=0)  # told late
    assert set(history._prompts) == {(1, 2)}
    history.end(other)
    assert not history._prompts
    assert not history._followed
    assert not history._bests
    assert guess(history, begun(history, "parent", past=((7, 8),))) == [7, 8]


PAST = tuple(range(1, 61))


def test_a_segment_is_proposed_as_a_whole_past_the_cap():
    history = drafter(mode="segment", cap=4)
    sequence = begun(history, past=(PAST,), budget=50)
    assert guess(history, sequence, most=49) == list(range(1, 50))
    wrote(history, sequence, [1, 2, 3], drafted=2, accepted=2)
    assert guess(history, sequence, most=8) == list(range(4, 12))


def test_after_a_rejection_the_rest_of_the_segment_has_the_usual_drafts():
    history = drafter(mode="segment")
    sequence = begun(history, past=(PAST,), budget=20)
    wrote(history, sequence, [1, 2, 3, 77], drafted=19, accepted=3)
    assert guess(history, sequence, most=15) == []
    wrote(history, sequence, [5, 6, 7, 8, 9, 10, 11])
    assert guess(history, sequence, most=8) == [12, 13]
    wrote(history, sequence, list(range(12, 21)), drafted=2, accepted=2)
    assert sequence.budget == 0
    sequence.budget += 20  # extended
    assert guess(history, sequence, most=19) == list(range(21, 40))


def test_a_new_segment_is_noticed_also_when_another_drafted_its_first_tokens():
    """The budget went from 10 to 5, with an environment's reply to 6, and to 4 since."""
    history = drafter(mode="segment")
    sequence = begun(history, past=(PAST,), budget=10)
    wrote(history, sequence, [77, 2, 3, 4, 5], drafted=9, accepted=0)
    assert guess(history, sequence, most=4) == [6, 7]
    sequence.tokens += [6, 7, 8]
    sequence.budget = 6
    wrote(history, sequence, [9, 10])
    assert guess(history, sequence, most=3) == [11, 12, 13]


def test_a_segment_that_stands_elsewhere_than_the_past_has_the_usual_drafts():
    """At the segment's start the last tokens must be those of the past response, in the same position."""
    history = drafter(mode="segment")
    sequence = begun(history, past=(PAST,), budget=30)
    wrote(history, sequence, list(range(21, 31)))
    assert guess(history, sequence, most=19) == [31, 32]


def test_only_the_last_tokens_must_agree():
    history = drafter(mode="segment", longest=4)
    sequence = begun(history, past=(PAST,), budget=30)
    wrote(history, sequence, [77, 2, 3, 4])
    assert guess(history, sequence, most=3) == [5, 6]  # of three that match: the usual draft
    wrote(history, sequence, [5])
    assert guess(history, sequence, most=3) == [6, 7, 8]


def test_where_the_past_ends_the_usual_drafts_go_on():
    history = drafter(mode="segment")
    sequence = begun(history, past=((1, 2, 3, 4), (1, 2, 3, 4, 5, 6)), budget=30)
    wrote(history, sequence, [1, 2, 3, 4])
    assert guess(history, sequence) == [5, 6]
    wrote(history, sequence, [5, 6, 7])
    assert guess(history, sequence) == []


def test_in_token_mode_a_new_segment_changes_nothing():
    history = drafter()
    sequence = begun(history, past=(PAST,), budget=3)
    wrote(history, sequence, [1, 2, 3])
    sequence.budget += 30
    assert guess(history, sequence, most=29) == [4, 5]
