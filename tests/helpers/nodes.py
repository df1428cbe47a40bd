"""Nodes of a flow graph that are neither rollout nor learner: a reward model, a reference model, retrieval.

Each is a worker that takes items from a channel in portions, adds what it knows, and hands them on. The three share the
few lines of `Stage`; nothing in the runtime knows of them.
"""

import math
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from tests.helpers.models import random_decoder
from untail.engine.attention.varlen import VarlenAttention
from untail.flow.failures import ChannelClosed
from untail.flow.worker import Worker
from untail.learn.critic import ValueHead
from untail.learn.logprob import token_logprobs


@dataclass(frozen=True)
class Item:
    """What travels: a question, and what has become of it."""

    number: int
    question: str
    passage: str = ""
    tokens: tuple[int, ...] = ()
    reward: float | None = None
    reference: np.ndarray | None = field(default=None, compare=False)


class Stage(Worker):
    async def run(self, source, sinks, portion: int) -> int:
        """Until the source is closed; how many items came through."""
        count = 0
        while True:
            try:
                items = await source.get_batch(portion)
            except ChannelClosed:
                return count
            for item in self.work(items):
                for sink in sinks:
                    await sink.put(item)
            count += len(items)

    def work(self, items: list[Item]) -> list[Item]:
        raise NotImplementedError


class Retrieval(Stage):
    """The passage that fits each question best, by BM25; then the text as tokens."""

    K, B = 1.5, 0.75

    def __init__(self, passages: list[str]):
        self.passages = passages
        self.counts = [Counter(passage.lower().split()) for passage in passages]
        self.mean = sum(count.total() for count in self.counts) / len(passages)
        self.holders = Counter(word for count in self.counts for word in count)

    def work(self, items: list[Item]) -> list[Item]:
        found = [replace(item, passage=self.best(item.question)) for item in items]
        return [replace(item, tokens=tuple(f"{item.passage} {item.question}".encode())) for item in found]

    def best(self, question: str) -> str:
        words = question.lower().split()
        return max(zip(self.passages, self.counts, strict=True), key=lambda pair: self.score(words, pair[1]))[0]

    def score(self, words: list[str], count: Counter) -> float:
        length = 1 - self.B + self.B * count.total() / self.mean
        return sum(self.rarity(word) * count[word] * (self.K + 1) / (count[word] + self.K * length) for word in words)

    def rarity(self, word: str) -> float:
        return math.log(1 + (len(self.passages) - self.holders[word] + 0.5) / (self.holders[word] + 0.5))


class RewardModel(Stage):
    """A decoder with a value head: what it says of the last token is the reward."""

    def __init__(self, seed: int):
        self.decoder = random_decoder("llama", seed)
        self.head = ValueHead(self.decoder.shape.hidden, torch.device("cpu"), torch.float32)
        torch.nn.init.normal_(self.head.outer, generator=torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def work(self, items: list[Item]) -> list[Item]:
        hidden = hidden_states(self.decoder, items)
        return [replace(item, reward=self.head(own[-1:]).item()) for item, own in zip(items, hidden, strict=True)]


class ReferenceModel(Stage):
    """Log-probs of all tokens but the first under a frozen decoder."""

    def __init__(self, seed: int):
        self.decoder = random_decoder("llama", seed).requires_grad_(False)

    def work(self, items: list[Item]) -> list[Item]:
        done = []
        for item, own in zip(items, hidden_states(self.decoder, items), strict=True):
            logprobs, _ = token_logprobs(own[:-1], self.decoder.output_weight, torch.tensor(item.tokens[1:]), 1.0, 64)
            done.append(replace(item, reference=logprobs.numpy()))
        return done


@torch.no_grad()
def hidden_states(decoder, items: list[Item]) -> list[torch.Tensor]:
    """Of each item's tokens, from one packed pass."""
    lengths = [len(item.tokens) for item in items]
    ids = torch.tensor([token for item in items for token in item.tokens])
    positions = torch.cat([torch.arange(length) for length in lengths])
    return list(decoder(ids, positions, VarlenAttention(lengths)).split(lengths))
