"""Where the last few tokens of a stream stood before, in it or in another, and how it went on there.

Invariant: a place is entered with the token that follows it, so that whatever is found goes on and no stream finds its
own end. Streams grow in place: one entry per token, nothing is rebuilt or moved. What a stream has got since is entered
when somebody next looks something up: while nobody drafts, tokens cost nothing here.

The places with the same last `shortest` tokens form a chain, the newest first, which is walked over at most `WALK` of
them. Of those the longest match wins; among equals the one nearest to the same position of its response (text that
repeats is told apart by that), then the one that was entered first: past responses come before all others, the best
first.

Not compiled, because there is nothing to gain: 1 microsecond per token and 4 to 12 per lookup in plain Python
(benchmarks/suffix.py), against 87 per step with the compiled tree of arctic-inference, where a decode step takes
milliseconds.
"""

from array import array
from collections.abc import Sequence

WALK = 16


class SuffixIndex:
    def __init__(self, longest: int, shortest: int):
        """Matches have at least `shortest` tokens; more than `longest` make none better. Pre: shortest <= longest."""
        self.longest = longest
        self.shortest = shortest
        self._streams: list[Sequence[int]] = []
        self._origins: list[int] = []  # by stream: where its response begins
        self._entered: list[int] = []  # by stream: the places below are entered
        self._grown: dict[int, None] = {}  # streams with places to enter, in the order of their first news
        self._newest: dict[tuple[int, ...], int] = {}  # by the last `shortest` tokens before a place: its entry
        self._stream_of, self._place_of, self._older = array("i"), array("i"), array("i")  # by entry

    def __len__(self) -> int:
        """Of all places that were entered."""
        return len(self._older)

    def add(self, tokens: Sequence[int], origin: int, begin: int) -> int:
        """A stream whose response begins at `origin`; its places from `begin` on are entered. Its number. The very list
        is kept, for it may grow: see `grew`."""
        self._streams.append(tokens)
        self._origins.append(origin)
        self._entered.append(max(begin, self.shortest))
        number = len(self._streams) - 1
        self.grew(number)
        return number

    def grew(self, number: int) -> None:
        """The stream has got tokens."""
        self._grown[number] = None

    def catch_up(self) -> None:
        for number in self._grown:
            self._enter(number)
        self._grown.clear()

    def _enter(self, number: int) -> None:
        tokens, size, newest = self._streams[number], self.shortest, self._newest
        for place in range(self._entered[number], len(tokens)):
            key = tuple(tokens[place - size : place])
            self._older.append(newest.get(key, -1))
            newest[key] = len(self._stream_of)
            self._stream_of.append(number)
            self._place_of.append(place)
        self._entered[number] = max(self._entered[number], len(tokens))

    def knows(self, tokens: list[int]) -> bool:
        """Some stream begins with them."""
        return any(list(stream[: len(tokens)]) == tokens for stream in self._streams)

    def follow(self, number: int, most: int) -> list[int]:
        """What may come next in the stream, at most so many tokens."""
        self.catch_up()
        found = self._find(number)
        if found is None:
            return []
        stream, place = found
        tokens = list(self._streams[stream][place : place + most])
        if stream == number and len(tokens) < most:  # it repeats itself: it goes on from its end as it began there
            tokens = (tokens * -(-most // len(tokens)))[:most]
        return tokens

    def _find(self, number: int) -> tuple[int, int] | None:
        """The stream and the place at which the best match goes on."""
        tokens = self._streams[number]
        end = len(tokens)
        entry = self._newest.get(tuple(tokens[-self.shortest :]), -1)
        position = end - self._origins[number]
        best, best_length, best_shift = None, 0, 0
        for _ in range(WALK):
            if entry < 0:
                break
            stream, place = self._stream_of[entry], self._place_of[entry]
            other, length = self._streams[stream], self.shortest
            limit = min(self.longest, place, end)
            while length < limit and other[place - length - 1] == tokens[end - length - 1]:
                length += 1
            if length >= best_length:
                shift = abs(place - self._origins[stream] - position)
                if length > best_length or shift <= best_shift:
                    best, best_length, best_shift = (stream, place), length, shift
            entry = self._older[entry]
        return best
