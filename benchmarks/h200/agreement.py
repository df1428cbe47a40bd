"""Teacher-forced greedy agreement: graphs and eager kernels against SDPA, every disagreement beside its gap.

python benchmarks/h200/agreement.py MODEL     (a name or path that untail loads, for instance a GGUF file)

The texts are questions and the model's own answers, greedy ones, and some sampled at temperature 1 as training samples
them; at each position of an answer each way says its best token. In bf16, and in fp16. A disagreement is a near tie if
the same weights in float32 hold the two tokens less than NEAR apart.
"""

import json
import sys

import torch

from untail.config import EngineConfig
from untail.engine.attention.base import operand_dtype
from untail.engine.attention.sdpa import PagedSdpa, Span, make_scratch
from untail.engine.attention.triton_paged import TritonPaged
from untail.engine.blocks import BLOCK, blocks_for
from untail.engine.decode_state import DecodeState, Row
from untail.engine.engine import Engine
from untail.engine.graphs import DecodeGraphs
from untail.engine.models.decoder import Decoder
from untail.engine.models.load import LoadedModel, load_model
from untail.engine.triton_kernels import TritonKernels
from untail.types import SamplingParams, SequenceSpec

TEXTS, LENGTH = 32, 512
QUESTION = "A shop sells {} apples a day and {} pears. How many pieces of fruit is that in a week? Think step by step."
NEAR = 0.25  # of a logit: bf16 steps are 0.125 between 16 and 32


def make_texts(model: LoadedModel, temperature: float) -> tuple[list[list[int]], torch.Tensor]:
    """The texts, all of LENGTH tokens, and at which positions [texts, LENGTH] an answer's next token is said."""
    engine = Engine(model.decoder, EngineConfig(kv_gib=2))
    ends = SamplingParams(temperature=temperature, stop_ids=model.tokenizer.eos_ids)
    texts = [model.tokenizer.chat(QUESTION.format(37 * n + 11, 13 * n + 2)) for n in range(TEXTS)]
    counted = torch.zeros(TEXTS, LENGTH, dtype=torch.bool, device="cuda")
    begins = [len(text) for text in texts]
    for number, text in enumerate(texts):
        engine.add(SequenceSpec(str(number), tuple(text), LENGTH - len(text), number, ends, chunk=LENGTH))
    while engine.has_work:
        for name, chunk in engine.step():
            texts[int(name)] += chunk.tokens
    for number, text in enumerate(texts):
        counted[number, begins[number] - 1 : len(text) - 1] = True
        text += [text[-1]] * (LENGTH - len(text))
    return texts, counted


def pool(decoder: Decoder) -> torch.Tensor:
    shape = decoder.shape
    size = (shape.layers, 2, TEXTS * blocks_for(LENGTH), BLOCK, shape.kv_heads, shape.head_dim)
    return torch.zeros(size, dtype=operand_dtype(decoder.embed.dtype), device="cuda")


def blocks_of(number: int) -> list[int]:
    return list(range(number * blocks_for(LENGTH), (number + 1) * blocks_for(LENGTH)))


def all_at_once(decoder: Decoder, texts: list[list[int]], is_triton: bool) -> torch.Tensor:
    """Logits [texts, LENGTH, V] of whole texts in one forward pass."""
    kv, group = pool(decoder), decoder.shape.heads // decoder.shape.kv_heads
    spans = [Span(LENGTH, LENGTH, blocks_of(number)) for number in range(TEXTS)]
    where = torch.arange(LENGTH, device="cuda").repeat(TEXTS)
    slots = torch.arange(TEXTS * LENGTH, device="cuda")
    attention = (
        TritonPaged(kv, slots, spans, group) if is_triton else PagedSdpa(kv, make_scratch(kv), slots, spans, group)
    )
    hidden = decoder(torch.tensor(texts, device="cuda").flatten(), where, attention)
    return decoder.logits(hidden).float().unflatten(0, (TEXTS, LENGTH))


def one_by_one(decoder: Decoder, texts: list[list[int]], rows: int) -> torch.Tensor:
    """Best tokens [rows, LENGTH] of the first texts, through the graph for so many rows."""
    kv, kernels = pool(decoder), TritonKernels(decoder)
    state = DecodeState.make(rows, blocks_for(LENGTH), 1, "cuda")
    graphs = DecodeGraphs(state, lambda count, width: kernels.step(kv, None, state, count, width))
    best = torch.empty(rows, LENGTH, dtype=torch.int64)
    for place in range(LENGTH):
        given = [Row(texts[n][place], place, 0, 1, blocks_of(n), temperature=0.0) for n in range(rows)]
        state.write(dict(enumerate(given)))
        best[:, place] = torch.from_numpy(graphs.launch(rows).wait().tokens[0])
    return best.cuda()


def compared(
    best: torch.Tensor, reference: torch.Tensor, exact: torch.Tensor, counted: torch.Tensor
) -> dict[str, float]:
    """Over the texts that `best` has."""
    reference, exact, counted = reference[: len(best)], exact[: len(best)], counted[: len(best)]
    differs = (best != reference) & counted
    logits = exact[differs]
    pick = lambda tokens: logits.gather(-1, tokens[differs][:, None])[:, 0]
    gaps = (pick(best) - pick(reference)).abs()
    return {
        "positions": int(counted.sum()),
        "agreement with SDPA": 1 - (differs.sum() / counted.sum()).item(),
        "largest gap": gaps.max().item() if len(gaps) else 0.0,
        "disagreements that are no near ties": int((gaps > NEAR).sum()),
    }


@torch.inference_mode()
def compare(model: LoadedModel, temperature: float, about: dict[str, object]) -> None:
    decoder, (texts, counted) = model.decoder, make_texts(model, temperature)
    exact_decoder = Decoder(decoder.shape, "cuda", torch.float32)
    for mine, theirs in zip(exact_decoder.parameters(), decoder.parameters(), strict=True):
        mine.copy_(theirs)
    exact = all_at_once(exact_decoder, texts, is_triton=False)
    reference = all_at_once(decoder, texts, is_triton=False).argmax(-1)
    ways = {
        "float32": lambda: exact.argmax(-1),
        "Triton, eager": lambda: all_at_once(decoder, texts, is_triton=True).argmax(-1),
        **{f"graph of {rows} rows": lambda rows=rows: one_by_one(decoder, texts, rows) for rows in (1, 2, 8, 32)},
    }
    for way, said in ways.items():
        print(json.dumps({**about, "way": way, **compared(said(), reference, exact, counted)}), flush=True)


def main(name: str) -> None:
    for dtype in ("bfloat16", "float16"):
        model = load_model(name, "cuda", dtype)
        for temperature in (0.0, 1.0):
            compare(model, temperature, {"dtype": dtype, "texts": "sampled" if temperature else "greedy"})


if __name__ == "__main__":
    main(sys.argv[1])
