"""What the index finds is what a search through all the text would find."""

from random import Random

from untail.draft.suffix import WALK, SuffixIndex

Entry = tuple[int, int]  # stream, place


class Searched:
    """The same as the index, worked out anew for every question."""

    def __init__(self, longest: int, shortest: int):
        self.longest, self.shortest = longest, shortest
        self.streams: list[list[int]] = []
        self.origins: list[int] = []
        self.entries: list[Entry] = []
        self.to_enter: dict[int, list[Entry]] = {}  # until the next question

    def add(self, origin: int) -> None:
        self.to_enter[len(self.streams)] = []
        self.streams.append([])
        self.origins.append(origin)

    def grow(self, number: int, token: int) -> None:
        tokens = self.streams[number]
        self.to_enter.setdefault(number, [])
        if len(tokens) >= self.shortest:
            self.to_enter[number].append((number, len(tokens)))
        tokens.append(token)

    def matched(self, entry: Entry, tokens: list[int]) -> int:
        stream, place = entry
        before = self.streams[stream][:place]
        lengths = range(1, min(self.longest, len(before), len(tokens)) + 1)
        return max((length for length in lengths if before[-length:] == tokens[-length:]), default=0)

    def shift(self, entry: Entry, number: int) -> int:
        stream, place = entry
        return abs(place - self.origins[stream] - (len(self.streams[number]) - self.origins[number]))

    def follow(self, number: int, most: int) -> list[int]:
        self.entries += [entry for entries in self.to_enter.values() for entry in entries]
        self.to_enter.clear()
        tokens = self.streams[number]
        fitting = [entry for entry in self.entries if self.matched(entry, tokens) >= self.shortest][-WALK:]
        if not fitting:
            return []
        rank = lambda entry: (self.matched(entry, tokens), -self.shift(entry, number))
        stream, place = max(fitting, key=rank)  # of equals the first
        text = list(self.streams[stream])
        if stream == number:
            while len(text) < place + most:
                text.append(text[place + len(text) - len(tokens)])
        return text[place : place + most]


def test_it_finds_what_a_search_finds_while_streams_grow():
    for seed in range(150):
        chance = Random(seed)
        shortest = chance.randint(1, 4)
        longest = shortest + chance.randint(0, 4)
        index, searched = SuffixIndex(longest, shortest), Searched(longest, shortest)
        for number in range(3):
            searched.add(chance.randint(0, 5))
            assert index.add(searched.streams[number], searched.origins[number], 0) == number
        for _ in range(chance.randint(0, 120)):
            number = chance.randrange(3)
            searched.grow(number, chance.randrange(2 + seed % 3))
            index.grew(number)
            if chance.random() < 0.1:
                asking = chance.randrange(3)
                assert index.follow(asking, 6) == searched.follow(asking, 6)
        assert [index.follow(number, 6) for number in range(3)] == [searched.follow(number, 6) for number in range(3)]
        assert len(index) == len(searched.entries)


def index_of(*texts: list[int], longest: int = 7, shortest: int = 3) -> SuffixIndex:
    index = SuffixIndex(longest, shortest)
    for text in texts:
        index.add(text, 0, 0)
    return index


def test_the_longest_match_wins_wherever_it_stands():
    long, short, asking = [1, 2, 3, 4, 5, 50], [7, 2, 3, 4, 5, 60], [9, 9, 1, 2, 3, 4, 5]
    assert index_of(long, short, asking).follow(2, 1) == [50]
    assert index_of(short, long, asking).follow(2, 1) == [50]


def test_it_backs_off_to_the_shortest_and_no_further():
    index = index_of([8, 3, 4, 5, 60, 61], [9, 3, 4, 5], [3, 9, 4, 5])
    assert index.follow(1, 2) == [60, 61]
    assert index.follow(2, 2) == []


def test_a_text_shorter_than_the_shortest_match_finds_nothing_and_is_not_found():
    index = index_of([1, 2], [], [0, 1, 2])
    assert [index.follow(number, 2) for number in range(3)] == [[], [], []]
    assert len(index) == 0


def test_tokens_before_the_longest_match_do_not_count():
    """Both match in the last 3; that one matches in 4 is not looked at, and the first is taken."""
    index = index_of([8, 1, 2, 3, 50], [9, 1, 2, 3, 60], [9, 1, 2, 3], longest=3)
    assert index.follow(2, 1) == [50]


def test_of_equal_matches_the_nearest_to_the_same_position_wins():
    refrain = [1, 2, 3, 50, 0, 0, 1, 2, 3, 60, 0, 0, 1, 2, 3, 70, 0, 0]
    assert index_of(refrain, [5, 5, 5, 5, 5, 5, 1, 2, 3], longest=3).follow(1, 1) == [60]
    assert index_of(refrain, [5, 5, 1, 2, 3], longest=3).follow(1, 1) == [50]


def test_positions_are_counted_from_where_the_response_begins():
    refrain = [1, 2, 3, 50, 0, 0, 1, 2, 3, 60, 0, 0]
    index = SuffixIndex(3, 3)
    index.add(refrain, 0, 0)
    asking = [9, 9, 9, 9, 9, 9, 1, 2, 3]
    assert index.follow(index.add(asking, 0, 0), 1) == [60]
    assert index.follow(index.add(asking, 6, 0), 1) == [50]


def test_of_equals_in_the_same_position_the_first_wins():
    assert index_of([1, 2, 3, 50], [1, 2, 3, 60], [1, 2, 3]).follow(2, 1) == [50]


def test_no_stream_finds_its_own_end():
    index = index_of([1, 2, 3, 4], [1, 2, 3, 4])
    assert index.follow(0, 4) == []
    assert index.follow(1, 4) == []


def test_what_repeats_itself_goes_on_as_it_began():
    index = index_of([5, 5, 5, 5], [0, 1, 2, 3, 1, 2, 3, 1, 2, 3])
    assert index.follow(0, 5) == [5] * 5
    assert index.follow(1, 7) == [1, 2, 3, 1, 2, 3, 1]


def test_what_another_wrote_ends_where_it_stands():
    index = index_of([1, 2, 3, 4, 5], [1, 2, 3])
    assert index.follow(1, 9) == [4, 5]
    assert index.follow(1, 1) == [4]


def test_a_stream_grows_in_place_and_each_place_is_entered_once():
    running = [1, 2, 3]
    index = index_of(running, [1, 2, 3])
    assert index.follow(1, 3) == []
    running += [4, 5]
    index.grew(0)
    index.grew(0)
    assert len(index) == 0, "nobody has looked anything up yet"
    assert index.follow(1, 3) == [4, 5]
    assert len(index) == 2


def test_what_stands_before_the_first_place_is_matched_but_not_found():
    index = SuffixIndex(7, 3)
    index.add([1, 2, 3, 4, 5, 6], 0, 5)
    assert index.follow(index.add([1, 2, 3], 0, 3), 2) == []
    assert index.follow(index.add([3, 4, 5], 0, 3), 2) == [6]


def test_it_knows_what_a_stream_begins_with():
    index = index_of([1, 2, 3, 4])
    assert index.knows([1, 2, 3])
    assert not index.knows([1, 2, 4])
    assert not index.knows([1, 2, 3, 4, 5])


def test_a_lookup_goes_over_the_newest_places_only():
    best = [0, 1, 2, 3, 50]
    for others, expected in ((WALK - 1, 50), (WALK, 60)):
        index = index_of(best, *([9, 1, 2, 3, 60] for _ in range(others)))
        assert index.follow(index.add([0, 1, 2, 3], 0, 0), 1) == [expected]
