"""Which shard is whose, in every mode."""

import pytest

from untail.embodied.layout import MODES, check_mode, lay_out
from untail.errors import UserError


def test_the_modes_on_two_devices():
    both, first, second = [[0], [1]], [[0]], [[1]]
    assert [lay_out("collocated", 2, 2).env, lay_out("collocated", 2, 2).learn] == [both, both]
    apart, mixed = lay_out("disaggregated", 2, 2), lay_out("hybrid", 2, 2)
    assert (apart.env, apart.policy, apart.learn) == (first, second, second)
    assert (mixed.env, mixed.policy, mixed.learn) == (first, second, both)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("devices", [2, 3, 5, 8])
@pytest.mark.parametrize("shards", [1, 2, 3, 6])
def test_every_shard_has_one_worker_of_each_role(mode, devices, shards):
    layout = lay_out(mode, devices, shards)
    for workers in (layout.env, layout.policy, layout.learn):
        owned = [layout.shards_of(workers, rank) for rank in range(len(workers) + 2)]  # two beyond have none
        assert sorted(number for each in owned for number in each) == list(range(shards))
        assert all(owned[: len(workers)])
        assert all(device < devices for each in workers for device in each)
    for shard in range(shards):
        assert shard in layout.shards_of(layout.policy, layout.policy_of(shard))
        assert shard in layout.shards_of(layout.learn, layout.learner_of(shard))


def test_a_plan_may_give_fewer_devices_to_the_learner_and_more_to_environments():
    layout = lay_out("hybrid", 4, 8, for_envs=3, learners=2)
    assert (len(layout.env), layout.policy, layout.learn) == (3, [[3]], [[0], [1]])
    assert lay_out("collocated", 4, 8, learners=1).learn == [[0]]


def test_environments_on_the_host_leave_all_devices_to_the_others():
    layout = lay_out("disaggregated", 1, 3, on_host=True)
    assert (layout.env, layout.policy, layout.learn) == ([[], [], []], [[0]], [[0]])
    assert lay_out("hybrid", 1, 3, on_host=True).learn == [[0]]


@pytest.mark.parametrize("mode", ["disaggregated", "hybrid"])
def test_one_device_can_only_be_taken_in_turn(mode):
    with pytest.raises(UserError, match=f"--mode {mode} needs two devices or more .* there is 1"):
        lay_out(mode, 1, 2)
    assert lay_out("collocated", 1, 2).env == [[0]]


def test_an_unknown_mode_lists_the_known():
    assert check_mode("hybrid") == "hybrid"
    with pytest.raises(UserError, match=r"did you mean 'collocated'.*auto"):
        check_mode("colocated")
