"""A worker that is called while it is revived, on whatever cluster."""

import threading
import time

import pytest

from tests.helpers.workers import Late
from untail.flow.failures import WorkerLost


def revive_while_called(cluster, folder, soon: float) -> None:
    """Nobody reaches a worker that is being made, and a call that came too early does it no harm."""
    at_the_door, let_in = folder / "at the door", folder / "let in"
    let_in.touch()
    worker = cluster.group(Late, folder, devices=[[]], name="late")[0]
    worker.kill()
    at_the_door.unlink()
    let_in.unlink()
    reviving = threading.Thread(target=worker.revive)
    reviving.start()
    try:
        while not at_the_door.exists():
            time.sleep(0.01)
        assert not worker.is_alive
        with pytest.raises(WorkerLost, match=r"late\[0\] is lost: there is no other in its place yet"):
            worker.echo("too early").wait(soon)
    finally:
        let_in.touch()
        reviving.join(soon)
    assert worker.is_alive
    assert worker.echo("again").wait(soon) == "again"
