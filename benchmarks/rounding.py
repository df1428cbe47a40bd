"""Which roundings make engine and learner differ: bf16 emulated on a CPU, one set of rounded values after another.

`python benchmarks/rounding.py OUT.json` (six minutes on two cores). SmolLM2 answers sums at temperature 1; two passes
over its answers round the same values and add up in different orders, for which the emulation adds noise of 1e-6 before
each rounding. Everything between the roundings is float32. Reported: the mean difference of a sampled token's log-prob,
and how often both have the same best token.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from untail.config import EngineConfig
from untail.engine.engine import Engine
from untail.engine.models.decoder import Decoder
from untail.engine.models.load import LoadedModel, load_model
from untail.engine.models.rope import rotate
from untail.types import SamplingParams, SequenceSpec

TEXTS, ANSWER = 10, 160
BF16, FP16 = 8, 11  # bits of a number
INPUTS = ("norm1", "norm2", "attended", "active", "last")  # what products take
ATTENTION = ("qk", "v", "p")
SUMS = ("qkv", "out", "gate_up", "down", "residual")  # what leaves products, and where it is added up
CASES: dict[str, dict[str, int]] = {
    "everything in bf16": dict.fromkeys((*INPUTS, *ATTENTION, *SUMS), BF16),
    "all but the residual stream": dict.fromkeys((*INPUTS, *ATTENTION, *SUMS[:-1]), BF16),
    "what products and attention take": dict.fromkeys((*INPUTS, *ATTENTION), BF16),
    "the same, attention in fp16": dict.fromkeys(INPUTS, BF16) | dict.fromkeys(ATTENTION, FP16),
    "the same, halves around attention": dict.fromkeys(("norm2", "active", "last"), BF16)
    | dict.fromkeys(ATTENTION, FP16),
}


def answers(model: LoadedModel) -> Iterator[tuple[list[int], int]]:
    """Whole texts, and where in them the answer begins."""
    engine = Engine(model.decoder, EngineConfig(kv_gib=1))
    ends = SamplingParams(temperature=1.0, stop_ids=model.tokenizer.eos_ids)
    texts = [model.tokenizer.chat(f"What is {37 * n + 11} + {13 * n + 2}? Think step by step.") for n in range(TEXTS)]
    begins = [len(text) for text in texts]
    for number, text in enumerate(texts):
        engine.add(SequenceSpec(str(number), tuple(text), ANSWER, number, ends, chunk=ANSWER))
    while engine.has_work:
        for name, chunk in engine.step():
            texts[int(name)] += chunk.tokens
    return zip(texts, begins, strict=True)


class Pass:
    """A decoder's forward pass that rounds the values in `bits`, in an order of its own."""

    def __init__(self, decoder: Decoder, bits: dict[str, int], order: int):
        self.decoder, self.bits, self.random = decoder, bits, torch.Generator().manual_seed(order)

    def rounded(self, name: str, x: Tensor) -> Tensor:
        x = x * (1 + 1e-6 * torch.randn(x.shape, generator=self.random))
        return to_bits(x, self.bits[name]) if name in self.bits else x

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> Tensor:
        decoder, shape, rounded = self.decoder, self.decoder.shape, self.rounded
        cos, sin = decoder.rope_table[torch.arange(len(ids))].unbind(1)
        hidden = decoder.embedded(torch.tensor(ids))
        for layer in decoder._layers:
            normed = rounded("norm1", decoder.rms(hidden, layer.input_norm))
            qkv = rounded("qkv", normed @ layer.qkv.T).unflatten(1, (-1, shape.head_dim))
            qk, v = qkv.split((shape.heads + shape.kv_heads, shape.kv_heads), dim=1)
            q, k = rounded("qk", rotate(qk, cos, sin)).split((shape.heads, shape.kv_heads), dim=1)
            attended = rounded("attended", self.attend(q, k, rounded("v", v)))
            hidden = rounded("residual", hidden + rounded("out", attended @ layer.out.T))
            normed = rounded("norm2", decoder.rms(hidden, layer.post_norm))
            gate, up = rounded("gate_up", normed @ layer.gate_up.T).chunk(2, dim=-1)
            active = rounded("active", F.silu(gate) * up)
            hidden = rounded("residual", hidden + rounded("down", active @ layer.down.T))
        return rounded("last", decoder.rms(hidden, decoder.norm)) @ decoder.output_weight.T

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Probabilities are rounded before they are divided by their sum, relative to whatever maximum was known."""
        group = q.shape[1] // k.shape[1]
        q, k, v = q.transpose(0, 1), *(x.repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
        score = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).masked_fill(
            ~torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril(), float("-inf")
        )
        share = (score - score.amax(-1, keepdim=True)).exp()
        known = 1 + torch.rand(share.shape[:2], generator=self.random)[..., None]
        weight = to_bits(share * known, self.bits["p"]) / known if "p" in self.bits else share
        return (weight @ v / share.sum(-1, keepdim=True)).transpose(0, 1).flatten(1)


def to_bits(x: Tensor, bits: int) -> Tensor:
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent)


def main() -> None:
    model = load_model("smollm2", "cpu", "float32")
    for parameter in model.decoder.requires_grad_(False).parameters():
        parameter.copy_(parameter.bfloat16())
    texts, found = list(answers(model)), {}
    for name, bits in CASES.items():
        passes = [Pass(model.decoder, bits, order) for order in (1, 2)]
        differences, agreements = [], []
        for ids, begin in texts:
            ours, theirs = (one.logits(ids)[begin - 1 : -1].log_softmax(-1) for one in passes)
            target = torch.tensor(ids[begin:])[:, None]
            differences.append((ours.gather(1, target) - theirs.gather(1, target)).abs())
            agreements.append(ours.argmax(-1) == theirs.argmax(-1))
        found[name] = {
            "mismatch": torch.cat(differences).mean().item(),
            "agreement": torch.cat(agreements).float().mean().item(),
            "tokens": sum(map(len, differences)),
        }
        print(name, found[name], flush=True)
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
