"""The history of an earlier run, handed to a new one.

Invariant: the earlier run's file is only read. In the copy everything lies before the first step, so that no resume
cuts it off. One of another tokenizer says nothing about this run's prompts, nor can its tokens be drafted: it is left
alone, and that is said.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from untail.errors import UserError
from untail.history.store import explained, refuse_unless_it_fits

NAME = "history.sqlite"


def refuse_bad(source: str, model: str, tokenizer: str) -> str | None:
    """`source` is a history file, or the folder of the run that it is of. What to tell the user if it is ignored."""
    with _opened(source, model) as db:
        its = _tokenizer(db)
    if its == tokenizer:
        return None
    return f"history = {source!r} was made with the tokenizer {its!r}, this run has {tokenizer!r}: it is ignored"


def copy(source: str, target: Path, model: str, tokenizer: str) -> None:
    """Nothing of one that was made with another tokenizer. Pre: there is no file `target` yet."""
    with _opened(source, model) as db:
        if _tokenizer(db) == tokenizer:
            _copy(db, target)


def _copy(db: sqlite3.Connection, target: Path) -> None:
    with closing(sqlite3.connect(target)) as new, explained(str(target)):
        db.backup(new)
        with new:
            new.execute("UPDATE records SET step = 0, version = 0")


def _tokenizer(db: sqlite3.Connection) -> str:
    return str(db.execute("SELECT value FROM meta WHERE key = 'tokenizer'").fetchone()[0])


@contextmanager
def _opened(source: str, model: str) -> Iterator[sqlite3.Connection]:
    path = Path(source) / NAME if Path(source).is_dir() else Path(source)
    where = repr(str(path))
    if not path.is_file():
        raise UserError(
            f"history = {where}: there is no such file; name an earlier run's folder or its {NAME}, or leave it out"
        )
    with explained(where), closing(sqlite3.connect(path, timeout=1.0)) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")  # its run may still write to it
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise UserError(f"history = {where} is empty; name an earlier run's folder or its {NAME}, or leave it out")
        refuse_unless_it_fits(db, where, {"model": model})
        yield db
