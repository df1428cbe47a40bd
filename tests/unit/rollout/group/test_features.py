import numpy as np
import pytest
from tests.unit.rollout.group.helpers import at_boundary

from untail.rollout.group.features import agreement, far_bound, features, hashed_runs, similarities, standard


def test_hidden_states_where_all_have_them_and_runs_of_tokens_elsewhere():
    group = at_boundary([1, 2, 3], [4, 5, 6])
    one, two = group.open
    assert features([one, two]).shape == (2, 512)
    one.feature = np.array([3.0, 4.0])
    assert features([one, two]).shape == (2, 512)
    two.feature = np.array([0.0, 2.0])
    assert features([one, two]).tolist() == [[0.6, 0.8], [0.0, 1.0]]


def test_a_feature_without_length_is_not_a_fault():
    group = at_boundary([1], [2])
    for member in group.open:
        member.feature = np.zeros(3)
    assert similarities(group.open) == [0.0, 0.0]


def test_runs_of_one_to_three_tokens_are_counted():
    assert hashed_runs([1, 2, 3, 4]).sum() == 4 + 3 + 2
    assert hashed_runs([7]).sum() == 1
    assert (hashed_runs([1, 2, 3]) == hashed_runs([1, 2, 3])).all()


def test_those_that_are_like_the_others_are_near_the_centroid():
    alike = similarities(at_boundary([1, 2, 3, 4], [1, 2, 3, 5], [50, 60, 70, 80]).open)
    assert alike[0] == pytest.approx(alike[1], abs=0.1)
    assert alike[2] < alike[0] - 0.2


def test_agreement_is_out_of_the_longer():
    one, two, three = at_boundary([1, 2, 3, 4], [1, 2, 9, 4], [1, 2]).open
    assert (agreement(one, one), agreement(one, two), agreement(one, three)) == (1.0, 0.75, 0.5)


def test_bounds_and_scores():
    assert far_bound([1.0, 2.0, 3.0, 4.0, 100.0], 3.0) == 3.0 + 3.0 * 1.0
    assert standard([1.0, None, 3.0]) == [-1.0, 0.0, 1.0]
    assert standard([2.0, 2.0]) == [0.0, 0.0]
    assert standard([None, None]) == [0.0, 0.0]
