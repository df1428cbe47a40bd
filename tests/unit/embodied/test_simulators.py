"""Both simulators keep the same contract; the cart-pole's physics conserve what they must."""

import math
import sys

import pytest
import torch
from tests.unit.embodied.small import CPU

from untail.embodied import torch_env
from untail.embodied.gym_env import HalfCheetah
from untail.embodied.torch_env import CartPole
from untail.errors import UserError


@pytest.fixture(params=[CartPole, HalfCheetah])
def make(request):
    def make(count=4, episode=3):
        simulators.append(request.param(count, episode, CPU))
        return simulators[-1]

    simulators = []
    yield make
    for simulator in simulators:
        simulator.close()


def actions(simulator, count=4, seed=0):
    return torch.randn(count, simulator.action_size, generator=torch.Generator().manual_seed(seed))


def test_shapes_and_types(make):
    simulator = make()
    obs = simulator.reset(0, 1)
    outcome = simulator.step(actions(simulator))
    assert obs.shape == outcome.obs_NO.shape == outcome.final_NO.shape == (4, simulator.obs_size)
    assert obs.dtype == outcome.reward_N.dtype == outcome.final_NO.dtype == torch.float32
    assert outcome.reward_N.shape == (4,)
    assert outcome.ended_N.dtype == outcome.cut_N.dtype == torch.bool


def test_the_same_seed_gives_the_same_course(make):
    courses = []
    for seed in (5, 5, 6):
        simulator = make()
        rows = [simulator.reset(seed, 1)]
        rows += [simulator.step(actions(simulator, seed=step)).obs_NO for step in range(5)]
        courses.append(torch.stack(rows))
    assert torch.equal(courses[0], courses[1])
    assert not torch.equal(courses[0], courses[2])


def test_groups_begin_alike_and_differ_from_others(make):
    obs = make().reset(1, 2)
    assert torch.equal(obs[0], obs[1])
    assert torch.equal(obs[2], obs[3])
    assert not torch.equal(obs[1], obs[2])


def test_an_episode_is_cut_after_its_time_and_the_next_begins(make):
    simulator = make()
    simulator.reset(0, 1)
    for episode in range(2):
        for step in (1, 2):
            outcome = simulator.step(actions(simulator))
            assert not outcome.cut_N.any(), (episode, step)
            assert torch.equal(outcome.final_NO, outcome.obs_NO)
        outcome = simulator.step(actions(simulator))
        assert outcome.cut_N.all()
        assert not outcome.ended_N.any()
        assert not torch.equal(outcome.final_NO, outcome.obs_NO)


def test_actions_beyond_the_limits_count_as_the_limits(make):
    obs = []
    for size in (1.0, 50.0):
        simulator = make()
        simulator.reset(0, 1)
        obs.append(simulator.step(torch.full((4, simulator.action_size), size)).obs_NO)
    assert torch.equal(*obs)


def test_the_cart_ends_where_the_track_ends():
    simulator = CartPole(2, 500, CPU)
    simulator.reset(0, 1)
    push = torch.tensor([[1.0], [0.0]])
    for _ in range(100):
        outcome = simulator.step(push)
        if outcome.ended_N.any():
            break
    assert outcome.ended_N.tolist() == [True, False]
    assert not outcome.cut_N.any()
    assert outcome.final_NO[0, 0] > torch_env.TRACK > outcome.obs_NO[0, 0]


def test_without_force_the_pole_keeps_its_energy():
    simulator = CartPole(3, 500, CPU)
    simulator.reset(0, 1)
    simulator._state_4N = torch.tensor([[0.0] * 3, [0.0] * 3, [1.0, 2.0, math.pi], [0.0, 0.5, 0.0]])

    def energy():
        _, speed, angle, turn = simulator._state_4N.double()
        cart, pole, half, gravity = torch_env.CART, torch_env.POLE, torch_env.HALF_LENGTH, torch_env.GRAVITY
        moving = 0.5 * (cart + pole) * speed**2 + pole * half * speed * turn * angle.cos()
        return moving + 0.5 * pole * 4 / 3 * half**2 * turn**2 + pole * gravity * half * angle.cos()

    before = energy()
    for _ in range(40):  # two seconds
        simulator.step(torch.zeros(3, 1))
    torch.testing.assert_close(energy(), before, atol=0.02, rtol=0)
    assert simulator._state_4N[:, 2].sub(torch.tensor([0.0, 0.0, math.pi, 0.0])).abs().max() < 1e-4  # hangs still


def test_upright_pays_and_hanging_does_not():
    simulator = CartPole(2, 500, CPU)
    simulator.reset(0, 1)
    simulator._state_4N = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, math.pi], [0.0, 0.0]])
    reward = simulator.step(torch.zeros(2, 1)).reward_N
    torch.testing.assert_close(reward, torch.tensor([1.0, 0.0]), atol=1e-3, rtol=0)


@pytest.mark.parametrize("package", ["gymnasium", "mujoco"])
def test_a_missing_package_names_the_extra(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"{package}; install with: pip install 'untail\[embodied\]'"):
        HalfCheetah(2, 3, CPU)
