"""3.5, repack (Laminar): empty the engines that run dry into others, so that they are free for new work.

Every 5 s and after each weight update. Source: its KV in use is falling and below the cap, and fewer than B (the
roofline batch) remain. Sources go by ascending KV, each to the engine with the largest KV that holds both within the
cap and B, whole or not at all. What is about to end by its predicted length is not worth the prefill of a move. An
engine that receives is no source in the same pass; one that runs nothing is no destination.
"""

from typing import Any

from untail.config import NotNegative, PositiveFloat, PositiveInt, Strict
from untail.rollout.live import Member, State
from untail.rollout.points import MECHANISMS, Mechanism, Move, Place, View


@MECHANISMS.register("repack")
class Repack(Mechanism, Place):
    sections = "3.5"

    class Config(Strict):
        every: PositiveFloat = 5.0  # seconds
        kv_tokens: PositiveInt = 500_000  # the cap: tokens that one engine's KV may hold after a move
        roofline: PositiveInt = 64  # B: sequences from which on a larger batch makes a step slower
        min_gain: NotNegative = 64  # tokens that a source's members must still have before them, on average

    config: Config

    def __init__(self, config: Config):
        super().__init__(config)
        self.every = config.every
        self._last_kv: dict[int, int] = {}  # of each engine, when moves were last asked for

    def moves(self, view: View) -> list[Move]:
        running = _running(view)
        kv = {engine: sum(map(_kv_tokens, members)) for engine, members in running.items()}
        # Not asked about before: nobody knows whether it is falling. The cap and B need no question of their own: a
        # source with a destination is below both.
        falling = [engine for engine in kv if kv[engine] < self._last_kv.get(engine, 0)]
        self._last_kv = dict(kv)
        moves: list[Move] = []
        receivers: set[int] = set()
        for source in sorted(falling, key=lambda engine: (kv[engine], engine)):
            if source in receivers or not self._is_worth_it(running[source], view):
                continue
            target = self._destination(source, kv, running, min(self.config.roofline, view.concurrency // view.engines))
            if target is not None:
                moves += [Move(member, target) for member in running[source]]
                receivers.add(target)
                kv[target] += kv.pop(source)
                running[target] += running.pop(source)
        return moves

    def state(self) -> dict[str, Any]:
        return {"kv": {str(engine): tokens for engine, tokens in self._last_kv.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        self._last_kv = {int(engine): tokens for engine, tokens in state["kv"].items()}

    def _is_worth_it(self, members: list[Member], view: View) -> bool:
        return sum(_remaining(member, view) for member in members) >= self.config.min_gain * len(members)

    def _destination(self, source: int, kv: dict[int, int], running: dict[int, list[Member]], most: int) -> int | None:
        fits = [
            engine
            for engine in kv
            if engine != source
            and kv[engine] + kv[source] <= self.config.kv_tokens
            and len(running[engine]) + len(running[source]) <= most
        ]
        return max(fits, key=lambda engine: (kv[engine], -engine), default=None)


def _running(view: View) -> dict[int, list[Member]]:
    engines: dict[int, list[Member]] = {}
    for group in view.groups:
        for member in group.members:
            if member.state is State.RUNNING and member.engine is not None:
                engines.setdefault(member.engine, []).append(member)
    return engines


def _kv_tokens(member: Member) -> int:
    return len(member.trajectory.prompt.tokens) + len(member.trajectory.tokens)


def _remaining(member: Member, view: View) -> float:
    group = member.group
    predicted = view.predictor.remaining(group.plan.prompt, member.length, group.finished_lengths)
    return min(predicted, member.left)
