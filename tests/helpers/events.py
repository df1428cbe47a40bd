"""A run's events, written by hand: for tests of what is computed from them."""

import json
from pathlib import Path
from typing import Any


def member(name: str, tokens: int, reward: float, use: str = "trained", versions: tuple[int, int] = (0, 0)) -> dict:
    return {"id": name, "tokens": tokens, "reward": reward, "use": use, "versions": list(versions)}


class Log:
    """Each call is an event of the present step."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.step = 0

    def __call__(self, kind: str, t: float, **fields: Any) -> None:
        self.events.append({"e": kind, "t": t, "step": self.step, **fields})

    def run(self, concurrency: int, engines: int = 1) -> None:
        self.events.append({"e": "run", "t": 0, "schema": 2, "concurrency": concurrency, "engines": engines})

    def begin(self, step: int, t: float, carried: int = 0) -> None:
        self.step = step
        self("step", t, version=step - 1, carried=carried)

    def start(self, name: str, t: float, engine: int = 0) -> None:
        self("start", t, id=name, group=name[0], prompt=name[0], engine=engine, slot=0, lane="all")

    def end(self, name: str, t: float, tokens: int, predicted: float | None = None, end: str = "stop") -> None:
        same = {"group": name[0], "prompt_tokens": 5, "versions": [0, 0], "entropy": 0.5}
        self("end", t, id=name, tokens=tokens, end=end, predicted=predicted, **same)

    def score(self, name: str, t: float, reward: float, failure: str | None = None) -> None:
        self("score", t, id=name, reward=reward, failure=failure)

    def whole(self, name: str, begin: float, end: float, tokens: int, reward: float) -> None:
        """From its start to its score, in one slot."""
        self.start(name, begin)
        self.end(name, end, tokens)
        self.score(name, end, reward)

    def stop(self, name: str, t: float, tokens: int, reason: str, segments: int = 1, audited: bool = False) -> None:
        self("stop", t, id=name, group=name[0], tokens=tokens, reason=reason, segments=segments, audited=audited)

    def cancel(self, name: str, t: float, tokens: int, audited: bool = False) -> None:
        self("cancel", t, id=name, group=name[0], tokens=tokens, why="step", audited=audited)

    def left(self, name: str, t: float, overrun: int = 0) -> None:
        self("left", t, id=name, overrun=overrun)

    def audit(self, name: str, t: float, reason: str, tokens: int, extra: int, reward: float) -> None:
        self("audit", t, id=name, reason=reason, tokens=tokens, extra=extra, reward=reward)

    def train(self, t: float, *members: dict) -> None:
        self("train", t, group=members[0]["id"][0], prompt=members[0]["id"][0], members=list(members))

    def over(
        self, rolled_out: float, update: float, done: float, generated: int, carried: int = 0, **load: Any
    ) -> None:
        """`load`: fields of `rolled_out` that are not 0."""
        idle = {"busy_s": 0.0, "computed": 0, "recomputed": 0, "preemptions": 0, "kv_used": 0.0, "peak_mem": 0}
        learn = {key: load.pop(key) for key in ("logprob_s", "update_s", "early_s", "loss") if key in load}
        self("rolled_out", rolled_out, generated=generated, carried=carried, **{**idle, **load})
        self("update", update, **learn)
        self("done", done)

    def validation(self, t: float, score: float, half: float = 0.05, n: int = 100) -> None:
        interval = [score - half, score + half]
        self("validation", t, score=score, ci95=interval, n=n, mean_len=20.0, score_failures=0)

    def write(self, path: Path) -> Path:
        path.write_text("".join(json.dumps(event) + "\n" for event in self.events))
        return path
