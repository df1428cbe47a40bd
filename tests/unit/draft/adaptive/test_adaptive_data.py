"""What the drafter learns from: captured whole, bounded, and drawn with a bias to the tail."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from tests.unit.draft.adaptive.helpers import captures_of

from untail.draft.adaptive.data import Capture, Captures


@dataclass
class Micro:
    """Two responses of 4 and 2 tokens to one prompt of 3, which is packed once; the last tokens are not inputs."""

    lengths: list[int]
    ids_T: torch.Tensor
    unrolled_U: torch.Tensor
    predictor_R: torch.Tensor


def two_siblings() -> Micro:
    prompt, long, short = [0, 1, 2], [3, 4, 5], [6]
    return Micro(
        [4, 6], torch.arange(10, 17), torch.tensor([*prompt, *short, *prompt, *long]), torch.tensor([2, 6, 2, 3, 4, 5])
    )


def made(length: int, name: int = 0) -> Capture:
    """Each token is its own position, each hidden state that and the name."""
    positions = torch.arange(length)
    return Capture(0, 0, positions, torch.stack((positions.float(), torch.full((length,), float(name))), 1))


def lengths(captures: Captures) -> list[int]:
    return sorted(len(capture.ids_N) for capture in (*captures._earlier, *captures._present))


def test_a_micro_batch_is_taken_apart_into_whole_sequences():
    data, hidden = Captures(100), torch.arange(7.0)[:, None]
    data.hear(two_siblings(), hidden)
    short, long = data._present
    assert short.ids_N.tolist() == [10, 11, 12, 16]
    assert long.ids_N.tolist() == [10, 11, 12, 13, 14, 15]
    assert long.hidden_ND[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert short.taught == long.taught == 2
    assert data.tokens == 10


def test_what_is_captured_does_not_hold_the_learners_tensors():
    data, hidden = Captures(100), torch.zeros(7, 1, requires_grad=True) * 2
    data.hear(two_siblings(), hidden)
    for capture in data._present:
        assert not capture.hidden_ND.requires_grad
        assert capture.hidden_ND.untyped_storage().nbytes() == capture.hidden_ND.nbytes


def test_sequences_with_constant_positions_are_left_out_and_counted():
    data = Captures(100)
    data.hear(two_siblings(), torch.zeros(6, 1))  # of the short response's token there is no hidden state
    assert lengths(data) == [6]
    assert data.left_out == 1


def test_a_response_beyond_the_bound_keeps_its_end():
    data = Captures(4)
    data.hear(two_siblings(), torch.arange(7.0)[:, None])
    (kept,) = data._present
    assert kept.ids_N.tolist() == [12, 13, 14, 15]
    assert kept.first == 2
    windows = data.draw(10, 0, np.random.default_rng(0))
    assert windows.positions_T[: windows.lengths[0]].tolist() == [2, 3, 4]


def test_never_more_than_the_bound_and_the_longest_stay():
    data = captures_of(bound=100)
    for length in (30, 20, 40, 35, 10):
        data._take([made(length)])
        assert data.tokens <= 100
    assert lengths(data) == [10, 35, 40]


def test_of_the_step_before_the_longest_are_kept_and_go_first():
    data = captures_of(*(made(length) for length in (10, 20, 30, 5)), bound=100)
    data.end_step()
    assert lengths(data) == [5, 10, 20, 30], "until the next step is heard"
    data._take([made(11)])
    assert lengths(data) == [11, 20, 30], "half of the bound"
    data._take([made(25), made(25)])
    assert lengths(data) == [11, 25, 25, 30]
    data.end_step()
    data._take([made(7)])
    assert lengths(data) == [7, 25, 25], "nothing is kept for a third step"


def test_rows_go_together():
    data = captures_of(made(50, 1), made(80, 2))
    windows = data.draw(300, 2, np.random.default_rng(0))
    assert sum(windows.lengths) == len(windows.positions_T) >= 290
    assert torch.equal(windows.next_ids_T, windows.positions_T + 1)
    assert torch.equal(windows.hidden_TD[:, 0], windows.positions_T.float())
    assert torch.equal(windows.wanted_TD[:, 0], windows.positions_T + 1.0)
    assert torch.equal(windows.hidden_TD[:, 1], windows.wanted_TD[:, 1])


def test_long_responses_are_drawn_in_proportion_to_their_length():
    data, seen = captures_of(made(11, 1), made(91, 9)), Counter()
    random = np.random.default_rng(0)
    for _ in range(500):
        seen[int(data.draw(5, 0, random).hidden_TD[0, 1])] += 1
    assert 0.85 < seen[9] / 500 < 0.95


def test_windows_are_no_longer_than_allowed_and_reach_every_row_of_the_response():
    data = captures_of(made(60)._replace(taught=30))
    data.window = 16
    random, rows = np.random.default_rng(0), Counter()
    for _ in range(200):
        windows = data.draw(40, 2, random)
        assert max(windows.lengths) <= 16
        assert all(part[2:].any() for part in windows.is_taught_T.split(windows.lengths))
        rows.update(windows.positions_T.tolist())
    assert set(rows) >= set(range(22, 59))


def test_nothing_to_learn_from_is_no_window():
    random = np.random.default_rng(0)
    assert captures_of().draw(10, 0, random) is None
    assert captures_of(made(3)).draw(10, 2, random) is None
    assert captures_of(made(9)._replace(taught=8)).draw(10, 2, random) is None
    assert captures_of(made(4)).draw(10, 2, random) is not None


def test_the_same_random_numbers_draw_the_same_windows():
    data = captures_of(*(made(length, length) for length in range(10, 60, 7)))
    first, again = (data.draw(40, 2, np.random.default_rng(5)) for _ in range(2))
    assert torch.equal(first.hidden_TD, again.hidden_TD)
