"""Where every token went.

Invariant: what a step began with and what it generated is what it trained, masked, stopped, dropped, cancelled,
audited, overran, lost to a failure, and what it leaves to the next. `unaccounted` is the difference: anything but 0 is
a fault of ours.
"""

from collections import Counter
from collections.abc import Sequence

from untail.observe.step import StepEvents, made
from untail.types import Event

CAME = ("carried_in", "generated")
WENT = ("trained", "masked", "stopped", "dropped", "cancelled", "audited", "overrun", "failed", "carried_out")
Accounts = dict[str, int]


def step_accounts(events: list[Event]) -> Accounts:
    """`events`: those of one step. An audited trajectory is stopped or cancelled up to there, and audited from there
    on: it is carried until its audit ends."""
    step = StepEvents(events)
    uses: Counter[str] = Counter()
    for member in step.members:
        uses[member["use"]] += made(member)
    total = lambda kind, field: sum(event[field] for event in step.all(kind))
    return _closed(
        {
            "carried_in": step.one("step")["carried"],
            "generated": step.one("rolled_out")["generated"],
            "trained": uses["trained"],
            "masked": uses["masked"],
            "stopped": uses["stopped"],
            "dropped": total("drop", "tokens"),
            "cancelled": sum(map(made, step.all("cancel"))),
            "audited": total("audit", "extra"),
            "overrun": total("left", "overrun"),
            "failed": total("fail", "tokens"),
            "carried_out": step.one("rolled_out")["carried"],
        }
    )


def run_accounts(steps: Sequence[Accounts]) -> Accounts:
    """Those of several steps in a row, as if they were one. Pre: at least one."""
    books = {name: sum(step[name] for step in steps) for name in (*CAME, *WENT)}
    return _closed(books | {"carried_in": steps[0]["carried_in"], "carried_out": steps[-1]["carried_out"]})


def _closed(books: Accounts) -> Accounts:
    return books | {"unaccounted": sum(books[name] for name in CAME) - sum(books[name] for name in WENT)}
