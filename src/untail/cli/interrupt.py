"""Ctrl-C where there is nothing to save, or where it came a second time."""

import os
from types import FrameType

INTERRUPTED = 130


def quit_at_once(number: int, frame: FrameType | None) -> None:
    """A signal handler that says one line and ends the process. To raise would not do: amid an import or a callback of
    a library a KeyboardInterrupt becomes any other error or is swallowed, and what closes after it may wait for what
    will never come. Scoring processes end with their socket, and a run's folder survives any end."""
    os.write(2, b"interrupted\n")  # not by way of sys.stderr, which may be amid a write
    os._exit(INTERRUPTED)
