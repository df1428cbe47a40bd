"""Random-weight models, made so that ties between tokens are rare."""

from pathlib import Path

import torch

from untail.engine.models.decoder import Decoder
from untail.engine.models.folder import save_folder
from untail.engine.models.shape import Rope, Shape

COMMON = {"vocab": 199, "hidden": 48, "intermediate": 96, "layers": 3, "heads": 6, "kv_heads": 2, "context": 512}
FAMILIES = {
    "llama": Shape(family="llama", head_dim=8, rope=Rope(500.0), **COMMON),
    "qwen2": Shape(family="qwen2", head_dim=8, qkv_bias=True, tied=False, rope=Rope(1000.0), **COMMON),
    "qwen3": Shape(family="qwen3", head_dim=16, qk_norm=True, rope=Rope(1000.0), **COMMON),
}


def random_decoder(family: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Decoder:
    """Weights far larger than at a real initialisation, so that logits are spread and the top two are rarely close."""
    decoder = Decoder(FAMILIES[family], dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if name.endswith("norm") else 0.2 * noise)
    return decoder


def transformers_twin(decoder: Decoder, folder: Path):
    """The same weights in transformers, through an exported folder."""
    from transformers import AutoModelForCausalLM

    save_folder(decoder, None, folder)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
