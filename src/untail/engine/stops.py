"""Stop strings: where they end a turn, and where the turn began that they may end.

Invariant: nobody looks further back than the longest string may reach, and never into an earlier turn.
"""

from collections.abc import Callable

from untail.engine.sequence import Sequence

Decode = Callable[[list[int]], str]


class StopStrings:
    def __init__(self, decode: Decode | None):
        """`decode` turns token ids to text, special tokens included. Pre: without one no sequence has stop strings."""
        self._decode = decode

    def have_ended(self, sequence: Sequence) -> bool:
        """One stands at the end of the present turn."""
        return self._stands_behind(sequence, sequence.turn_begin)

    def begin_of_turn(self, sequence: Sequence) -> int:
        """One among the tokens already done has ended an earlier turn: the present one begins after it."""
        strings = sequence.spec.sampling.stop_strings
        if not strings:
            return sequence.prompt_length
        begin = max(sequence.prompt_length, len(sequence.tokens) - _window(strings))
        while self._stands_behind(sequence, begin):
            begin += 1
        return begin

    def _stands_behind(self, sequence: Sequence, begin: int) -> bool:
        strings = sequence.spec.sampling.stop_strings
        if not strings:
            return False
        assert self._decode is not None
        text = self._decode(sequence.tokens[max(begin, len(sequence.tokens) - _window(strings)) :])
        return any(string in text for string in strings)


def _window(strings: tuple[str, ...]) -> int:
    """A token is at least one byte and a character at most four, so this many tokens hold the longest string."""
    return 4 * max(map(len, strings)) + 4
