"""Drafts from a sequence's own text, and how long they become."""

import pytest

from untail.config import parse
from untail.draft.base import DRAFTERS
from untail.draft.ngram import NgramDrafter
from untail.engine.draft import Ask
from untail.engine.sequence import Sequence
from untail.errors import ConfigError
from untail.types import SequenceSpec


def drafter(**fields) -> NgramDrafter:
    return NgramDrafter(NgramDrafter.Config(**fields))


def begun(ngram: NgramDrafter, tokens: list[int], name: str = "x") -> Sequence:
    sequence = Sequence(SequenceSpec(name, tuple(tokens), 1000, 1))
    ngram.begin(sequence)
    return sequence


def guess(ngram: NgramDrafter, sequence: Sequence, most: int = 100) -> list[int]:
    return ngram.propose([Ask(sequence, most)])[0].tokens


def wrote(ngram: NgramDrafter, sequence: Sequence, tokens: list[int], drafted: int = 0, accepted: int = 0) -> None:
    sequence.tokens += tokens
    ngram.hear(sequence, tokens, drafted, accepted)


def test_it_is_found_by_its_name():
    assert isinstance(DRAFTERS.build({"name": "ngram", "cap": 8}, "draft"), NgramDrafter)


def test_it_drafts_from_the_prompt_and_from_the_response():
    ngram = drafter()
    sequence = begun(ngram, [1, 2, 3, 4, 5, 6, 9, 9])
    assert guess(ngram, sequence) == []
    wrote(ngram, sequence, [1, 2, 3])
    assert guess(ngram, sequence) == [4, 5]
    wrote(ngram, sequence, [7, 8, 0, 2, 3, 7])
    assert guess(ngram, sequence) == [8, 0]


def test_sequences_do_not_see_each_other():
    ngram = drafter()
    begun(ngram, [1, 2, 3, 4, 5], "x")
    other = begun(ngram, [1, 2, 3], "y")
    assert guess(ngram, other) == []


def test_one_draft_for_each_that_asks_in_their_order():
    ngram = drafter()
    asks = [Ask(begun(ngram, [token] * 4, str(token)), 2) for token in (6, 7, 8)]
    assert [draft.tokens for draft in ngram.propose(asks)] == [[6, 6], [7, 7], [8, 8]]


def test_a_draft_grows_when_accepted_whole_and_starts_again_when_rejected():
    ngram = drafter(start=2, grow=3, cap=9)
    sequence = begun(ngram, [1] * 5)
    lengths = []
    for accepted in (2, 5, 8, 9, 8, 2, 0):
        draft = guess(ngram, sequence)
        lengths.append(len(draft))
        wrote(ngram, sequence, [1] * (accepted + 1), len(draft), accepted)
    assert lengths == [2, 5, 8, 9, 9, 2, 5]
    assert len(guess(ngram, sequence)) == 2


def test_it_proposes_no_more_than_asked_for_and_a_short_draft_counts_as_whole():
    ngram = drafter()
    sequence = begun(ngram, [1] * 5)
    assert guess(ngram, sequence, most=1) == [1]
    wrote(ngram, sequence, [1, 1], drafted=1, accepted=1)
    assert len(guess(ngram, sequence)) == 4
    assert guess(ngram, sequence, most=0) == []


def test_steps_without_a_draft_of_its_own_leave_the_length():
    ngram = drafter()
    sequence = begun(ngram, [1] * 5)
    wrote(ngram, sequence, [1, 1, 1], drafted=2, accepted=2)
    wrote(ngram, sequence, [8, 9, 1, 1, 1], drafted=0, accepted=0)
    assert len(guess(ngram, sequence)) == 4


def test_an_environments_reply_is_drafted_from():
    ngram = drafter()
    sequence = begun(ngram, [5, 5])
    wrote(ngram, sequence, [6])
    sequence.tokens += [1, 2, 3, 4, 0, 1, 2, 3]
    assert guess(ngram, sequence) == [4, 0]


def test_nothing_is_kept_of_what_has_left_and_its_last_step_may_be_told_late():
    ngram = drafter()
    sequence = begun(ngram, [1] * 5)
    ngram.end(sequence)
    wrote(ngram, sequence, [1, 1, 1], drafted=2, accepted=2)
    assert not ngram._followed
    again = begun(ngram, [1] * 5)
    assert len(guess(ngram, again)) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shortest": 8}, "draft.ngram.shortest = 8 is not valid: it exceeds longest = 7; lower it"),
        ({"start": 9, "cap": 8}, "draft.ngram.start = 9 is not valid: it exceeds cap = 8; lower it"),
        ({"longest": 2}, "draft.ngram.shortest = 3 is not valid: it exceeds longest = 2; lower it"),
        ({"grow": 0}, "draft.ngram.grow = 0"),
        ({"shortst": 3}, "shortest"),
    ],
)
def test_bad_settings_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        parse(NgramDrafter.Config, fields, "draft.ngram")
