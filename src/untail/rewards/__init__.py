"""Verifiers: what a response is worth. One file per reward; `scorer.Scorer` runs them in limited processes."""

from untail.rewards import code, exact, format, function, math_verify, numeric, reasoning_gym, weighted
from untail.rewards.base import REWARDS, Reward, build_reward

__all__ = [
    "REWARDS",
    "Reward",
    "build_reward",
    "code",
    "exact",
    "format",
    "function",
    "math_verify",
    "numeric",
    "reasoning_gym",
    "weighted",
]
