"""Lengths shrink with a budget below 8192, and only there."""

import pytest

from untail.errors import ConfigError
from untail.rollout.stride.scale import refuse_over_budget, scaled


@pytest.mark.parametrize(
    ("tokens", "budget", "expected"),
    [(4096, 8192, 4096), (4096, 65536, 4096), (4096, 4096, 2048), (4096, 512, 256), (64, 512, 4), (64, 1, 1)],
)
def test_by_hand(tokens, budget, expected):
    assert scaled(tokens, budget) == expected


@pytest.mark.parametrize(("tokens", "budget"), [(8192, 100), (16384, 16384), (8192, 8192)])
def test_as_long_as_the_budget_is_allowed(tokens, budget):
    refuse_over_budget("mechanisms.x.cap", tokens, budget)
    assert scaled(tokens, budget) <= budget


@pytest.mark.parametrize(("tokens", "budget", "most"), [(8193, 100, 8192), (16385, 16384, 16384), (8193, 8192, 8192)])
def test_longer_than_the_budget_is_refused(tokens, budget, most):
    with pytest.raises(ConfigError, match=rf"mechanisms\.x\.cap = {tokens} .* = {budget}.* at most {most}$"):
        refuse_over_budget("mechanisms.x.cap", tokens, budget)


def test_the_refusal_says_that_lengths_scale_where_they_do():
    with pytest.raises(ConfigError, match=r"max_tokens = 8191 \(lengths scale"):
        refuse_over_budget("mechanisms.x.cap", 9000, 8191)
    with pytest.raises(ConfigError, match="max_tokens = 8192; set"):
        refuse_over_budget("mechanisms.x.cap", 9000, 8192)
