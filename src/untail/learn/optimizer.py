"""AdamW on the shared weights: warm-up, clipping, and an fp32 master where the weights are in a lower precision.

Invariant: the parameters stay at their addresses (the engine reads them); they change only in `step`, only by a finite
gradient. A parameter in bf16 or fp16 is the compute copy of a master in fp32, where gradients are summed and steps
taken.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from untail.config import LearnConfig
from untail.errors import WeightsError
from untail.learn.parts import part_of, whole_of

MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """Takes `steps` steps of AdamW; matrices decay, norms and biases do not."""

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], config: LearnConfig):
        self.steps = 0
        self._config = config
        self._parameters = dict(parameters)
        self._masters = {name: self._master(parameter) for name, parameter in self._parameters.items()}
        masters = self._masters.values()
        groups: list[dict[str, Any]] = [
            {"params": [m for m in masters if m.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [m for m in masters if m.ndim < 2], "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, betas=config.betas, fused=True)
        for master in masters:
            zeros = {name: torch.zeros_like(master) for name in MOMENTS}
            self._adam.state[master] = {"step": torch.zeros((), device=master.device)} | zeros

    @property
    def own(self) -> list[Tensor]:
        """What nobody else reads: moments, and masters that are not the parameters themselves."""
        moments = [state[name] for state in self._adam.state.values() for name in MOMENTS]
        pairs = zip(self._masters.values(), self._parameters.values(), strict=True)
        return moments + [master for master, parameter in pairs if master is not parameter]

    @property
    def bytes(self) -> int:
        """What it takes at work: parameters, masters, moments, and a gradient for each master; of what is spread over
        ranks, this one's part."""
        like_gradients = self._masters.values()
        return sum(part_of(tensor).nbytes for tensor in (*self._parameters.values(), *like_gradients, *self.own))

    @property
    def lr(self) -> float:
        """Of the next step: lr * min(1, (steps + 1) / warmup_steps)."""
        return self._config.lr * min(1.0, (self.steps + 1) / max(self._config.warmup_steps, 1))

    def step(self) -> tuple[Tensor, bool]:
        """The gradient's norm before clipping, and whether a step was taken: not if the norm is infinite or NaN."""
        norm = whole_of(get_total_norm([m.grad for m in self._masters.values() if m.grad is not None]))
        finite = bool(norm.isfinite())
        if finite:
            clip_grads_with_norm_(self._masters.values(), self._config.max_grad_norm, norm)
            for group in self._adam.param_groups:
                group["lr"] = self.lr
            self._adam.step()
            self._copy_masters_out()
            self.steps += 1
        self.discard()
        return norm, finite

    @torch.no_grad()
    def divide(self, divisor: float) -> None:
        """The gradient that was gathered, by this."""
        torch._foreach_div_([m.grad for m in self._masters.values() if m.grad is not None], divisor)

    def discard(self) -> None:
        """Forget the gradient that was gathered."""
        self._adam.zero_grad(set_to_none=True)

    @property
    def gradients(self) -> list[Tensor]:
        """What was gathered, in the precision of the masters; of a sharded parameter, the part that is held here."""
        return [part_of(master.grad) for master in self._masters.values() if master.grad is not None]

    def tensors(self) -> dict[str, Tensor]:
        """Everything a resumed run needs, by flat name: weights (the masters' where there are) and both moments."""
        flat: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            state = self._adam.state[master]
            flat |= {f"weight.{name}": master.detach()}
            flat |= {f"{moment}.{name}": state[moment] for moment in MOMENTS}
        return flat

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor], steps: int) -> None:
        """Overwrite weights and moments in place; nothing is touched unless every tensor is there and fits."""
        own = self.tensors()
        for name, tensor in own.items():
            if name not in tensors:
                raise WeightsError(f"the checkpoint lacks tensor {name!r}; it was written by a run of another model")
            if tensors[name].shape != tensor.shape:
                shapes = f"{tuple(tensors[name].shape)}, but this model needs {tuple(tensor.shape)}"
                raise WeightsError(f"the checkpoint's tensor {name!r} has shape {shapes}; resume with the same model")
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        for master in self._masters.values():
            self._adam.state[master]["step"].fill_(steps)
        self._copy_masters_out()
        self.steps = steps

    def _master(self, parameter: nn.Parameter) -> nn.Parameter:
        if parameter.dtype in (torch.float32, torch.float64):
            return parameter
        master = nn.Parameter(parameter.detach().float())

        def move_gradient(low: Tensor) -> None:
            assert low.grad is not None
            master.grad = low.grad.float() if master.grad is None else master.grad.add_(low.grad)
            low.grad = None

        parameter.register_post_accumulate_grad_hook(move_gradient)
        return master

    @torch.no_grad()
    def _copy_masters_out(self) -> None:
        for name, parameter in self._parameters.items():
            if self._masters[name] is not parameter:
                parameter.copy_(self._masters[name])
