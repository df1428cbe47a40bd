"""What can go wrong between workers, and what each failure says.

Invariant: every message names who (a worker, a channel, a device), what it was doing, and what to do about it. What a
worker raised as a `UserError` comes through as it is: its sentence is meant for the user already.
"""

from untail.errors import UserError


class FlowError(Exception):
    """Something between workers broke; the message says who and what to do."""


class WorkerFailed(FlowError):
    """A method of a worker raised. The worker is alive; `__notes__` has its traceback."""


class WorkerLost(FlowError):
    """A worker is gone: its process or its node died. `worker` is its name."""

    def __init__(self, worker: str, why: str):
        super().__init__(f"worker {worker} is lost: {why}")
        self.worker = worker
        self.why = why

    def __reduce__(self) -> tuple[type["WorkerLost"], tuple[str, str]]:
        return WorkerLost, (self.worker, self.why)


def not_there_yet(worker: str) -> WorkerLost:
    return WorkerLost(worker, "there is no other in its place yet; call it once `revive` has returned")


class ChannelClosed(FlowError):
    """Nothing more will come, or may be put."""


class ChannelBroken(FlowError):
    """Everybody at the other end of a channel died."""


class LeaseLost(FlowError):
    """A device lock went on to somebody else, because its owner stopped renewing its lease."""


class VersionMismatch(UserError):
    """A worker runs another version of untail than its driver."""
