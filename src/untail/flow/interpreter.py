"""Python's own settings, as every process of a run needs them. Light to import: every process begins with it."""

import gc
import sys

# Objects between two runs of the collector, and so on: a run makes millions of small lists and hardly a cycle, and the
# collector would look through all of them, and all of torch, again and again while an engine's thread waits.
COLLECT_AFTER = (100_000, 10, 100)
# Seconds after which a thread that waits for the interpreter gets it. An engine's thread gives it away at each call of
# torch, some hundreds in a step: if it had to wait for the usual 5 ms each time, the device would wait too.
SWITCH_AFTER = 0.0005


def tune() -> None:
    gc.set_threshold(*COLLECT_AFTER)
    sys.setswitchinterval(SWITCH_AFTER)
