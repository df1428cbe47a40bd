"""Pictures of steps, from the events of a run in turn: who was in which slot when, and what became of it.

Invariant: the spans of a picture that are not `wait` cover exactly the time that observe/step.py counts as running. A
span has one colour, its `kind`: how that stay in the slot ended, or what was decided about it at the boundary where it
ended. What is forked or deferred is known over steps until its group is trained or dropped.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from untail.types import Event

KINDS = ("end", "length", "segment", "defer", "stop", "cancel", "audit", "fail", "wait")
Columns = dict[str, list[Any]]


@dataclass(slots=True)
class Life:
    """A trajectory as far as it has come."""

    id: str
    group: str
    parent: str | None = None
    forked_at: int = 0  # response tokens that it has from its parent
    tokens: int = 0
    kind: str = "segment"
    why: str = ""
    reward: float | None = None
    use: str = ""
    text: str = ""
    is_audited: bool = False


@dataclass(slots=True)
class Span:
    """A stay in a slot, or, with slot -1, a wait for an environment."""

    id: str
    engine: int
    slot: int
    begin: float
    end: float = math.inf
    kind: str = ""
    tokens: int = 0  # of the response, when it ended


@dataclass(slots=True)
class Picture:
    step: int
    began: float
    rolled_out: float = math.inf
    done: float = math.inf
    spans: list[Span] = field(default_factory=list)
    forks: list[tuple[str, float]] = field(default_factory=list)  # the child, and when
    lives: list[Life] = field(default_factory=list)  # of the groups that had a part in it, parents before children
    prompts: dict[str, str] = field(default_factory=dict)  # by group: how it begins


class Lives:
    """Hears of every event of a run in turn; says what a step looked like when it is over."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.prompts: dict[str, str] = {}  # by group
        self.over: set[str] = set()  # groups that are trained or dropped in this step
        self.seen: set[str] = set()  # groups with a part in this step
        self.open: dict[str, Span] = {}
        self.last: dict[str, Span] = {}
        self.waiting: set[str] = set()  # for their environments
        self.picture: Picture | None = None
        self.heard: dict[str, Callable[[Event], None]] = {
            "admit": self._admit,
            "start": self._start,
            "fork": self._fork,
            "resume": self._resume,
            "segment": self._segment,
            "defer": self._defer,
            "park": self._park,
            "reply": self._reply,
            "end": self._end,
            "left": self._left,
            "stop": self._stop,
            "cancel": self._cancel,
            "fail": self._fail,
            "score": self._score,
            "audit": self._audit,
            "train": self._train,
            "drop": self._drop,
            "rolled_out": self._rolled_out,
        }

    def hear(self, event: Event) -> Picture | None:
        kind = event["e"]
        if kind == "step":
            self._begin(event)
        elif self.picture is not None:
            if kind in self.heard:
                self.heard[kind](event)
            if kind == "done":
                return self._finish(event)
        return None

    # ---- a step -----------------------------------------------------------------------------------------------

    def _begin(self, event: Event) -> None:
        self.picture = Picture(event["step"], event["t"])
        self.open, self.last, self.seen, self.over = {}, {}, set(), set()
        for name in sorted(self.waiting):
            self._take(name, event["t"], -1, -1)

    def _rolled_out(self, event: Event) -> None:
        """A slot that nobody left is held to the end, and whoever waits goes on waiting in the next step."""
        assert self.picture is not None
        self.picture.rolled_out = event["t"]
        for name in list(self.open):
            self._leave(name, event["t"], self._decided(name) or "segment")

    def _finish(self, event: Event) -> Picture:
        picture, self.picture = self.picture, None
        assert picture is not None
        picture.done = event["t"]
        picture.lives = [replace(life) for life in self.lives.values() if life.group in self.seen]
        picture.prompts = {life.group: self.prompts.get(life.group, "") for life in picture.lives}
        self.lives = {name: life for name, life in self.lives.items() if life.group not in self.over or life.is_audited}
        return picture

    def _train(self, event: Event) -> None:
        self._part(event["group"], over=True)
        for member in event["members"]:
            life = self.lives.get(member["id"])
            if life is not None:
                life.reward, life.use = _number(member["reward"]), member["use"]

    def _drop(self, event: Event) -> None:
        self._part(event["group"], over=True)
        for life in self.lives.values():
            if life.group == event["group"]:
                life.use = f"dropped: {event['why']}"

    def _admit(self, event: Event) -> None:
        self.prompts[event["group"]] = event.get("text") or event["prompt"]

    # ---- slots ------------------------------------------------------------------------------------------------

    def _start(self, event: Event) -> None:
        self.lives[event["id"]] = Life(event["id"], event["group"])
        self._take(event["id"], event["t"], event["engine"], event["slot"])

    def _fork(self, event: Event) -> None:
        assert self.picture is not None
        name, at = event["id"], event["tokens"]
        self.lives[name] = Life(name, event["group"], event["parent"], at, at)
        self.picture.forks.append((name, event["t"]))
        self._part(event["group"])

    def _resume(self, event: Event) -> None:
        self._life(event)
        self._take(event["id"], event["t"], event["engine"], event["slot"])

    def _segment(self, event: Event) -> None:
        self._goes_on(event, "segment", event.get("why", "boundary"))

    def _defer(self, event: Event) -> None:
        self._goes_on(event, "defer", "the step closed over it")

    def _park(self, event: Event) -> None:
        self._goes_on(event, "segment", f"turn {event['turn']} is over")
        self.waiting.add(event["id"])
        self._take(event["id"], event["t"], -1, -1)

    def _reply(self, event: Event) -> None:
        self._life(event)
        self.waiting.discard(event["id"])
        self._leave(event["id"], event["t"])

    def _end(self, event: Event) -> None:
        life = self._life(event)
        self.waiting.discard(event["id"])
        kind = "length" if event["end"] == "length" else "end"
        self._leave(event["id"], event["t"], kind)
        self._recolour(event["id"], kind)  # it may have ended while it waited for its environment
        if not life.is_audited:
            life.kind, life.why = kind, _ended(event)

    def _left(self, event: Event) -> None:
        self._leave(event["id"], event["t"], self._decided(event["id"]) or "audit")

    # ---- decisions --------------------------------------------------------------------------------------------

    def _stop(self, event: Event) -> None:
        self._decide(event, "stop", event["reason"], event["audited"])

    def _cancel(self, event: Event) -> None:
        self._decide(event, "cancel", f"not waited for ({event['why']})", event["audited"])

    def _fail(self, event: Event) -> None:
        life = self.lives.get(event["id"])
        if life is not None and life.kind in ("segment", "defer"):
            self._decide({**event, "tokens": max(life.tokens, event["tokens"])}, "fail", event["error"], False)

    def _decide(self, event: Event, kind: str, why: str, audited: bool) -> None:
        """It holds its slot until it has left. If it runs on for the audit, that is another span."""
        name, life = event["id"], self._life(event)
        life.kind, life.why, life.is_audited = kind, why, audited
        span = self.open.get(name)
        if span is None:
            self._recolour(name, kind)
        elif span.slot < 0:
            self.waiting.discard(name)
            self._leave(name, event["t"])
            self._recolour(name, kind)
        elif audited:
            self._leave(name, event["t"], kind)
            self._take(name, event["t"], span.engine, span.slot)

    def _score(self, event: Event) -> None:
        life = self.lives.get(event["id"])
        if life is not None:
            life.reward, life.text = _number(event["reward"]), event.get("text") or ""
            if event["failure"]:
                life.why = f"not scored: {event['failure']}"

    def _audit(self, event: Event) -> None:
        life = self.lives.get(event["id"])
        if life is not None:
            life.why = f"{life.why}; let run on, it had {event['tokens']:,} tokens and reward {event['reward']:g}"
            life.is_audited = False

    # ---- the parts --------------------------------------------------------------------------------------------

    def _part(self, group: str, over: bool = False) -> None:
        self.seen.add(group)
        if over:
            self.over.add(group)

    def _life(self, event: Event) -> Life:
        """Of a group that began before the file did, little is known."""
        name = event["id"]
        group = event.get("group") or name.rpartition("/")[0] or name
        life = self.lives.setdefault(name, Life(name, group))
        life.tokens = event.get("tokens", life.tokens)
        self._part(life.group)
        return life

    def _goes_on(self, event: Event, kind: str, why: str) -> None:
        life = self._life(event)
        if life.is_audited:
            kind = "audit"
        else:
            life.kind, life.why = kind, why
        self._leave(event["id"], event["t"], kind)

    def _decided(self, name: str) -> str | None:
        """What colours a span that ends later than the decision about it."""
        life = self.lives.get(name)
        if life is None or life.kind not in ("stop", "cancel", "fail"):
            return None
        return "audit" if life.is_audited else life.kind

    def _take(self, name: str, t: float, engine: int, slot: int) -> None:
        if name in self.lives:
            self._part(self.lives[name].group)
        self.open.setdefault(name, Span(name, engine, slot, t))

    def _leave(self, name: str, t: float, kind: str = "wait") -> None:
        """Its slot, or its wait: that has a colour of its own, however it ended."""
        assert self.picture is not None
        span = self.open.pop(name, None)
        if span is None:
            return
        span.end, span.kind, span.tokens = t, kind, self.lives[name].tokens if name in self.lives else 0
        self.picture.spans.append(span)
        if span.slot >= 0:
            self.last[name] = span
        else:
            span.kind = "wait"

    def _recolour(self, name: str, kind: str) -> None:
        if name in self.last:
            self.last[name].kind = kind


def columns(picture: Picture) -> dict[str, Any]:
    """Columns of numbers, names as indices, seconds since the step began: what is stored in the page."""
    groups = {group: number for number, group in enumerate(picture.prompts)}
    number = {life.id: i for i, life in enumerate(picture.lives)}
    since = lambda t: round(min(max(t, picture.began), picture.rolled_out) - picture.began, 4)
    whys = {why: i for i, why in enumerate(dict.fromkeys(life.why for life in picture.lives))}
    uses = {use: i for i, use in enumerate(dict.fromkeys(life.use for life in picture.lives))}
    spans = [span for span in picture.spans if span.id in number]
    return {
        "rolled_out": round(picture.rolled_out - picture.began, 4),
        "done": round(picture.done - picture.began, 4),
        "kinds": list(KINDS),
        "groups": {"name": list(groups), "prompt": list(picture.prompts.values())},
        "whys": list(whys),
        "uses": list(uses),
        "lives": _table(
            ("id", "group", "parent", "at", "tokens", "kind", "why", "use", "reward", "text"),
            (
                (
                    life.id,
                    groups[life.group],
                    number.get(life.parent, -1) if life.parent else -1,
                    life.forked_at,
                    life.tokens,
                    KINDS.index(life.kind),
                    whys[life.why],
                    uses[life.use],
                    life.reward,
                    life.text,
                )
                for life in picture.lives
            ),
        ),
        "spans": _table(
            ("life", "engine", "slot", "begin", "end", "kind", "tokens"),
            (
                (number[s.id], s.engine, s.slot, since(s.begin), since(s.end), KINDS.index(s.kind), s.tokens)
                for s in spans
            ),
        ),
        "forks": _table(("life", "t"), ((number[name], since(t)) for name, t in picture.forks if name in number)),
    }


def _table(names: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> Columns:
    listed = list(rows)
    return {name: [row[i] for row in listed] for i, name in enumerate(names)}


def _ended(event: Event) -> str:
    turns = f"after {event['turns']} turns" if event.get("turns", 1) > 1 else ""
    failure = f"its tool gave no reply: {event['tool_failure']}" if event.get("tool_failure") else ""
    return "; ".join(part for part in (turns, failure) if part)


def _number(value: Any) -> float | None:
    return round(value, 6) if isinstance(value, int | float) and math.isfinite(value) else None
