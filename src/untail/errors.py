"""What can be wrong with a user's input.

Invariant: every message is one sentence or two that name the field, the value and the fix. The command line prints it
and exits with 2; anything that is not a `UserError` is a fault of ours.
"""

import difflib


def nearest(name: str, known: list[str]) -> str:
    """A hint for an unknown name: the closest known one, and all of them where they are few."""
    if not known:
        return "nothing can be set here: leave it out"
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = [f"did you mean {close[0]!r}?"] if close else []
    if len(known) <= 40 or not close:
        hint.append("known: " + ", ".join(sorted(known)))
    return " ".join(hint)


class UserError(Exception):
    """The input is wrong, and the message says how to mend it."""


class ConfigError(UserError):
    """A recipe, an override or a plugin name that cannot be used."""


class ModelError(UserError):
    """A model folder or file that cannot be loaded."""


class WeightsError(UserError):
    """A weight update that does not fit the model; nothing was overwritten."""


class RequestError(UserError):
    """A sequence that the engine cannot serve as asked."""


class SequenceStateError(RequestError):
    """An operation on a sequence that is unknown, finished, or in another state than the operation needs."""


class EngineMemoryError(UserError):
    """The device cannot hold what was asked for."""


class DataError(UserError):
    """A data set or a row of one that cannot be used."""
