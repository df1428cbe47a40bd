"""The Gaussian policy against torch's own distribution, and the normaliser against the moments."""

import torch
from tests.unit.embodied.small import policy_of, small
from torch.distributions import Independent, Normal

from untail.embodied.policy import LARGEST_OBSERVATION, Normaliser


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_log_probs_and_entropy_are_those_of_a_gaussian():
    policy = policy_of(small())
    obs = torch.randn(50, 5, generator=generator())
    action, logprob = policy.act(obs, generator())
    gaussian = Independent(Normal(policy.actor(policy.normaliser(obs)), policy.log_std.exp()), 1)
    torch.testing.assert_close(logprob, gaussian.log_prob(action), atol=1e-5, rtol=0)
    judged, entropy = policy.judge(obs, action)
    torch.testing.assert_close(judged, logprob, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropy, gaussian.entropy())


def test_the_same_stream_gives_the_same_actions():
    policy, obs = policy_of(small()), torch.randn(9, 5, generator=generator())
    first, again, other = (policy.act(obs, generator(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_normaliser_adds_up_and_gives_mean_0_and_variance_1():
    obs = torch.randn(400, 3, generator=generator()) * torch.tensor([1.0, 20.0, 0.01]) + torch.tensor([5.0, -3.0, 0.0])
    whole, parts = Normaliser(3), Normaliser(3)
    assert torch.equal(whole(obs), obs.clamp(-LARGEST_OBSERVATION, LARGEST_OBSERVATION))  # knows nothing yet
    whole.add(whole.sums_of(obs))
    parts.add(parts.sums_of(obs[:100]) + parts.sums_of(obs[100:300]))
    parts.add(parts.sums_of(obs[300:]))
    torch.testing.assert_close(parts.mean, whole.mean)
    normal = whole(obs)
    torch.testing.assert_close(normal.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(normal.std(0, correction=0), torch.ones(3), atol=1e-2, rtol=0)


def test_an_observation_that_never_changes_does_not_blow_up():
    normaliser = Normaliser(2)
    normaliser.add(normaliser.sums_of(torch.full((10, 2), 7.0)))
    assert torch.equal(normaliser(torch.full((1, 2), 7.0)), torch.zeros(1, 2))
    assert normaliser(torch.full((1, 2), 9.0)).abs().max() <= LARGEST_OBSERVATION
