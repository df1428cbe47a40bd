"""A run in which everything happens, written by hand: segments, forks, tools, stops, audits, cancels, deferrals.

Lengths are log-normal, a token takes a hundredth of a second, and all texts are as given.
"""

import heapq
import random
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from tests.helpers.events import Log, member

TOKEN_S, LONGEST, SEGMENT = 0.01, 512, 96


@dataclass
class One:
    id: str
    group: str
    length: int
    tokens: int = 0
    forked_at: int | None = None
    started: bool = False
    slot: int = -1
    tool_s: float = 0.0
    use: str = ""
    reward: float = 0.0


@dataclass
class Lively:
    """Invariant: a step's events are in the order of time, and a group is trained when all its members are done."""

    slots: int
    groups: int
    size: int
    seed: int = 0
    prompt: str = "What is 12 + 7 - 3?"
    answer: str = "It is 16."
    tools: bool = True
    log: Log = field(default_factory=Log)
    t: float = 0.0

    def __post_init__(self) -> None:
        self.random, self.serial = random.Random(self.seed), count()
        self.open: dict[str, list[One]] = {}  # groups under way
        self.log.run(self.slots)

    def step(self, number: int, lively: bool = True) -> None:
        """`lively`: with all that can happen; else every response runs to its end in one piece."""
        begin = self.t
        self.log.begin(number, begin, carried=self._carried())
        self.waiting = [one for members in self.open.values() for one in members if not one.use]
        for _ in range(self.groups):
            self._admit()
        self.lively, self.closes = lively, begin + (0.7 if lively else 99) * LONGEST * TOKEN_S
        self.free, self.busy, self.generated = list(range(self.slots)), list[tuple[float, int, One]](), 0
        while self.waiting or self.busy:
            self._fill()
            due, _, one = heapq.heappop(self.busy)
            self.t = min(due, self.closes)
            if due > self.closes:
                self._close(one, max(0, one.tokens - int((due - self.closes) / TOKEN_S)))
            elif one.slot < 0:
                self.log("reply", due, id=one.id, tokens=one.tokens, reply=0, turn=1, seconds=one.tool_s)
                self.waiting.append(one)
            else:
                self._leaves_slot(one)
        self._train()

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        return self.log.write(folder / "events.jsonl")

    # ---- the parts --------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        group = f"g{next(self.serial):08}"
        plan = {"size": self.size, "keep": self.size, "budget": LONGEST, "predicted": None, "source": "unknown"}
        self.log("admit", self.t, group=group, prompt=group, text=self.prompt, **plan)
        self.open[group] = [self._one(group, 8) for _ in range(self.size)]
        self.waiting += self.open[group]

    def _one(self, group: str, least: int, **fields: Any) -> One:
        length = min(LONGEST, least + int(self.random.lognormvariate(4.0, 0.9)))
        return One(f"{group}/{next(self.serial)}", group, length, **fields)

    def _fill(self) -> None:
        while self.free and self.waiting:
            one = self.waiting.pop(0)
            one.slot = heapq.heappop(self.free)
            where = {"engine": 0, "slot": one.slot, "lane": "all"}
            if one.started or one.forked_at is not None:
                self.log("resume", self.t, id=one.id, tokens=one.tokens, **where)
            else:
                self.log("start", self.t, id=one.id, group=one.group, prompt=one.group, **where)
            one.started = True
            goal = min(one.length, one.tokens + SEGMENT) if self.lively else one.length
            self._until(one, self.t + (goal - one.tokens) * TOKEN_S)
            self.generated += goal - one.tokens
            one.tokens = goal

    def _until(self, one: One, t: float) -> None:
        heapq.heappush(self.busy, (t, next(self.serial), one))

    def _leaves_slot(self, one: One) -> None:
        heapq.heappush(self.free, one.slot)
        chance = self.random.random()
        if one.tokens >= one.length:
            self._end(one)
        elif chance < 0.12:
            audited = chance < 0.03
            self.log.stop(one.id, self.t, one.tokens, self.random.choice(("loop", "duplicate")), 2, audited)
            self.log.left(one.id, self.t)
            if audited:
                self.log.audit(one.id, self.t, "loop", one.length, 0, float(self.random.random() < 0.1))
            one.use, one.reward = "stopped", -1.0
        elif chance < 0.24 and self.tools:
            one.slot, one.tool_s = -1, self.random.lognormvariate(-1, 0.8)
            self.log("park", self.t, id=one.id, tokens=one.tokens, turn=1)
            self._until(one, self.t + one.tool_s)
        else:
            self.log("segment", self.t, id=one.id, tokens=one.tokens, why="boundary")
            self.waiting.append(one)
            if chance < 0.4:
                self._fork(one)

    def _fork(self, one: One) -> None:
        child = self._one(one.group, one.tokens + 1, tokens=one.tokens, forked_at=one.tokens)
        where = {"parent": one.id, "group": one.group, "tokens": one.tokens, "temperature": 1.1, "engine": 0}
        self.log("fork", self.t, id=child.id, **where)
        self.open[one.group].append(child)
        self.waiting.append(child)

    def _end(self, one: One) -> None:
        how = {"end": "length" if one.length == LONGEST else "stop", "turns": 2 if one.tool_s else 1}
        same = {"prompt_tokens": 9, "versions": [0, 0], "entropy": 0.5, "predicted": None}
        self.log("end", self.t, id=one.id, group=one.group, tokens=one.tokens, **how, **same)
        one.use, one.reward = "trained", float(self.random.random() < 0.5)
        self.log("score", self.t, id=one.id, reward=one.reward, failure=None, text=self.answer)

    def _close(self, one: One, tokens: int) -> None:
        """The step is over: some of what runs is cancelled, the rest deferred, and so is all that waits."""
        if one.slot >= 0:
            self.generated -= one.tokens - tokens
            one.tokens = tokens
            if self.random.random() < 0.3:
                one.use = "cancelled"
                self.log.cancel(one.id, self.t, one.tokens - (one.forked_at or 0))
                self.log.left(one.id, self.t)
            else:
                self.log("defer", self.t, id=one.id, tokens=one.tokens)
        self.waiting = []

    def _train(self) -> None:
        for name, members in list(self.open.items()):
            if all(one.use for one in members):
                done = [one for one in members if one.use != "cancelled"]
                self.log("train", self.t, group=name, prompt=name, members=[self._row(one) for one in done])
                del self.open[name]
        load = {"busy_s": 1.0, "computed": self.generated, "logprob_s": 0.2, "update_s": 0.8}
        self.log.over(self.t, self.t + 1.1, self.t + 1.2, self.generated, self._carried(), **load)
        self.t += 2

    def _carried(self) -> int:
        return sum(one.tokens for members in self.open.values() for one in members if one.use != "cancelled")

    def _row(self, one: One) -> dict:
        version = self.log.step - 1
        return member(one.id, one.tokens, one.reward, one.use, (version, version))
