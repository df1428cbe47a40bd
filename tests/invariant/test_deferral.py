"""A response that goes on over several weight versions: every token carries the version that sampled it, and the
log-prob that this version gives it. The witness is a replay with a copy of each version's weights."""

from statistics import fmean, median

import pytest
import torch

from tests.helpers.native import native_controller, tiny_copy
from tests.helpers.steps import Steps, small_recipe, take_steps
from tests.unit.learn.helpers import plain_logprobs
from untail.types import Trajectory

STEPS = 5
NOISE = 0.05  # of each weight, so that versions are well apart and still write numbers


async def train_by_noise(name: str, seed: int, **engine) -> tuple[Steps, list[dict[str, torch.Tensor]]]:
    """Steps of a recipe in which every update changes all weights at random, and the weights of every version."""
    decoder, random = tiny_copy(), torch.Generator().manual_seed(seed)
    versions = [_copy(decoder)]
    recipe = small_recipe(name, max_tokens=64, watch_every=8, patience=8, prompts=3)
    async with native_controller(recipe, decoder=decoder, seed=seed, **engine) as controller:
        (backend,) = controller.stage.fleet.backends

        async def update(step, batch):
            await backend.pause("keep")
            with torch.no_grad():
                for parameter in decoder.parameters():
                    parameter.mul_(1 + NOISE * torch.randn(parameter.shape, generator=random))
            versions.append(_copy(decoder))
            await backend.load_weights(None, step)
            await backend.resume()

        return await take_steps(controller, range(1, STEPS + 1), update), versions


def _copy(decoder) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in decoder.state_dict().items()}


@torch.no_grad()
def replay(trajectories: list[Trajectory], versions: list[dict[str, torch.Tensor]], shift: int = 0) -> list[float]:
    """For each token, how far its log-prob is from the one that its version, or the one `shift` later, gives it."""
    decoder, apart = tiny_copy(), []
    for number in range(max(0, -shift), min(len(versions), len(versions) - shift)):
        decoder.load_state_dict(versions[number + shift])
        for t in trajectories:
            if number in t.version:
                own = plain_logprobs(decoder, t, temperature=1.0).tolist()
                for version, ours, theirs in zip(t.version, t.policy_logprob, own, strict=True):
                    if version == number:
                        apart.append(abs(ours - theirs))
    return apart


@pytest.mark.parametrize("name", ["es-grpo", "untail"])
async def test_versions_and_log_probs_against_a_replay(name):
    taken, versions = await train_by_noise(name, seed=1, kv_after_update="recompute")
    trajectories = [t for _, t in taken.trained]
    several = [t for t in trajectories if len(set(t.version)) > 1]
    assert len(several) >= 3, "nothing was deferred: there is nothing to see"
    assert max(replay(trajectories, versions)) < 1e-4
    assert not any(any(t.mixed_kv) for t in trajectories)
    # The check can tell: with the weights of the version before or after, they are wrong. (The tiny model is sure of
    # many tokens, whatever its version, so that one with very few tokens of a version may be right by chance.)
    for shift in (-1, 1):
        worst = [max(apart) for t in several if (apart := replay([t], versions, shift))]
        assert median(worst) > 0.05
        assert fmean(difference > 1e-3 for difference in worst) > 0.8


async def test_every_token_has_the_version_of_the_step_that_made_it():
    """As the events tell it: when each trajectory had how many tokens."""
    taken, _ = await train_by_noise("ulorl", seed=2)
    told: dict[str, list[int]] = {}
    for events in taken.events:
        for event in events:
            if event["e"] in ("segment", "defer", "stop", "end"):
                versions = told.setdefault(event["id"], [])
                versions += [event["step"] - 1] * (event["tokens"] - len(versions))
    assert len(taken.all("defer")) > 0
    assert all(t.version == told[t.id] for _, t in taken.trained)


async def test_kept_kv_is_marked():
    """With `kv_after_update = "keep"` a replay cannot be exact: those tokens say so, and no others."""
    taken, versions = await train_by_noise("ulorl", seed=1, kv_after_update="keep")
    trajectories = [t for _, t in taken.trained]
    marked = [t for t in trajectories if any(t.mixed_kv)]
    assert len(marked) > 0
    for t in trajectories:
        assert t.mixed_kv == [version != t.version[0] for version in t.version]
    assert max(replay([t for t in trajectories if t not in marked], versions)) < 1e-4
    assert max(replay(marked, versions)) > 1e-3
