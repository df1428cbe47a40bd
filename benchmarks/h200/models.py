"""The shapes that are measured, with random weights."""

import torch

from untail.engine.models.decoder import Decoder
from untail.engine.models.shape import Rope, Shape

SHAPES = {
    "135m": Shape("llama", 49152, 576, 1536, 30, 9, 3, 64, 8192, rope=Rope(1e5)),
    "1.5b": Shape("qwen2", 151936, 1536, 8960, 28, 12, 2, 128, 8192, qkv_bias=True, rope=Rope(1e6)),
    "7b": Shape("qwen2", 152064, 3584, 18944, 28, 28, 4, 128, 8192, tied=False, qkv_bias=True, rope=Rope(1e6)),
}
BYTES_PER_SECOND = 4.2e12  # what the GPU reads


def random_decoder(shape: Shape, device: str = "cuda", dtype: torch.dtype = torch.bfloat16) -> Decoder:
    decoder = Decoder(shape, device, dtype).requires_grad_(False)
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in decoder.named_parameters():
        if name.endswith("norm"):
            parameter.normal_(1.0, 0.1, generator=generator)
        else:
            parameter.normal_(0.0, 0.02, generator=generator)
    return decoder


def read_limit(decoder: Decoder) -> float:
    """Steps per second if reading the weights once were all."""
    read = [p for name, p in decoder.named_parameters() if decoder.shape.tied or name != "embed"]
    return BYTES_PER_SECOND / sum(p.numel() * p.element_size() for p in read)


def read_limit_of(shape: Shape) -> float:
    return read_limit(Decoder(shape, "meta", torch.bfloat16))
