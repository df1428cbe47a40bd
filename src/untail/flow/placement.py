"""Who sits where, by the flow's mode.

Invariant: an engine has one device. Engines that share their device with the learner take turns with it; the others
never wait for it.
"""

from dataclasses import dataclass

from untail.config import FlowConfig, Recipe
from untail.errors import ConfigError
from untail.flow.portions import refuse_portion


@dataclass(frozen=True, slots=True)
class Placement:
    alone: list[int]  # devices of engines that have theirs to themselves
    shared: list[int]  # devices of engines that share them with the learner
    learner: list[int]


def place(flow: FlowConfig, devices: list[int]) -> Placement:
    """Pre: the mode is not "local" or "auto"."""
    count, wanted = len(devices), flow.learner_devices
    if wanted > count:
        raise ConfigError(f"flow.learner_devices = {wanted}, but there are {count} devices; ask for {count} or fewer")
    learner = devices[count - wanted :]
    if flow.mode == "collocated":
        return Placement([], devices, learner)
    if flow.mode == "hybrid":
        return Placement(devices[: count - wanted], learner, learner)
    if wanted == count:
        raise ConfigError(
            f'flow.mode = "disaggregated" with flow.learner_devices = {wanted} leaves no device of {count} for an '
            'engine; give the learner fewer, or take "collocated"'
        )
    return Placement(devices[: count - wanted], [], learner)


def lead_of(recipe: Recipe) -> int:
    """How many updates a rollout may begin ahead of the weights that it would have in turn."""
    flow, bound = recipe.flow, staleness_of(recipe)
    if flow.schedule == "sync":
        return 0
    return 1 if flow.schedule == "one-off" else -(-bound // 2)  # the other half is for what is deferred


def staleness_of(recipe: Recipe) -> int:
    """Versions between a token's sampling and its training, at most."""
    flow, bound = recipe.flow, recipe.rollout.max_staleness
    return bound if flow.schedule != "async" or flow.staleness is None else flow.staleness


def refuse_what_cannot_be(recipe: Recipe) -> None:
    """Settings that contradict each other."""
    flow = recipe.flow
    if flow.profile is not None and flow.mode != "auto":
        raise ConfigError(f'flow.profile = "{flow.profile}" is for flow.mode = "auto"; drop it, or set that')
    if flow.mode == "local":
        _refuse_in_one_process(flow)
    if flow.mode == "auto":
        _refuse_with_a_plan(recipe)
    refuse_portion(recipe)
    if flow.staleness is not None and flow.schedule != "async":
        raise ConfigError(f'flow.staleness = {flow.staleness} is for flow.schedule = "async"; drop it, or set that')
    if flow.schedule == "sync":
        return
    if flow.mode in ("local", "collocated"):
        raise ConfigError(
            f'flow.schedule = "{flow.schedule}" samples while the learner works, and flow.mode = "{flow.mode}" has one '
            'device set for both; take flow.mode = "disaggregated" or "hybrid"'
        )
    if recipe.deterministic:
        raise ConfigError(
            f'deterministic = true, but with flow.schedule = "{flow.schedule}" what is sampled from which weights '
            'depends on time; take "sync"'
        )
    if recipe.learn.bridge is not None:
        raise ConfigError(f'learn.bridge trains unfinished segments between two rollouts: not with "{flow.schedule}"')
    if lead_of(recipe) > staleness_of(recipe):
        raise ConfigError(
            f'flow.schedule = "one-off" needs rollout.max_staleness >= 1, and it is {recipe.rollout.max_staleness}'
        )


def _refuse_in_one_process(flow: FlowConfig) -> None:
    """Numbers of devices may stay: a run that goes on in another mode has them."""
    for name in ("weights", "backend"):
        value, default = getattr(flow, name), FlowConfig.model_fields[name].default
        if value != default:
            raise ConfigError(
                f'flow.{name} = "{value}" is for engines and a learner in processes of their own, and flow.mode = '
                f'"local" has them in one; drop it (--set flow.{name}={default}), or take another mode'
            )


def _refuse_with_a_plan(recipe: Recipe) -> None:
    """What a plan decides, or may decide otherwise in the middle of a run."""
    flow = recipe.flow
    if flow.learner_devices > 1:
        raise ConfigError(
            f'flow.learner_devices = {flow.learner_devices}, but with flow.mode = "auto" a plan gives the learner its '
            "devices; drop it, or take the mode that untail plan names"
        )
    if flow.weights == "nccl":
        raise ConfigError(
            'flow.weights = "nccl" wants a GPU for each, and with flow.mode = "auto" a plan may have an engine and the '
            'learner share one; take "gloo", or flow.mode = "disaggregated"'
        )
    if recipe.deterministic:
        raise ConfigError(
            'deterministic = true, but flow.mode = "auto" places the roles by what they take; take the mode that '
            "untail plan names"
        )


def refuse_nccl(recipe: Recipe, placement: Placement, on_gpus: bool) -> None:
    """Where weights cannot go from GPU to GPU."""
    if recipe.flow.weights != "nccl":
        return
    if not on_gpus or recipe.engine.device == "cpu":
        raise ConfigError(
            'flow.weights = "nccl" goes from GPU to GPU, and engines and learner are on CPUs; take "gloo"'
        )
    if placement.shared:
        raise ConfigError(
            f'flow.weights = "nccl" wants a GPU for each, and device {placement.shared[0]} has an engine and the '
            'learner; take "gloo", or flow.mode = "disaggregated"'
        )
