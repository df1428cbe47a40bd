"""What a decoder looks like: the numbers of its layers, read from a Hugging Face config.

Three families share one loop: llama, qwen2 (a bias on q, k and v) and qwen3 (a norm on every query and key head).
Whatever a config asks for that the loop does not do is refused here by name, never silently left out.
"""

import math
from dataclasses import dataclass
from typing import Any

from untail.errors import ModelError

FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ROPE_KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Rope:
    """Rotary positions; the factors are read for the kinds that have them (see rope.py)."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None


@dataclass(frozen=True)
class Shape:
    family: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    norm_eps: float = 1e-6
    tied: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    rope: Rope = Rope()
    eos_ids: tuple[int, ...] = ()

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @classmethod
    def from_hf(cls, config: dict[str, Any], where: str) -> "Shape":
        family = config.get("model_type", "")
        if family not in FAMILIES:
            raise ModelError(f"{where}: model_type {family!r} is not supported; untail runs {', '.join(FAMILIES)}")
        _refuse_unsupported(config, where)
        try:
            heads = config["num_attention_heads"]
            return cls(
                family=family,
                vocab=config["vocab_size"],
                hidden=config["hidden_size"],
                intermediate=config["intermediate_size"],
                layers=config["num_hidden_layers"],
                heads=heads,
                kv_heads=config.get("num_key_value_heads") or heads,
                head_dim=config.get("head_dim") or (128 if family == "qwen3" else config["hidden_size"] // heads),
                context=config["max_position_embeddings"],
                norm_eps=config.get("rms_norm_eps", 1e-6),
                tied=config.get("tie_word_embeddings", False),
                qkv_bias=family == "qwen2",
                qk_norm=family == "qwen3",
                rope=_rope(config, where),
                eos_ids=_ids(config.get("eos_token_id")),
            )
        except KeyError as error:
            raise ModelError(f"{where}: config.json lacks {error}; is it a {family} model?") from None

    def to_hf(self) -> dict[str, Any]:
        """The config.json that transformers loads this model from."""
        rope = {"rope_type": self.rope.kind, "rope_theta": self.rope.theta}
        if self.rope.kind != "default":
            rope |= {"factor": self.rope.factor, "original_max_position_embeddings": self.rope.original_context}
        if self.rope.kind == "llama3":
            rope |= {"low_freq_factor": self.rope.low_freq_factor, "high_freq_factor": self.rope.high_freq_factor}
        if self.rope.kind == "yarn":
            rope |= {"beta_fast": self.rope.beta_fast, "beta_slow": self.rope.beta_slow}
            rope |= {"attention_factor": self.rope.attention_factor} if self.rope.attention_factor else {}
        return {
            "architectures": [FAMILIES[self.family]],
            "model_type": self.family,
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.context,
            "rms_norm_eps": self.norm_eps,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "rope_parameters": rope,
            "rope_theta": self.rope.theta,
            "eos_token_id": list(self.eos_ids) or None,
        }


def _refuse_unsupported(config: dict[str, Any], where: str) -> None:
    if config.get("hidden_act", "silu") != "silu":
        raise ModelError(
            f"{where}: hidden_act {config['hidden_act']!r} is not supported; untail's loop is SwiGLU (silu)"
        )
    if config.get("use_sliding_window"):
        raise ModelError(f"{where}: use_sliding_window is not supported; set it to false to use full attention")
    if config.get("mlp_bias"):
        raise ModelError(f"{where}: mlp_bias is not supported")
    if config.get("quantization_config"):
        raise ModelError(f"{where}: quantised safetensors are not supported; use the unquantised model or a GGUF file")
    if config["model_type"] != "qwen2" and config.get("attention_bias"):
        raise ModelError(f"{where}: attention_bias puts a bias on the output projection, which is not supported")


def _rope(config: dict[str, Any], where: str) -> Rope:
    table = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = table.get("rope_theta") or config.get("rope_theta") or 10000.0
    kind = table.get("rope_type") or table.get("type") or "default"
    if kind not in ROPE_KINDS:
        raise ModelError(f"{where}: rope type {kind!r} is not supported; untail knows {', '.join(ROPE_KINDS)}")
    if kind == "default":
        return Rope(theta)
    original = table.get("original_max_position_embeddings") or config["max_position_embeddings"]
    names = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor")
    given = {name: table[name] for name in names if table.get(name) is not None}
    unknown = set(table) - {*names, "rope_type", "type", "rope_theta", "original_max_position_embeddings"}
    if unknown:
        raise ModelError(f"{where}: rope field {sorted(unknown)[0]!r} is not supported")
    return Rope(theta, kind, original_context=original, **given)


def _ids(eos: int | list[int] | None) -> tuple[int, ...]:
    return () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)


def yarn_attention_factor(rope: Rope) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
