"""How a text begins or ends."""

from untail.observe.excerpt import LONGEST, beginning, ending


def test_a_short_text_is_whole():
    for text in ("", "short", "x" * LONGEST):
        assert beginning(text) == ending(text) == text


def test_of_a_long_one_the_begin_or_the_end():
    text = "a" + "b" * LONGEST + "c"
    assert (len(beginning(text)), beginning(text)[0], beginning(text)[-1]) == (LONGEST, "a", "…")
    assert (len(ending(text)), ending(text)[0], ending(text)[-1]) == (LONGEST, "…", "c")
