"""A profile of this machine: a few groups are rolled out and learned from, and every part of that is timed.

Invariant: what is measured is what a run does: the engine's own steps, the trainer's own update; what is done for the
first time is left out. What a role needs is the most that was held while it ran: of the device on a GPU, of the process
elsewhere. What cannot be measured on one device, the way from one to another, is assumed (`GIB_S`, `WAIT_S`), and the
profile says so.
"""

import platform
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from untail.config import Recipe
from untail.engine.engine import Engine
from untail.engine.models.decoder import Decoder
from untail.engine.models.load import LoadedModel, memory_of
from untail.flow.cost import Curve
from untail.flow.profile import ExchangeProfile, Measured, Profile, RoleProfile, RolloutProfile
from untail.learn.trainer import Trainer
from untail.types import Batch, Group, Prompt, SamplingParams, SequenceSpec, Trajectory

GIB = 2**30
GROUPS = 8  # that are rolled out, unless a step has fewer
# Between the ranks of a learner, a second: two processes of a CPU over gloo, as measured on one; PCIe 4, as it is sold.
GIB_S = {"cpu": 0.4, "cuda": 20.0}
# For each other, whenever they exchange something: on two cores that others use, too, as measured; on GPUs, a guess.
WAIT_S = {"cpu": 0.01, "cuda": 1e-4}


def measure(recipe: Recipe, model: LoadedModel, prompts: list[Prompt], most_groups: int = GROUPS) -> Profile:
    """Changes the model's weights. Pre: there are prompts."""
    memory = PeakMemory(model.decoder.embed.device)
    count = min(most_groups, recipe.rollout.prompts, len(prompts))
    memory.reset()
    groups, rollout = _roll_out(recipe, model, prompts[:count])
    rollout["memory_gib"] = memory.gib
    weights = list(model.decoder.parameters())
    trainer = Trainer(model.decoder, recipe.learn, recipe.rollout.temperature, recipe.rollout.max_tokens)
    trainer.update(Batch(1, groups))
    exchange = _exchange(
        model.decoder, sum(len(group.trajectories) for group in groups) / max(1, trainer.memory.passes)
    )
    halves = [groups[: max(1, count // 2)], groups]
    updates = [_update(trainer, Batch(step, part), memory) for step, part in enumerate(halves, 2)]
    state = list(trainer.state_dict()[0].values())
    roles: dict[Any, RoleProfile] = {
        "logprob": RoleProfile(points=[logprob for logprob, _ in updates], swap_s=_swap_s(weights)),
        "update": RoleProfile(points=[update for _, update in updates], swap_s=_swap_s(state)),
    }
    return Profile(
        made_on=f"{platform.node()}, {memory.device}",
        model=recipe.model,
        memory_gib=memory_of(memory.device) / GIB,
        sync_s=_swap_s(weights) / 2,  # one way
        rollout=RolloutProfile(**rollout, swap_s=_swap_s(weights)),
        roles=roles,
        exchange=exchange,
    )


class PeakMemory:
    """The most that was held since the last reset."""

    def __init__(self, device: torch.device):
        self.device = device

    def reset(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        elif sys.platform == "linux":
            with suppress(OSError):  # not everybody may: then it is the most since the process began
                Path("/proc/self/clear_refs").write_text("5")

    @property
    def gib(self) -> float:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / GIB
        if sys.platform == "linux":
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / GIB
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GIB


def _roll_out(recipe: Recipe, model: LoadedModel, prompts: list[Prompt]) -> tuple[list[Group], dict[str, Any]]:
    """Groups whose rewards differ, so that each of them teaches; step times and lengths."""
    engine = Engine(model.decoder, recipe.engine)
    stops = tuple(dict.fromkeys((*model.decoder.shape.eos_ids, *model.tokenizer.eos_ids)))
    sampling = SamplingParams(recipe.rollout.temperature, stop_ids=stops)
    groups, by_name = [], {}
    for place, prompt in enumerate(prompts):
        names = [f"{place}-{member}" for member in range(recipe.rollout.group)]
        own = [Trajectory(name, prompt, place * len(names) + member) for member, name in enumerate(names)]
        for member, trajectory in enumerate(own):
            trajectory.reward = float(member % 2)
            by_name[trajectory.id] = trajectory
            spec = SequenceSpec(trajectory.id, prompt.tokens, recipe.rollout.max_tokens, trajectory.stream, sampling)
            engine.add(spec)
        groups.append(Group(str(place), prompt, own))
    decoding, filling = _steps(engine, by_name)
    tau = sorted((fmean(n for n, _ in found), median(s for _, s in found)) for found in decoding.values())
    over = sum(max(0.0, seconds - Curve(tau)(batch)) for batch, seconds in filling)
    lengths = [trajectory.length for trajectory in by_name.values()]
    return groups, {"tau": tau, "lengths": lengths, "prefill_s": over / len(by_name)}


Timed = list[tuple[int, float]]


def _steps(engine: Engine, trajectories: dict[str, Trajectory]) -> tuple[dict[int, Timed], Timed]:
    """Steps that only decode, by the power of two of their sequences, and those that fill in prompts too."""
    decoding: dict[int, Timed] = defaultdict(list)
    filling: Timed = []
    while engine.has_work:
        began = time.perf_counter()
        chunks = engine.step()
        taken, size = time.perf_counter() - began, engine.last_step
        only_decodes = size.tokens == size.sequences
        (decoding[size.sequences.bit_length()] if only_decodes else filling).append((size.sequences, taken))
        for name, chunk in chunks:
            trajectories[name].take(chunk)
    return decoding, filling


def _update(trainer: Trainer, batch: Batch, memory: PeakMemory) -> tuple[Measured, Measured]:
    memory.reset()
    figures = trainer.update(batch)
    responses = sum(len(group.trajectories) for group in batch.groups)
    point = lambda name: Measured(devices=1, responses=responses, seconds=figures[name], memory_gib=memory.gib)
    return point("logprob_s"), point("update_s")


def _exchange(decoder: Decoder, responses: float) -> ExchangeProfile:
    """Of a pass over so many. Each layer, and the rest of the weights, is gathered forwards and backwards, and its
    gradients are summed, in float32 or better."""
    weights, kind = list(decoder.parameters()), decoder.embed.device.type
    sent = sum(2 * weight.nbytes + weight.numel() * max(4, weight.element_size()) for weight in weights)
    wait_s = 3 * (len(decoder.layers) + 1) * WAIT_S[kind]
    return ExchangeProfile(gib=sent / GIB, responses=responses, gib_s=GIB_S[kind], wait_s=wait_s)


def _swap_s(tensors: Iterable[Tensor]) -> float:
    """To the host's memory and back; the second time, when both places exist."""
    tensors = [tensor.detach() for tensor in tensors]
    there = [torch.empty_like(tensor, device="cpu") for tensor in tensors]
    for _ in range(2):
        began = time.perf_counter()
        for place, tensor in zip(there, tensors, strict=True):
            place.copy_(tensor)
        for place, tensor in zip(there, tensors, strict=True):
            tensor.copy_(place)
        if tensors and tensors[0].is_cuda:
            torch.cuda.synchronize(tensors[0].device)
        taken = time.perf_counter() - began
    return taken
