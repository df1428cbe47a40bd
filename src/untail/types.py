"""The nouns that all rooms share. No torch, no I/O; everything here can be pickled.

A *group* is one prompt with several sampled *trajectories*. A trajectory's columns run in step: one entry per response
token, model tokens and an environment's replies alike; `from_model` says which is which.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

Event = dict[str, Any]
"""Something that happened, as a line of events.jsonl (observe/events.py lists the kinds)."""
End = Literal["stop", "boundary", "length", "abort"]
"""How a stream of chunks ended: a stop token or string; the budget is used up; the context is full; aborted."""


def prompt_id(task: str, tokens: Sequence[int]) -> str:
    """The same over runs and machines: blake2b of the task's name and the prompt's token ids."""
    digest = hashlib.blake2b(task.encode() + b"\0", digest_size=16)
    digest.update(",".join(map(str, tokens)).encode())
    return digest.hexdigest()


def stream_key(seed: int, *parts: int | str) -> int:
    """A 63-bit random stream for (seed, trajectory, ...): equal inputs give equal tokens whatever the batching."""
    digest = hashlib.blake2b(repr((seed, *parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked. `data` is whatever the scorer of its task needs (an answer, unit tests, a whole dataset row)."""

    id: str
    task: str
    text: str
    tokens: tuple[int, ...]
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn. `policy_temperature` is the training temperature: what `policy_logprob` is measured at."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    policy_temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """One sequence to generate.

    `budget` counts model tokens until the first boundary; `chunk` is how many of them the caller wants to see at a
    time; `hold` keeps the sequence resident after a stop, for an environment's reply; `hidden` asks for hidden-state
    sums. The last `done` of `tokens` are response tokens already: a trajectory that comes from another engine or from a
    checkpoint goes on as if it had been here all the time. The first `turn_begin` of these belong to earlier turns.
    `past` are earlier responses to the same prompt, the best first, for whoever drafts from them.
    """

    id: str
    tokens: tuple[int, ...]
    budget: int
    stream: int
    sampling: SamplingParams = SamplingParams()
    chunk: int = 64
    hold: bool = False
    hidden: bool = False
    done: int = 0
    turn_begin: int = 0
    past: tuple[tuple[int, ...], ...] = ()


@dataclass(slots=True)
class Chunk:
    """One or more new model tokens of a sequence, column by column, and how the stream ended if it did.

    `mixed_kv` marks tokens that were sampled over keys and values of an older weight version (`kv_after_update =
    "keep"`), `lossy` those that something else than the whole model sampled. `hidden_sum` is the sum of the last
    layer's hidden states from which these tokens were sampled, if it was asked for.
    """

    tokens: list[int] = field(default_factory=list)
    policy_logprob: list[float] = field(default_factory=list)
    behaviour_logprob: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    p_eos: list[float] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    mixed_kv: list[bool] = field(default_factory=list)
    lossy: list[bool] = field(default_factory=list)
    hidden_sum: Any = None
    end: End | None = None


def add_columns(into: "Chunk | Trajectory", chunk: Chunk) -> None:
    """The chunk's tokens, with what was said of each, behind those that are there."""
    into.tokens += chunk.tokens
    into.policy_logprob += chunk.policy_logprob
    into.behaviour_logprob += chunk.behaviour_logprob
    into.entropy += chunk.entropy
    into.p_eos += chunk.p_eos
    into.version += chunk.version
    into.mixed_kv += chunk.mixed_kv
    into.lossy += chunk.lossy


@dataclass(frozen=True, slots=True)
class Forked:
    """Children of a running sequence, which share its first `position` response tokens."""

    position: int
    children: list[str]


@dataclass(frozen=True, slots=True)
class Segment:
    """One unbroken stretch of a response, [begin, end) in response tokens, and why it ended: "stop", "length",
    "boundary" (its stride was used up), "cut" (control ended it early), "lost" (its engine is gone), "turn" (an
    environment was asked), "reply" (an environment wrote it), or what a watcher stopped it for."""

    begin: int
    end: int
    why: str


@dataclass(slots=True)
class Trajectory:
    """One response to one prompt, token by token, with what the engine said about each token when it was sampled.

    `stopped` is why a watcher or a group decision ended it, if one did; `masked` keeps it out of the loss and out of
    its group's statistics. `text` is that of its last turn. A copy of another trajectory has a `parent`, whose first
    `forked_at` tokens are its own too, and a temperature of its own.
    """

    id: str
    prompt: Prompt
    stream: int
    tokens: list[int] = field(default_factory=list)
    policy_logprob: list[float] = field(default_factory=list)
    behaviour_logprob: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    p_eos: list[float] = field(default_factory=list)
    version: list[int] = field(default_factory=list)
    from_model: list[bool] = field(default_factory=list)
    end: End | None = None
    text: str = ""
    reward: float = 0.0
    failure: str | None = None  # why its scorer gave no reward, if it failed
    mixed_kv: list[bool] = field(default_factory=list)
    lossy: list[bool] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    stopped: str | None = None
    masked: bool = False
    reply_tokens: int = 0  # how many of the tokens an environment wrote
    parent: str | None = None
    forked_at: int = 0
    survival: float = 1.0  # the probability with which it outlived random pruning so far; 0: it did not
    temperature: float | None = None  # it is sampled at, if not the recipe's
    turns: int = 1  # of the model, the present one included
    turn_begin: int = 0  # where its present turn begins, in response tokens
    tool_failure: str | None = None  # why its environment gave no reply, if it failed

    @property
    def length(self) -> int:
        """Response tokens that the model wrote."""
        return len(self.tokens) - self.reply_tokens

    @property
    def made(self) -> int:
        """Tokens that the model generated for it: what it shares with its parent counts there."""
        return sum(self.from_model[self.forked_at :]) if self.forked_at else self.length

    @property
    def written_segments(self) -> list[Segment]:
        """Those that the model wrote."""
        return [segment for segment in self.segments if segment.why != "reply"]

    @property
    def mean_entropy(self) -> float:
        """Of the tokens that the model wrote: a reply's have none. Pre: there are some."""
        return math.fsum(self.entropy) / self.length

    def of_model(self, column: str, last: int | None = None) -> list[Any]:
        """The column's entries for the tokens that the model wrote, in whichever turn; the last so many of them."""
        values = getattr(self, column)
        if not self.reply_tokens:
            return values if last is None else values[-last:]
        from_end = (value for value, ours in zip(reversed(values), reversed(self.from_model), strict=True) if ours)
        return list(islice(from_end, last))[::-1]

    def take(self, chunk: Chunk) -> None:
        add_columns(self, chunk)
        self.from_model += [True] * len(chunk.tokens)
        self.end = chunk.end

    def take_reply(self, tokens: Sequence[int], version: int) -> None:
        """An environment's reply: the model's next turn begins after it."""
        before = len(self.tokens)
        fillers = {
            **dict.fromkeys(("policy_logprob", "behaviour_logprob", "entropy", "p_eos"), 0.0),
            "mixed_kv": False,
            "lossy": False,
            "from_model": False,
            "version": version,
        }
        for name, filler in fillers.items():
            column = getattr(self, name)
            if len(column) == before:  # a backend may not give every column
                column += [filler] * len(tokens)
        self.tokens += tokens
        self.reply_tokens += len(tokens)
        self.turns += 1
        self.turn_begin = len(self.tokens)
        self.end = None


@dataclass(slots=True)
class Group:
    """The trajectories of one prompt that are learned from together."""

    id: str
    prompt: Prompt
    trajectories: list[Trajectory]

    @property
    def rewards(self) -> list[float]:
        return [trajectory.reward for trajectory in self.trajectories]

    @property
    def oldest_version(self) -> int:
        return min(trajectory.version[0] for trajectory in self.trajectories if trajectory.version)


@dataclass(slots=True)
class Batch:
    """The groups that one update is made from. `underway` are those that wait for a later one, with what their members
    have so far, where the learner wants to see them."""

    step: int
    groups: list[Group]
    underway: list[Group] = field(default_factory=list)

    @property
    def version(self) -> int:
        """Of the weights that the update starts from: each step publishes its own number."""
        return self.step - 1

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for group in self.groups for trajectory in group.trajectories]


@dataclass(slots=True)
class Progress:
    """What a run remembers between steps; it goes into every checkpoint."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    validations: dict[str, dict[str, Any]] = field(default_factory=dict)  # step -> score, ci95, n, mean_len
