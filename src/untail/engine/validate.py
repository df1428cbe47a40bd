"""What the engine refuses, before it touches anything: one sentence each, naming the field, the value and the fix."""

import math
import os
from collections.abc import Sequence as Tokens

import torch

from untail.engine.blocks import BLOCK, blocks_for
from untail.engine.models.shape import Shape
from untail.errors import RequestError
from untail.types import SamplingParams, SequenceSpec

COLDEST = 1e-3  # below it logits divided by the temperature no longer fit a float32


class Limits:
    def __init__(self, shape: Shape, context: int, blocks: int, can_decode: bool):
        self.vocab = shape.vocab
        self.context = context
        self.blocks = blocks
        self.can_decode = can_decode

    @property
    def longest(self) -> int:
        """The most tokens of a sequence."""
        return min(self.context, self.blocks * BLOCK)

    def check_spec(self, spec: SequenceSpec) -> None:
        if not spec.tokens:
            raise RequestError(f"sequence {spec.id!r} has an empty prompt; give at least one token")
        self.check_tokens(spec.tokens, f"sequence {spec.id!r}")
        if len(spec.tokens) >= self.context:
            raise RequestError(
                f"sequence {spec.id!r} has a prompt of {len(spec.tokens)} tokens, but the context holds {self.context} "
                "with at least one to generate; shorten it or raise engine.context"
            )
        if not 0 <= spec.done < len(spec.tokens):
            raise RequestError(
                f"sequence {spec.id!r}: done = {spec.done} must be at least 0 and below the number of its tokens, "
                f"{len(spec.tokens)}; give the prompt and the response so far as tokens, and count the response in done"
            )
        if spec.chunk < 1:
            raise RequestError(f"sequence {spec.id!r}: chunk = {spec.chunk} must be at least 1")
        check_stream(spec.id, spec.stream)
        self.check_budget(spec.id, len(spec.tokens), spec.budget)
        self.check_sampling(spec.id, spec.sampling)

    def check_budget(self, name: str, length: int, budget: int) -> None:
        if budget < 1:
            raise RequestError(f"sequence {name!r}: budget = {budget} must be at least 1 token")
        longest = min(length + budget, self.context)
        if blocks_for(longest) > self.blocks:
            raise RequestError(
                f"sequence {name!r} may grow to {longest} tokens and needs {blocks_for(longest)} KV blocks of {BLOCK}, "
                f"but the pool has {self.blocks}; raise engine.kv_gib (or engine.kv_blocks) or lower the budget"
            )

    def check_tokens(self, tokens: Tokens[int], owner: str) -> None:
        for token in tokens:
            if not isinstance(token, int):
                raise RequestError(f"{owner} has the token id {token!r}, which is no integer")
            if not 0 <= token < self.vocab:
                raise RequestError(f"{owner} has the token id {token}, outside the vocabulary of {self.vocab}")

    def check_sampling(self, name: str, sampling: SamplingParams) -> None:
        def refuse(field: str, value: object, rule: str) -> None:
            raise RequestError(f"sequence {name!r}: {field} = {value} is not allowed; {rule}")

        check_temperature(name, sampling.temperature)
        if not (math.isfinite(sampling.policy_temperature) and sampling.policy_temperature >= COLDEST):
            refuse("policy_temperature", sampling.policy_temperature, f"it must be finite and at least {COLDEST}")
        if not 0 < sampling.top_p <= 1:
            refuse("top_p", sampling.top_p, "it must be above 0 and at most 1")
        if sampling.top_k < 0:
            refuse("top_k", sampling.top_k, "it must be 0 (off) or more")
        if not 0 <= sampling.min_p < 1:
            refuse("min_p", sampling.min_p, "it must be at least 0 and below 1")
        self.check_tokens(sampling.stop_ids, f"sequence {name!r}: stop_ids")
        if "" in sampling.stop_strings:
            refuse("stop_strings", sampling.stop_strings, "an empty string stops everything")
        if sampling.stop_strings and not self.can_decode:
            refuse("stop_strings", sampling.stop_strings, "the engine was made without a tokenizer to find them")


def refuse_if_too_large(blocks: int, block_bytes: int, device: torch.device) -> None:
    """A pool that this machine cannot hold."""
    if device.type == "cuda":
        owner, memory = str(device), torch.cuda.mem_get_info(device)[0]
    else:
        owner, memory = "this machine", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if blocks * block_bytes > memory:
        fits = memory // block_bytes
        raise RequestError(
            f"the KV pool would take {blocks * block_bytes / 2**30:.3g} GiB, but {owner} has {memory / 2**30:.3g} GiB, "
            f"which would hold {fits} blocks or {fits * BLOCK} tokens; lower engine.kv_gib (or engine.kv_blocks)"
        )


def check_temperature(name: str, temperature: float) -> None:
    if not (math.isfinite(temperature) and (temperature == 0 or temperature >= COLDEST)):
        raise RequestError(
            f"sequence {name!r}: temperature = {temperature} is not allowed; it must be 0 (greedy) or a finite number "
            f"of at least {COLDEST}"
        )


def check_stream(name: str, stream: int) -> None:
    if not (isinstance(stream, int) and 0 <= stream < 2**63):
        raise RequestError(f"sequence {name!r}: stream = {stream!r} must be an integer of at least 0 and below 2**63")
