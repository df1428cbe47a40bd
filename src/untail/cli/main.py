"""The program's entry: how it ends.

Invariant: exit 0, done; 2, the user's input is wrong, said in one sentence without a traceback; 1, a fault of ours;
130, interrupted, said in one line. Nothing heavy is imported before Ctrl-C is in hand.
"""

import gc
import signal
import sys
from typing import Any

from untail.cli.interrupt import INTERRUPTED, quit_at_once
from untail.flow import interpreter


def main() -> None:
    collected_after, switched_after = gc.get_threshold(), sys.getswitchinterval()
    handled_by = signal.getsignal(signal.SIGINT)
    interpreter.tune()
    signal.signal(signal.SIGINT, quit_at_once)  # until a command has something to save
    try:
        sys.exit(_run())
    finally:
        signal.signal(signal.SIGINT, handled_by)
        sys.setswitchinterval(switched_after)
        gc.set_threshold(*collected_after)


def _run() -> int:
    import typer

    from untail.cli.app import app
    from untail.errors import UserError
    from untail.notice import say

    usage_error: type[Exception] = typer.BadParameter.__mro__[1]  # what all complaints of the parser are; not exported
    try:
        code = app(prog_name="untail", standalone_mode=False)
    except UserError as error:
        say(f"error: {error}")
        return 2
    except usage_error as error:
        return _complain(error)
    if code == INTERRUPTED:  # typer has caught the KeyboardInterrupt
        say("interrupted")
    return code if isinstance(code, int) else 0


def _complain(error: Any) -> int:
    """The command line itself is wrong: one sentence, where typer would draw a box."""
    from untail.notice import say

    message = error.format_message().replace("Value error, ", "").strip().removesuffix(".")
    if message:  # it has none where nothing was asked for: then the help is printed already
        command = "untail" if error.ctx is None else error.ctx.command_path
        say(f"error: {message}; see {command} --help")
    return int(error.exit_code)


if __name__ == "__main__":
    main()
