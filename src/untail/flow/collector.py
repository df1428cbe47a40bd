"""How often Python's collector looks for cycles. Light to import: every process begins with it."""

import gc

# Objects between two runs of the collector, and so on: a run makes millions of small lists and hardly a cycle, and the
# collector would look through all of them, and all of torch, again and again while an engine's thread waits.
COLLECT_AFTER = (100_000, 10, 100)


def collect_seldom() -> None:
    gc.set_threshold(*COLLECT_AFTER)
