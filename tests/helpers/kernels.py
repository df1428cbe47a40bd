"""What every GPU kernel must do, on whatever device runs it: a GPU, or Triton's interpreter on the CPU.

The reference is the plain decoder with SDPA and the host's sampler, in float32.
"""

from dataclasses import replace
from unittest.mock import patch

import torch

from untail.engine import sampler
from untail.engine.attention.base import operand_dtype
from untail.engine.attention.sdpa import PagedSdpa, Span, make_scratch
from untail.engine.attention.varlen import VarlenAttention
from untail.engine.blocks import BLOCK, blocks_for
from untail.engine.decode_state import DecodeState, Row
from untail.engine.graphs import DecodeGraphs
from untail.engine.models import decoder, product
from untail.engine.models.decoder import Decoder
from untail.engine.models.rope import rotate
from untail.engine.models.shape import Rope, Shape

COMMON = {"vocab": 150, "hidden": 32, "intermediate": 48, "layers": 2, "heads": 6, "kv_heads": 2, "head_dim": 16}
SHAPES = {
    "llama": Shape("llama", context=512, rope=Rope(500.0), **COMMON),
    "qwen2": Shape("qwen2", context=512, qkv_bias=True, tied=False, rope=Rope(500.0), **COMMON),
    "qwen3": Shape("qwen3", context=512, qk_norm=True, rope=Rope(500.0), **COMMON),
}
CONTEXTS = [199, 4, 32, 64, 130, 65, 15, 16]  # of the tokens that decode: edges of blocks and of splits among them
SPANS = [(1, 1), (1, 17), (1, 200), (5, 40), (33, 33), (20, 150)]  # (new tokens, context): decode, verify, fill in


def make_decoder(shape: Shape, device: str) -> Decoder:
    decoder = Decoder(shape, device).requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in decoder.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(1 + 0.1 * noise if name.endswith("norm") else 0.3 * noise)
    return decoder


def pair_of(shape: Shape, device: str, dtype: torch.dtype) -> tuple[Decoder, Decoder]:
    """In float32 and in half precision, with the same weights."""
    exact, half = make_decoder(shape, device), Decoder(shape, device, dtype).requires_grad_(False)
    for ours, theirs in zip(half.parameters(), exact.parameters(), strict=True):
        ours.copy_(theirs)
        theirs.copy_(ours)
    return exact, half


def make_kv(shape: Shape, blocks: int, device: str) -> torch.Tensor:
    size = (shape.layers, 2, blocks, BLOCK, shape.kv_heads, shape.head_dim)
    return torch.randn(size, generator=torch.Generator().manual_seed(1)).to(device)


def scattered(contexts: list[int], room: int = 0) -> list[list[int]]:
    """Blocks for each context (and `room` tokens more), in no order."""
    counts = [blocks_for(context + room) for context in contexts]
    blocks = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(2))
    return [part.tolist() for part in blocks.split(counts)]


def slots_of(spans: list[Span], device: str) -> torch.Tensor:
    return torch.tensor(
        [
            span.blocks[position // BLOCK] * BLOCK + position % BLOCK
            for span in spans
            for position in range(span.context - span.size, span.context)
        ],
        device=device,
    )


def check_attention(device: str, shape: Shape, given: list[tuple[int, int]]) -> None:
    """Any mix of decode, verification and fill-in equals SDPA, and so does a second launch over the same scratch."""
    from untail.engine.attention.triton_paged import TritonPaged

    blocks = scattered([context for _, context in given])
    spans = [Span(size, context, own) for (size, context), own in zip(given, blocks, strict=True)]
    slots, group = slots_of(spans, device), shape.heads // shape.kv_heads
    mine = make_kv(shape, sum(map(len, blocks)), device)
    theirs = mine.clone()
    ours = TritonPaged(mine, slots, spans, group)
    reference = PagedSdpa(theirs, make_scratch(theirs), slots, spans, group)
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        q, k, v = (
            torch.randn(len(slots), heads, shape.head_dim, generator=generator).to(device)
            for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
        )
        torch.testing.assert_close(ours(1, q, k, v), reference(1, q, k, v), atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(mine, theirs)


def make_rows(contexts: list[int], room: int) -> list[Row]:
    return [
        Row(7 * number + 3, context, 1000 * number + 1, room, blocks, stop_ids=(5, 140))
        for number, (context, blocks) in enumerate(zip(contexts, scattered(contexts, room + 1), strict=True))
    ]


def make_graphs(decoder: Decoder, kv: torch.Tensor, rows: list[Row], steps: int) -> DecodeGraphs:
    """Over as many rows as the bucket that holds these."""
    from untail.engine.triton_kernels import TritonKernels

    kernels = TritonKernels(decoder)
    state = DecodeState.make(8, blocks_for(decoder.shape.context), steps, kv.device)
    state.write(dict(enumerate(rows)))
    return DecodeGraphs(state, lambda count, width: kernels.step(kv, None, state, count, width))


def bucket(rows: list[Row]) -> int:
    return next(size for size in (1, 2, 4, 8) if size >= len(rows))


def reference_hidden(decoder: Decoder, kv: torch.Tensor, rows: list[Row]) -> torch.Tensor:
    """Of each row's newest token, whose key and value are written; what the output head sees."""
    order = sorted(range(len(rows)), key=lambda number: rows[number].position)
    spans = [Span(1, rows[n].position + 1, rows[n].blocks[: blocks_for(rows[n].position + 1)]) for n in order]
    column = lambda values: torch.tensor(values, device=kv.device)
    group = decoder.shape.heads // decoder.shape.kv_heads
    attention = PagedSdpa(kv, make_scratch(kv), slots_of(spans, str(kv.device)), spans, group)
    hidden = decoder(column([rows[n].token for n in order]), column([rows[n].position for n in order]), attention)
    return hidden[torch.tensor(order).argsort()]


def reference_logits(decoder: Decoder, kv: torch.Tensor, rows: list[Row]) -> torch.Tensor:
    return decoder.logits(reference_hidden(decoder, kv, rows))


def slot_of(row: Row) -> tuple[int, int]:
    return row.blocks[row.position // BLOCK], row.position % BLOCK


@torch.inference_mode()
def check_step(device: str, shape: Shape, kind: str, count: int, **options) -> None:
    """Logits, hidden states, keys, values, the drawn token and all its figures equal the reference's."""
    from untail.engine import fused

    decoder, rows = make_decoder(shape, device), make_rows(CONTEXTS[:count], 4)
    kv = make_kv(shape, 1 + max(max(row.blocks) for row in rows), device)
    theirs = kv.clone()
    state = DecodeState.make(count, 16, 1, device)
    state.write(dict(enumerate(rows)))
    chained = kv.is_cuda and torch.cuda.get_device_capability()[0] >= 9
    kept = torch.zeros(kv.shape[2], BLOCK, shape.hidden, device=device)
    step = getattr(fused, kind)(decoder, kv, state, count, chained, kept=kept, **options)
    step()
    hidden = reference_hidden(decoder, theirs, rows)
    for number, row in enumerate(rows):
        torch.testing.assert_close(kept[slot_of(row)], hidden[number], atol=1e-4, rtol=1e-4)
        kept[slot_of(row)] = 0
    assert not kept.any()
    logits = decoder.logits(hidden)
    torch.testing.assert_close(step.logits, logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(kv, theirs, atol=1e-4, rtol=1e-4)
    policy = logits.log_softmax(-1)
    probs = policy.exp()
    column = lambda values: torch.tensor(values, device=device)
    uniform = sampler.uniform(column([row.stream for row in rows]), column([row.position + 1 for row in rows]))
    tokens = sampler.draw(probs, uniform)
    torch.testing.assert_close(state.tokens_out[0], tokens)
    chosen = policy.gather(1, tokens[:, None])[:, 0]
    expected = (chosen, chosen, -(probs * policy).sum(-1), probs[:, [5, 140]].sum(-1))
    torch.testing.assert_close(state.figures_out[0], torch.stack(expected, 1), atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def check_half_step(device: str, shape: Shape, kind: str, count: int, dtype: torch.dtype, wide: int = 2048) -> None:
    """Logits of a step in half precision are near those of the same weights in float32."""
    from untail.engine import fused

    exact, half = pair_of(shape, device, dtype)
    rows = make_rows(CONTEXTS[:count], 4)
    theirs = make_kv(shape, 1 + max(max(row.blocks) for row in rows), device)
    state = DecodeState.make(count, 16, 1, device)
    state.write(dict(enumerate(rows)))
    chained = theirs.is_cuda and torch.cuda.get_device_capability()[0] >= 9
    with patch.object(product, "WIDE", wide):
        step = getattr(fused, kind)(half, theirs.to(operand_dtype(dtype)), state, count, chained)
        step()
    logits = reference_logits(exact, theirs, rows)
    assert (step.logits - logits).norm() < 0.02 * logits.norm()


def check_gradients(device: str, dtype: torch.dtype) -> None:
    """Norm and gate, forward and backward, equal torch's on the same rounded operands in float32."""
    from untail.engine.kernels import gradients

    random = torch.Generator().manual_seed(3)
    make = lambda *size: torch.randn(size, generator=random).to(device)
    x, gain, weight, slope = make(700, 48), 1 + 0.1 * make(48).to(dtype), (0.15 * make(80, 48)).to(dtype), make(700, 40)

    def both(normed, gated, *given):
        leaves = [one.clone().requires_grad_() for one in given]
        hidden, gain, weight = leaves
        out = gated(normed(hidden, gain), weight)
        return out.float(), *torch.autograd.grad((out.float() * slope).sum(), leaves)

    def plain_gate(normed, weight):
        gate, up = (normed @ weight.T).chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    plain_norm = lambda hidden, gain: torch.nn.functional.rms_norm(hidden, gain.shape, gain, 1e-5).to(dtype).float()
    ours = both(lambda hidden, gain: gradients.norm(hidden, gain, 1e-5, dtype), gradients.gated, x, gain, weight)
    theirs = both(plain_norm, plain_gate, x, gain.float(), weight.float())
    for one, other, kind in zip(ours, theirs, (torch.float32, torch.float32, dtype, dtype), strict=True):
        assert one.dtype == kind
        assert (one.float() - other).norm() < (1e-5 if dtype == torch.float32 else 0.01) * other.norm()


def check_halves(device: str) -> None:
    """What rounding leaves is kept: two halves of bf16 have 16 bits, of any number of values and of a norm."""
    from untail.engine.kernels import elementwise

    x = torch.randn(37, 48, generator=torch.Generator().manual_seed(6)).to(device)
    out = torch.empty(74, 48, device=device, dtype=torch.bfloat16)
    gain = torch.ones(48, device=device, dtype=torch.bfloat16)
    delta = torch.cat((x, 2 * x))
    elementwise.launch_norm(hidden := x.clone(), gain, out, 1e-5, delta)
    torch.testing.assert_close(hidden, 4 * x)
    normed = torch.nn.functional.rms_norm(4 * x, (48,), eps=1e-5)
    for (high, low), exact in ((elementwise.halves(x, torch.bfloat16), x), (out.float().chunk(2), normed)):
        torch.testing.assert_close(high.float() + low.float(), exact, atol=1e-6, rtol=2.0**-13)


def check_operands(device: str, dtype: torch.dtype, head_dim: int = 16) -> None:
    """Queries, keys and values, and the gradients through them, equal the plain decoder's in float32."""
    from untail.engine.kernels import gradients

    shape = replace(SHAPES["qwen2"], head_dim=head_dim)
    decoder = make_decoder(shape, device)
    layer, tokens = decoder._layers[0], 37
    random = torch.Generator().manual_seed(4)
    make = lambda *size: torch.randn(size, generator=random).to(device)
    cos, sin = decoder.rope_table[torch.arange(3, 3 + tokens)].unbind(1)
    normed, slopes = make(tokens, shape.hidden), [make(tokens, n, shape.head_dim) for n in (6, 2, 2)]
    given = [one.detach().to(dtype).float() for one in (normed, layer.qkv, layer.qkv_bias)]

    def through(operands, kinds):
        leaves = [one.to(kind).requires_grad_() for one, kind in zip(given, kinds, strict=True)]
        found = operands(*leaves)
        loss = sum((one.float() * slope).sum() for one, slope in zip(found, slopes, strict=True))
        return *found, *torch.autograd.grad(loss, leaves)

    def plain(normed, weight, bias):
        q, k, v = (normed @ weight.T + bias).unflatten(1, (-1, shape.head_dim)).split((6, 2, 2), dim=1)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    ours = through(lambda *x: gradients.attention_operands(*x, cos, sin, shape), (torch.float32, dtype, dtype))
    theirs = through(plain, [torch.float32] * 3)
    assert {one.dtype for one in ours[:3]} == {operand_dtype(dtype)}
    for one, other in zip(ours, theirs, strict=True):
        assert (one.float() - other).norm() < (1e-5 if dtype == torch.float32 else 0.01) * other.norm()


def check_training_pass(device: str, shape: Shape, dtype: torch.dtype, recompute: bool = False) -> None:
    """Logits of a decoder in half precision, through its kernels, and all its gradients are near those in float32."""
    from untail.engine.kernels import gradients

    exact, half = pair_of(shape, device, dtype)
    random = torch.Generator().manual_seed(5)
    ids, positions = torch.randint(shape.vocab, (30,), generator=random).to(device), torch.arange(30, device=device)
    slope = torch.randn(30, shape.vocab, generator=random).to(device)

    def passed(model: Decoder) -> tuple[torch.Tensor, ...]:
        model.requires_grad_(True)
        logits = model.logits(model(ids, positions, VarlenAttention([30]), recompute))
        return logits, *torch.autograd.grad((logits * slope).sum(), list(model.parameters()))

    theirs = passed(exact)
    with patch.object(decoder, "_kernels_for", lambda weight: gradients):
        ours = passed(half)
    for one, other, name in zip(ours, theirs, ["logits", *dict(exact.named_parameters())], strict=True):
        error = (one.float() - other).norm() / other.norm()
        assert error < (0.005 if dtype == torch.float16 else 0.03), f"{name}: {error}"


def check_temperatures(device: str) -> None:
    """Greedy takes the best token with behaviour log-prob 0; other temperatures are drawn from and reported as such."""
    shape = SHAPES["llama"]
    decoder, given = make_decoder(shape, device), make_rows(CONTEXTS[:4], 4)
    kv = make_kv(shape, 1 + max(max(row.blocks) for row in given), device)
    temperatures = [(1.0, 0.0), (0.7, 0.7), (1.0, 2.0), (1.5, 1.0)]  # the policy's, the behaviour's
    rows = [row._replace(policy_temperature=p, temperature=b) for row, (p, b) in zip(given, temperatures, strict=True)]
    drawn = make_graphs(decoder, kv, rows, 1).launch(4).wait()
    with torch.inference_mode():
        logits = reference_logits(decoder, kv.clone(), rows).cpu()
    assert drawn.tokens[0, 0] == logits[0].argmax()
    assert drawn.figures[0, 0, 1] == 0
    for number, (policy_T, behaviour_T) in enumerate(temperatures):
        token = drawn.tokens[0, number]
        policy = (logits[number] / policy_T).log_softmax(-1)
        figures = torch.from_numpy(drawn.figures[0, number])
        torch.testing.assert_close(figures[0], policy[token], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(figures[2], -(policy.exp() * policy).sum(), atol=1e-4, rtol=1e-4)
        if behaviour_T:
            behaviour = (logits[number] / behaviour_T).log_softmax(-1)
            torch.testing.assert_close(figures[1], behaviour[token], atol=1e-4, rtol=1e-4)
            column = lambda value: torch.tensor([value])
            uniform = sampler.uniform(column(rows[number].stream), column(rows[number].position + 1))
            assert sampler.draw(behaviour.exp()[None], uniform).item() == token


def check_launches(device: str, count: int, steps: int) -> None:
    """Several steps a launch draw what single steps draw; rows stop at their budget or stop id and touch nothing more;
    two launches under way give the same as one after the other."""
    decoder, budget = make_decoder(SHAPES["llama"], device), 2 * steps + 1
    rows = make_rows(CONTEXTS[:count], budget)
    rows = [row._replace(left=min(budget, 2 + 3 * number)) for number, row in enumerate(rows)]
    start = make_kv(decoder.shape, 1 + max(max(row.blocks) for row in rows), device)

    def run(sizes: list[int], ahead: bool) -> tuple[list[list[int]], torch.Tensor]:
        kv = start.clone()
        graphs = make_graphs(decoder, kv, rows, steps)
        launches, drawn = [], []
        for size in sizes:
            launches.append(graphs.launch(bucket(rows), size))
            if not ahead:
                drawn.append(launches[-1].wait().tokens.copy())
        drawn = [launch.wait().tokens for launch in launches] if ahead else drawn
        return [[int(t) for part in drawn for t in part[:, n] if t >= 0] for n in range(count)], kv

    single, kv_single = run([1] * budget, ahead=False)
    several, kv_several = run([steps, steps, 1], ahead=True)
    assert single == several
    torch.testing.assert_close(kv_single, kv_several)
    for row, tokens in zip(rows, single, strict=True):
        stopped = [number for number, token in enumerate(tokens) if token in row.stop_ids]
        assert len(tokens) == (stopped[0] + 1 if stopped else row.left)


@torch.inference_mode()
def check_width(device: str, shape: Shape, width: int) -> None:
    """Several tokens of a row in one step draw what they draw one after another, and write the same keys; a row with
    fewer of them writes nothing beyond."""
    from untail.engine.fused import PlainStep

    decoder, rows = make_decoder(shape, device), make_rows(CONTEXTS[:3], width)
    kv = make_kv(shape, 1 + max(max(row.blocks) for row in rows), device)
    theirs, drafts = kv.clone(), [[11, 12, 13, 14, 15, 16, 17][: width - 1 - number % 2] for number in range(3)]
    tokens = [[row.token, *its] for row, its in zip(rows, drafts, strict=True)]
    state = DecodeState.make(3 * width, 16, 1, device)
    state.write(
        {
            number * width + place: row._replace(token=token, position=row.position + place)
            for number, row in enumerate(rows)
            for place, token in enumerate(tokens[number])
        }
    )
    state.write_tables({number: row.blocks for number, row in enumerate(rows)})
    chained = kv.is_cuda and torch.cuda.get_device_capability()[0] >= 9
    step = PlainStep(decoder, kv, state, 3, chained, width)
    step()
    for number, row in enumerate(rows):
        for place, token in enumerate(tokens[number]):
            one = row._replace(token=token, position=row.position + place)
            logits = reference_logits(decoder, theirs, [one])
            at = number * width + place
            torch.testing.assert_close(step.logits[at], logits[0], atol=1e-4, rtol=1e-4)
            column = lambda value: torch.tensor([value], device=device)
            uniform = sampler.uniform(column(row.stream), column(one.position + 1))
            assert state.tokens_out[0, at] == sampler.draw(logits.softmax(-1), uniform)[0]
    torch.testing.assert_close(kv, theirs, atol=1e-4, rtol=1e-4)
