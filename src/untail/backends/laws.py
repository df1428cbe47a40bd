"""What the simulator draws for a trajectory: how long its response is, and what it is worth.

Invariant: a draw is a pure function of (seed, prompt id, stream). The same trajectory gets the same draw on every
engine and in every run, whatever was drawn before it.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

from untail.errors import ConfigError, DataError, nearest
from untail.types import Prompt, Trajectory, prompt_id, stream_key

PROMPT_TOKENS = 256
ENTROPY = 0.5  # nats, of every token
VOCAB = 2**17  # of the model that wrote them, though they have no text
NORMAL = NormalDist()


class Draw(NamedTuple):
    length: int  # response tokens, the stop token included
    reward: float  # if it may run to its end
    entropy: float


class Law(ABC):
    @abstractmethod
    def draw(self, prompt: Prompt, stream: int) -> Draw: ...

    def prompt_id(self, number: int) -> str:
        """The id of the `number`-th prompt that there is to this law."""
        return prompt_id("sim", (number,))


@dataclass(frozen=True)
class LogNormal(Law):
    """A body of short responses and a long tail.

    `prompt_share` of the variance of log(length) belongs to the prompt, the rest to the trajectory, so that a prompt's
    past says something about its future. A prompt is solved with a probability of its own, uniform from 0 to 1.
    """

    seed: int
    median: float = 2000.0
    p99: float = 20000.0
    prompt_share: float = 0.7

    def draw(self, prompt: Prompt, stream: int) -> Draw:
        solved = self._uniform(prompt, "reward", stream) < self._uniform(prompt, "solved")
        return Draw(self._length(prompt, stream), float(solved), ENTROPY)

    def _length(self, prompt: Prompt, stream: int) -> int:
        of_prompt = NORMAL.inv_cdf(self._uniform(prompt, "length"))
        of_trajectory = NORMAL.inv_cdf(self._uniform(prompt, "length", stream))
        z = math.sqrt(self.prompt_share) * of_prompt + math.sqrt(1 - self.prompt_share) * of_trajectory
        sigma = math.log(self.p99 / self.median) / NORMAL.inv_cdf(0.99)
        return max(1, round(self.median * math.exp(sigma * z)))

    def _uniform(self, prompt: Prompt, *key: int | str) -> float:
        """From 0 to 1, both excluded."""
        return ((stream_key(self.seed, prompt.id, *key) >> 11) + 0.5) / 2**52


@dataclass(frozen=True)
class Short(LogNormal):
    """Everything is under 1k tokens: there is no tail to cut."""

    median: float = 300.0
    p99: float = 1000.0
    longest: int = 1000

    def _length(self, prompt: Prompt, stream: int) -> int:
        return min(self.longest, super()._length(prompt, stream))


@dataclass(frozen=True)
class Stress(Short):
    """The stress mix: a tenth of the prompts needs 16k tokens and more, the others stay under 1k."""

    tail_share: float = 0.1
    tail: tuple[int, int] = (16384, 32768)

    def _length(self, prompt: Prompt, stream: int) -> int:
        if self._uniform(prompt, "tail") >= self.tail_share:
            return super()._length(prompt, stream)
        low, high = self.tail
        return low + int(self._uniform(prompt, "length", stream) * (high - low + 1))


class Recorded(NamedTuple):
    prompt: str
    length: int
    reward: float


class Trace(Law):
    """What a run recorded: a prompt that it knows gets one of its own responses, any other prompt one of all."""

    def __init__(self, rows: list[Recorded], seed: int):
        """Pre: there is at least one row."""
        self.seed = seed
        self._rows = rows
        self._of_prompt: dict[str, list[Recorded]] = {}
        for row in rows:
            self._of_prompt.setdefault(row.prompt, []).append(row)
        self._ids = list(self._of_prompt)

    def draw(self, prompt: Prompt, stream: int) -> Draw:
        rows = self._of_prompt.get(prompt.id, self._rows)
        row = rows[stream_key(self.seed, prompt.id, stream) % len(rows)]
        return Draw(row.length, row.reward, ENTROPY)

    def prompt_id(self, number: int) -> str:
        """The recorded prompts come first, in the order of the trace."""
        return self._ids[number] if number < len(self._ids) else super().prompt_id(number)


LAWS: dict[str, type[LogNormal]] = {"lognormal": LogNormal, "short": Short, "stress": Stress}


def make_law(name: str, seed: int) -> Law:
    """One of `LAWS`, or the trace in a run folder or a .jsonl file."""
    if name in LAWS:
        return LAWS[name](seed)
    path = Path(name)
    if path.suffix == ".jsonl" or path.exists() or len(path.parts) > 1:
        return Trace(read_trace(path), seed)
    raise ConfigError(f"unknown law {name!r}; {nearest(name, list(LAWS))}, or give a run folder or a .jsonl file")


def sim_prompt(number: int, law: Law) -> Prompt:
    """Its first token is its number: that is how the simulator knows which prompt a sequence belongs to."""
    tokens = (number, *(0,) * (PROMPT_TOKENS - 1))
    return Prompt(law.prompt_id(number), "sim", f"simulated prompt {number}", tokens)


def sim_prompts(count: int, law: Law) -> list[Prompt]:
    return [sim_prompt(number, law) for number in range(count)]


def reward_of(law: Law, trajectory: Trajectory) -> float:
    """What was drawn for its last turn if it came to its own end; nothing if it was cut off."""
    stream = turn_stream(trajectory.stream, trajectory.turn_begin)
    return law.draw(trajectory.prompt, stream).reward if trajectory.end == "stop" else 0.0


def turn_stream(stream: int, begin: int) -> int:
    """Every turn is a draw of its own: the first is the trajectory's."""
    return stream_key(stream, begin) if begin else stream


def read_trace(path: Path) -> list[Recorded]:
    """The finished responses of a run folder's events.jsonl, or the rows {"prompt", "length", "reward"} of a file."""
    file = path / "events.jsonl" if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot read the trace {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read the trace {file}: it is not UTF-8 text ({error.reason})") from None
    if file.name == "events.jsonl":
        text = text[: text.rfind("\n") + 1]  # a crash may have cut the last line short
    rows = list(_rows(file, text))
    if not rows:
        raise DataError(f"the trace {file} has no finished response; give a run that scored at least one")
    return rows


def _rows(file: Path, text: str) -> Iterator[Recorded]:
    prompts: dict[str, str] = {}  # by trajectory
    lengths: dict[str, int] = {}  # of those that ended by themselves and have no reward yet
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = _parsed(line)
            match row.get("e"):
                case None:
                    yield _recorded(row["prompt"], row["length"], row["reward"])
                case "start":
                    prompts[row["id"]] = row["prompt"]
                case "end" if row["end"] in ("stop", "length"):
                    lengths[row["id"]] = row["tokens"]
                case "score" if row["id"] in lengths:
                    if row["id"] not in prompts:
                        raise ValueError(f"the start of {row['id']!r} is missing")
                    yield _recorded(prompts[row["id"]], lengths.pop(row["id"]), row["reward"])
        except KeyError as error:
            raise DataError(f"{file}, line {number}: {error} is missing; repair or remove the line") from None
        except (ValueError, TypeError) as error:
            raise DataError(f"{file}, line {number}: {error}; repair or remove the line") from None


def _parsed(line: str) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"{line.strip()[:40]!r} is not a JSON object")
    return row


def _recorded(prompt: Any, length: Any, reward: Any) -> Recorded:
    if not isinstance(prompt, str):
        raise ValueError(f"prompt = {prompt!r} must be a string")
    if type(length) is not int or length < 1:
        raise ValueError(f"length = {length!r} must be an integer of at least 1")
    if type(reward) not in (int, float) or not math.isfinite(reward):
        raise ValueError(f"reward = {reward!r} must be a finite number")
    return Recorded(prompt, length, float(reward))
