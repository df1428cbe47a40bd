"""Groups at a boundary, made by hand."""

from collections.abc import Sequence

from tests.helpers.rollout import finish, make_group, make_plan, write

from untail.config import parse
from untail.rollout.live import LiveGroup
from untail.rollout.points import MECHANISMS, Mechanism
from untail.types import Segment


def build(name: str, **fields) -> Mechanism:
    cls = MECHANISMS.get(name)
    mechanism = cls(parse(cls.Config, fields, f"mechanisms.{name}"))
    mechanism.name = name
    return mechanism


def at_boundary(*texts: Sequence[int], finished: int = 0, **columns: Sequence[float]) -> LiveGroup:
    """Open members whose last and only segment these tokens are, then some that have finished. `entropy` and `logprob`
    have one value a member."""
    group = make_group(make_plan(size=len(texts) + finished))
    for number, text in enumerate(texts):
        own = {name: values[number] for name, values in columns.items()}
        member = write(group.members[number], list(text), **own)
        member.trajectory.segments.append(Segment(0, len(text), "boundary"))
        member.segment_begin = len(text)
    for member in group.members[len(texts) :]:
        finish(member, 4)
    return group


def numbers(verdicts: dict) -> list[int]:
    return [int(name.rpartition("/")[2]) for name in verdicts]
