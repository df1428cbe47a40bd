"""One decode step, one token for each sequence: the decoder of models/decoder.py in few kernels.

For a few sequences five fused kernels a layer (`FusedStep`), for many, or several tokens of each, a library's matrix
products and one kernel between each two (`PlainStep`).

Few sequences wait for memory: their products read a copy of the residual stream that is rounded before the norm, where
others, and the learner, round after it.

Invariant: a step reads ids, positions, block tables and temperatures from the state on the device, writes keys, values,
the drawn tokens and the moved-on state there, and asks the host nothing; so it can be captured as it is. Fused kernels
are chained where the GPU can (kernels/chain.py). Weights are read at their own addresses: an update in place needs no
new capture.

Pre: what came before a fused step is over when it begins, as it is where every step is a graph of its own: its
attention reads positions and earlier keys before it waits for the kernel before it.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from untail.engine.attention.base import operand_dtype
from untail.engine.attention.triton_paged import Scratch, decode_attention, rows_for, splits_for, supports
from untail.engine.blocks import BLOCK
from untail.engine.decode_state import DecodeState
from untail.engine.kernels.elementwise import keep_kernel, launch_norm, rope_kv_kernel, silu_kernel
from untail.engine.kernels.linear import gate_up_kernel, qkv_kernel, residual_kernel
from untail.engine.kernels.sample import RUN, draw_kernel, head_kernel, runs_kernel
from untail.engine.models.decoder import Decoder
from untail.engine.models.product import at_least_float32, fine_dtype, product_into
from untail.engine.models.shape import Shape
from untail.engine.sequence import STOPS

MOST_GAINS = 2048  # of a norm, that a program holds


class Tile(NamedTuple):
    """How one product is cut: weight rows of a program, inner block, warps, blocks in flight."""

    P: int
    block_k: int
    warps: int = 4
    early: int = 2


class Tiling(NamedTuple):
    qkv: Tile
    out: Tile
    gate_up: Tile
    down: Tile
    head: Tile
    attention: tuple[int, int]  # keys at once, warps


def power_of_two_in(size: int, most: int) -> int:
    """The largest power of two that divides the size, `most` at most."""
    return min(size & -size, most)


def default_tiling(shape: Shape) -> Tiling:
    """Measured on an H200: small programs with few weight rows, since more of them hide more latency."""
    small, large = shape.hidden <= 1024, shape.hidden >= 3072
    is_medium = not small and not large
    hidden, inner = power_of_two_in(shape.hidden, 256), power_of_two_in(shape.intermediate, 256)
    pairs = power_of_two_in(shape.head_dim // 2, 2)
    return Tiling(
        qkv=Tile(pairs, power_of_two_in(shape.hidden, 512), 2, 2)
        if is_medium
        else Tile(pairs, hidden, 1, 8 if small else 2),
        out=Tile(1, power_of_two_in(shape.q_size, 512), 1, 2)
        if is_medium
        else Tile(power_of_two_in(shape.hidden, 4), power_of_two_in(shape.q_size, 256), 1, 9),
        gate_up=Tile(
            power_of_two_in(shape.intermediate, 4 if small else 2), hidden, 1, 9 if small else 4 if large else 2
        ),
        down=Tile(power_of_two_in(shape.hidden, 2), inner, 1, 6 if small else 8 if large else 4),
        head=Tile(RUN, power_of_two_in(shape.hidden, 64), *((16, 6) if large else (8, 4))),
        attention=(128, 8) if shape.head_dim <= 64 else (64, 8 if is_medium else 4),
    )


class FusedStep:
    def __init__(self, decoder: Decoder, kv: Tensor, state: DecodeState, rows: int, chained: bool,
                 tiling: Tiling | None = None, splits: int | None = None, kept: Tensor | None = None):  # fmt: skip
        """For `rows` sequences, the first of the state's. `kv` is [layers, 2, blocks, BLOCK, K, D]; hidden states are
        kept in `kept` [blocks, BLOCK, hidden], if that is there."""
        self.decoder, self.kv, self.state, self.rows, self.chained = decoder, kv, state, rows, chained
        shape = decoder.shape
        assert can_fuse(shape)
        assert rows in (1, 2, 4)
        device, dtype = kv.device, decoder.embed.dtype
        self.tiling, self.kept = tiling or default_tiling(shape), kept
        self.hidden = torch.empty(rows, shape.hidden, device=device, dtype=at_least_float32(dtype))
        self.rounded = torch.empty_like(self.hidden, dtype=dtype)
        self.q = torch.empty(rows, shape.q_size, device=device, dtype=kv.dtype)
        self.attended = torch.empty_like(self.q)
        self.active = torch.empty(rows, shape.intermediate, device=device, dtype=dtype)
        self.logits = torch.empty(rows, shape.vocab, device=device)
        self.run_count = -(-shape.vocab // RUN)
        self.runs = torch.empty(rows, 4, self.run_count, device=device)
        group = shape.heads // shape.kv_heads
        self.splits = splits or splits_for(rows * shape.kv_heads, state.tables.shape[1] * BLOCK, device)
        self.scratch = Scratch.make(rows, shape.kv_heads, self.splits, rows_for(1, group), shape.head_dim, device)

    def __call__(self) -> None:
        for number in range(self.decoder.shape.layers):
            self._layer(number)
        if self.kept is not None:
            launch_keep(self.decoder, self.hidden, self.kept, self.state, 1, self.chained)
        self._head()

    def _layer(self, number: int) -> None:
        decoder, state, shape = self.decoder, self.state, self.decoder.shape
        layer, (keys, values) = decoder._layers[number], self.kv[number]
        seen, residual = (decoder.embed, decoder.embed) if number == 0 else (self.rounded, self.hidden)
        bias = layer.qkv if layer.qkv_bias is None else layer.qkv_bias
        tile = self.tiling.qkv
        qkv_kernel[(shape.heads + 2 * shape.kv_heads) * (shape.head_dim // 2 // tile.P),](
            seen, state.ids, layer.input_norm, layer.qkv, bias, decoder.rope_table, state.positions, state.tables,
            state.live, self.q, keys, values, shape.norm_eps, state.tables.stride(0),
            K=shape.hidden, HEADS=shape.heads, KV_HEADS=shape.kv_heads, HEAD=shape.head_dim, PAGE=BLOCK,
            GATHER=number == 0, BIAS=layer.qkv_bias is not None, GAINS=self._gains(tile),
            **self._options(tile, shape.hidden),
        )  # fmt: skip
        decode_attention(
            self.q, keys, values, self.attended, state.tables, state.positions[: self.rows], self.scratch, self.splits,
            self.chained, *self.tiling.attention, early=True,
        )  # fmt: skip
        self._residual(self.attended, layer.out, residual, self.tiling.out, gather=number == 0)
        tile = self.tiling.gate_up
        gate_up_kernel[shape.intermediate // tile.P,](
            self.rounded, layer.post_norm, layer.gate_up, self.active, shape.norm_eps,
            GAINS=self._gains(tile), K=shape.hidden, N=shape.intermediate, **self._options(tile, shape.hidden),
        )  # fmt: skip
        self._residual(self.active, layer.down, self.hidden, self.tiling.down, gather=False)

    def _residual(self, x: Tensor, weight: Tensor, residual: Tensor, tile: Tile, gather: bool) -> None:
        residual_kernel[weight.shape[0] // tile.P,](
            x, weight, residual, self.state.ids, self.hidden, self.rounded,
            K=weight.shape[1], N=weight.shape[0], GATHER=gather, **self._options(tile, weight.shape[1]),
        )  # fmt: skip

    def _head(self) -> None:
        state, shape, tile = self.state, self.decoder.shape, self.tiling.head
        options = self._options(tile, shape.hidden)
        del options["P"]
        head_kernel[self.run_count,](
            self.rounded, self.decoder.norm, self.decoder.output_weight, state.policy_T, state.behaviour_T, self.logits,
            self.runs, shape.norm_eps, self.run_count, K=shape.hidden, V=shape.vocab, RUN=RUN, **options,
        )  # fmt: skip
        launch_draw(self.logits, self.runs, state, self.rows, self.chained)

    def _gains(self, tile: Tile) -> int:
        """Blocks of a norm's gain that are sent for early, as far as registers go."""
        return min(-(-self.decoder.shape.hidden // tile.block_k), MOST_GAINS // tile.block_k)

    def _options(self, tile: Tile, K: int) -> dict[str, Any]:
        return dict(
            M=self.rows, P=tile.P, BLOCK_K=tile.block_k, EARLY=min(tile.early, -(-K // tile.block_k)),
            CHAINED=self.chained, num_warps=tile.warps, **pdl(self.chained),
        )  # fmt: skip


@dataclass
class Workspace:
    """What lies between the kernels of a step, for so many tokens; one step after another may use the same. What leaves
    a product is float32; what the products around attention take and give is in `halves`, rows of which lie after the
    high ones."""

    tokens: int
    halves: int
    hidden: Tensor
    normed: Tensor
    qkv: Tensor
    q: Tensor
    attended: Tensor
    delta: Tensor
    gate_up: Tensor
    active: Tensor
    logits: Tensor
    runs: Tensor

    @classmethod
    def make(cls, decoder: Decoder, tokens: int) -> "Workspace":
        shape, dtype, device = decoder.shape, decoder.embed.dtype, decoder.embed.device
        exact, halves = at_least_float32(dtype), 1 if fine_dtype(dtype, shape.hidden) == dtype else 2
        make = lambda size, kind, times=1: torch.empty(times * tokens, size, device=device, dtype=kind)
        return cls(
            tokens,
            halves,
            hidden=make(shape.hidden, exact),
            normed=make(shape.hidden, dtype, halves),
            qkv=make(shape.q_size + 2 * shape.kv_size, exact, halves),
            q=make(shape.q_size, operand_dtype(dtype)),
            attended=make(shape.q_size, dtype, halves),
            delta=make(shape.hidden, exact, halves),
            gate_up=make(2 * shape.intermediate, exact),
            active=make(shape.intermediate, dtype),
            logits=make(shape.vocab, exact),
            runs=torch.empty(tokens, 4, -(-shape.vocab // RUN), device=device),
        )


class PlainStep:
    def __init__(self, decoder: Decoder, kv: Tensor, state: DecodeState, rows: int, chained: bool, width: int = 1,
                 space: Workspace | None = None, splits: int | None = None,
                 kept: Tensor | None = None):  # fmt: skip
        """`width` tokens of each of the first `rows` sequences, which lie side by side in the state."""
        self.decoder, self.kv, self.state, self.chained = decoder, kv, state, chained
        self.rows, self.width, self.tokens = rows, width, rows * width
        shape = decoder.shape
        assert supports(shape.head_dim)
        self.kept = kept
        space = space or Workspace.make(decoder, self.tokens)
        self.hidden, self.q, self.gate_up, self.active, self.logits, self.runs = (
            whole[: self.tokens]
            for whole in (space.hidden, space.q, space.gate_up, space.active, space.logits, space.runs)
        )
        self.normed, self.qkv, self.attended, self.delta = (
            whole[: space.halves * self.tokens] for whole in (space.normed, space.qkv, space.attended, space.delta)
        )
        group = shape.heads // shape.kv_heads
        self.splits = splits or splits_for(rows * shape.kv_heads, state.tables.shape[1] * BLOCK, kv.device)
        self.scratch = Scratch.make(
            rows, shape.kv_heads, self.splits, rows_for(width, group), shape.head_dim, kv.device
        )

    def __call__(self) -> None:
        decoder, state, tokens = self.decoder, self.state, self.tokens
        self.hidden.copy_(decoder.embed[state.ids[:tokens]])
        for number in range(decoder.shape.layers):
            self._layer(number)
        self._norm(decoder.norm, self.normed[:tokens])
        if self.kept is not None:
            launch_keep(decoder, self.hidden, self.kept, state, self.width, chained=False)
        product_into(self.logits, self.normed[:tokens], decoder.output_weight)
        count = self.runs.shape[-1]
        runs_kernel[tokens, -(-count // 16)](
            self.logits, state.policy_T, state.behaviour_T, self.runs, count,
            V=decoder.shape.vocab, RUN=RUN, RUNS=16, CHAINED=False, num_warps=4,
        )  # fmt: skip
        launch_draw(self.logits, self.runs, state, tokens, self.chained)

    def _layer(self, number: int) -> None:
        decoder, state, shape = self.decoder, self.state, self.decoder.shape
        layer, (keys, values) = decoder._layers[number], self.kv[number]
        self._norm(layer.input_norm, self.normed)
        product_into(self.qkv, self.normed, layer.qkv)
        self._rope(number)
        decode_attention(
            self.q, keys, values, self.attended, state.tables, state.positions[: self.tokens], self.scratch,
            self.splits, self.chained, width=self.width,
        )  # fmt: skip
        product_into(self.delta, self.attended, layer.out)
        self._norm(layer.post_norm, self.normed[: self.tokens], self.delta)
        product_into(self.gate_up, self.normed[: self.tokens], layer.gate_up)
        silu_kernel[self.tokens, -(-shape.intermediate // 2048)](
            self.gate_up, self.active, self.active, N=shape.intermediate, BLOCK=2048, KEEP=False, CHAINED=False,
            num_warps=8,
        )  # fmt: skip
        product_into(self.hidden, self.active, layer.down, add=True)

    def _rope(self, number: int) -> None:
        decoder, state, shape = self.decoder, self.state, self.decoder.shape
        layer, (keys, values) = decoder._layers[number], self.kv[number]
        has_bias, has_norms = layer.qkv_bias is not None, layer.q_norm is not None
        bias, *gains = (self.qkv if one is None else one for one in (layer.qkv_bias, layer.q_norm, layer.k_norm))
        rope_kv_kernel[self.tokens, shape.heads + 2 * shape.kv_heads](
            self.qkv, bias, *gains, decoder.rope_table, state.positions, state.tables, state.live, self.q, keys,
            values, shape.norm_eps, state.tables.stride(0), self.tokens,
            HEADS=shape.heads, KV_HEADS=shape.kv_heads, HEAD=shape.head_dim, PAGE=BLOCK, WIDTH=self.width,
            TWICE=len(self.qkv) > self.tokens, BIAS=has_bias, QK_NORM=has_norms, CHAINED=False, num_warps=1,
        )  # fmt: skip

    def _norm(self, gain: Tensor, out: Tensor, delta: Tensor | None = None) -> None:
        launch_norm(self.hidden, gain, out, self.decoder.shape.norm_eps, delta)


def launch_draw(logits: Tensor, runs: Tensor, state: DecodeState, rows: int, chained: bool) -> None:
    draw_kernel[rows,](
        logits, runs, state.policy_T, state.behaviour_T, state.streams, state.stops, state.ids, state.positions,
        state.left, state.live, state.tokens_out, state.figures_out, state.clock, runs.shape[-1],
        state.tokens_out.shape[1],
        V=logits.shape[1], RUN=RUN, RUNS=1 << (runs.shape[-1] - 1).bit_length(), STOPS=STOPS,
        STEPS=state.tokens_out.shape[0], CHAINED=chained, num_warps=4, **pdl(chained),
    )  # fmt: skip


def launch_keep(decoder: Decoder, hidden: Tensor, kept: Tensor, state: DecodeState, width: int, chained: bool) -> None:
    size = decoder.shape.hidden
    keep_kernel[len(hidden),](
        hidden, decoder.norm, state.positions, state.tables, state.live, kept, decoder.shape.norm_eps,
        state.tables.stride(0), K=size, BLOCK=1 << (size - 1).bit_length(), PAGE=BLOCK, WIDTH=width, CHAINED=chained,
        num_warps=4, **pdl(chained),
    )  # fmt: skip


def pdl(chained: bool) -> dict[str, bool]:
    """Only where it is used: the interpreter and older GPUs know no such option."""
    return {"launch_pdl": True} if chained else {}


def can_fuse(shape: Shape) -> bool:
    """Norms of query and key heads need a head in one program; inner sizes must have a power of two in them."""
    inner = (shape.hidden, shape.q_size, shape.intermediate)
    return supports(shape.head_dim) and not shape.qk_norm and all(size % 16 == 0 for size in inner)
