"""What cannot be placed is refused in one sentence."""

import pytest
from tests.helpers.flowing import small

from untail.config import ConfigError
from untail.flow.placement import Placement, refuse_nccl, refuse_what_cannot_be

APART, SHARED = Placement([0, 1], [], [2]), Placement([0], [1], [1])


@pytest.mark.parametrize(
    ("device", "placement", "on_gpus", "said"),
    [
        ("auto", APART, False, "goes from GPU to GPU, and engines and learner are on CPUs"),
        ("cpu", APART, True, "goes from GPU to GPU, and engines and learner are on CPUs"),
        ("auto", SHARED, True, "wants a GPU for each, and device 1 has an engine and the learner"),
    ],
)
def test_nccl_is_refused_where_it_cannot_go(device, placement, on_gpus, said):
    recipe = small(flow__mode="disaggregated", flow__weights="nccl", engine__device=device)
    with pytest.raises(ConfigError, match=said):
        refuse_nccl(recipe, placement, on_gpus)


def test_nccl_goes_between_gpus_of_their_own_and_others_go_anywhere():
    assert refuse_nccl(small(flow__mode="disaggregated", flow__weights="nccl"), APART, on_gpus=True) is None
    assert refuse_nccl(small(flow__mode="hybrid", flow__weights="gloo"), SHARED, on_gpus=False) is None


@pytest.mark.parametrize(
    ("name", "value", "said", "fix"),
    [
        ("weights", "gloo", '"gloo"', "flow.weights=store"),
        ("weights", "nccl", '"nccl"', "flow.weights=store"),
        ("backend", "ray", '"ray"', "flow.backend=local"),
    ],
)
def test_one_process_has_no_use_for_what_several_need(name, value, said, fix):
    with pytest.raises(ConfigError, match=rf"flow.{name} = {said} is for .* drop it \(--set {fix}\)"):
        refuse_what_cannot_be(small(**{f"flow__{name}": value}))


def test_no_plan_may_have_nccl_which_another_plan_could_not():
    with pytest.raises(ConfigError, match=r'flow.weights = "nccl" .* flow.mode = "auto" a plan may .* take "gloo"'):
        refuse_what_cannot_be(small(flow__mode="auto", flow__weights="nccl"))
    refuse_what_cannot_be(small(flow__mode="auto", flow__weights="gloo"))
