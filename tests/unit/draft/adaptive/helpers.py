"""A toy target whose texts a drafter can learn, its captures, and a way to replay them."""

import torch
from torch import Tensor

from untail.draft.adaptive.data import Capture, Captures, Windows
from untail.draft.adaptive.loss import passes
from untail.draft.adaptive.model import DraftModel
from untail.engine.attention.varlen import VarlenAttention
from untail.engine.models.decoder import Decoder
from untail.engine.models.shape import Shape

TOY = Shape("llama", vocab=31, hidden=32, intermediate=64, layers=2, heads=4, kv_heads=2, head_dim=8, context=256)


def toy_target(seed: int = 0, shape: Shape = TOY) -> Decoder:
    """Greedy, it is far from uniform and its texts hardly repeat."""
    return Decoder(shape).initialise(torch.Generator().manual_seed(seed), std=0.3).requires_grad_(False)


def random_model(shape: Shape = TOY, seed: int = 0) -> DraftModel:
    """No weight of it is zero."""
    model = DraftModel(shape, "cpu", torch.float32)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=random))
    return model


def hidden_states(target: Decoder, ids_N: Tensor) -> Tensor:
    return target(ids_N, torch.arange(len(ids_N)), VarlenAttention([len(ids_N)]))


@torch.no_grad()
def capture(target: Decoder, length: int, seed: int = 0, prompt: int = 3) -> Capture:
    """Sampled from the target at temperature 1/2."""
    random = torch.Generator().manual_seed(seed)
    ids_N = torch.randint(target.shape.vocab, (prompt,), generator=random)
    while len(ids_N) < length:
        probs = (2 * target.logits(hidden_states(target, ids_N)[-1])).softmax(-1)
        ids_N = torch.cat((ids_N, torch.multinomial(probs, 1, generator=random)))
    return Capture(0, prompt - 1, ids_N, hidden_states(target, ids_N))


def captures_of(*captures: Capture, bound: int = 10**6) -> Captures:
    data = Captures(bound)
    data._take(list(captures))
    return data


def windows_of(*captures: Capture) -> Windows:
    """The whole of each."""
    return Windows(
        [c.rows for c in captures],
        torch.cat([c.ids_N[1:] for c in captures]),
        torch.cat([c.hidden_ND[:-1] for c in captures]),
        torch.cat([c.hidden_ND[1:] for c in captures]),
        torch.cat([c.first + torch.arange(c.rows) for c in captures]),
        torch.cat([torch.arange(c.rows) >= c.taught for c in captures]),
    )


@torch.no_grad()
def accepted_length(model: DraftModel, target: Decoder, captures: list[Capture], depth: int = 3) -> float:
    """Mean greedy drafts that equal the target's own choice, over all positions that a draft could begin at."""
    lengths = []
    for own in captures:
        guesses = passes(model, target, windows_of(own), depth - 1)
        wanted = target.logits(own.hidden_ND[1:]).argmax(-1)
        right = [(target.logits(guess).argmax(-1) == wanted).tolist() for guess in guesses]
        for begin in range(own.taught, own.rows - depth + 1):
            misses = (step for step in range(depth) if not right[step][begin + step])
            lengths.append(next(misses, depth))
    return sum(lengths) / len(lengths)
