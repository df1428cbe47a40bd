"""The memory of a run: a record of every response, what follows from them per prompt, and some responses' token ids.

Invariant: `stats` and `task_lengths` are a function of the records in the file and of nothing else. A history that was
killed, closed or cut back, and then opened again, says the same as one that ran through. `add` is whole or not at all.

Token ids are a cache beside this: at most `cap_tokens` of them. What goes first is the oldest response of the prompt
that was not used for longest. It is gone for good, also after `truncate`: drafts get fewer by that, never wrong.
"""

import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from untail.errors import UserError
from untail.history.stats import PromptStats, Record, Tally, TaskLengths

FORMAT = 1
APPLICATION_ID = 0x756E7461  # "unta", in the header of the file: this database is ours
TOKEN_BYTES = 4

TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE records (id INTEGER PRIMARY KEY, in_group INTEGER NOT NULL, prompt TEXT NOT NULL, task TEXT NOT NULL,"
    " step INTEGER NOT NULL, version INTEGER NOT NULL, length INTEGER NOT NULL, finish TEXT NOT NULL, reward REAL,"
    " entropy REAL, is_bound INTEGER NOT NULL)",
    "CREATE TABLE tokens (record INTEGER PRIMARY KEY, prompt TEXT NOT NULL, ids BLOB NOT NULL)",
    "CREATE INDEX tokens_of_prompt ON tokens (prompt)",
    "CREATE TABLE uses (prompt TEXT PRIMARY KEY, tick INTEGER NOT NULL) WITHOUT ROWID",
)
COLUMNS = "prompt, task, step, version, length, finish, reward, entropy, is_bound"


class _Shelf:
    """The stored token ids. Every method but `use` runs inside a transaction of the history.

    Invariant: `held` has the tokens of each prompt that has any, the least recently used first, and is at most `cap` in
    total after `evict`. Reads are written down with the next transaction: a read alone costs no write.
    """

    def __init__(self, db: sqlite3.Connection, cap: int):
        self.db = db
        self.cap = cap
        self.load()

    def load(self) -> None:
        rows = self.db.execute(
            "SELECT prompt, sum(length(ids)) / ?, max(tick) FROM tokens JOIN uses USING (prompt) GROUP BY prompt "
            "ORDER BY max(tick)",
            (TOKEN_BYTES,),
        ).fetchall()
        self.held: dict[str, int] = {prompt: size for prompt, size, _ in rows}
        self.total = sum(self.held.values())
        self.tick = rows[-1][2] if rows else 0
        self.unwritten: dict[str, None] = {}  # prompts used since the last transaction, in order

    def use(self, prompt: str) -> None:
        if prompt in self.held:
            self.held[prompt] = self.held.pop(prompt)
            self.unwritten.pop(prompt, None)
            self.unwritten[prompt] = None

    def put(self, record: int, prompt: str, tokens: Sequence[int]) -> None:
        if not self.cap:  # it would have to go at once
            return
        ids = struct.pack(f"<{len(tokens)}I", *tokens)
        self.db.execute("INSERT INTO tokens VALUES (?, ?, ?)", (record, prompt, ids))
        self.held[prompt] = self.held.get(prompt, 0) + len(tokens)
        self.total += len(tokens)

    def evict(self) -> None:
        while self.total > self.cap:
            prompt = next(iter(self.held))
            oldest = "SELECT record, length(ids) / ? FROM tokens WHERE prompt = ? ORDER BY record LIMIT 1"
            record, size = self.db.execute(oldest, (TOKEN_BYTES, prompt)).fetchone()
            self.db.execute("DELETE FROM tokens WHERE record = ?", (record,))
            self.total -= size
            self.held[prompt] -= size
            if not self.held[prompt]:
                del self.held[prompt]
                self.unwritten.pop(prompt, None)
                self.db.execute("DELETE FROM uses WHERE prompt = ?", (prompt,))

    def write_uses(self) -> None:
        rows = [(prompt, self.tick + number) for number, prompt in enumerate(self.unwritten, 1)]
        self.db.executemany("INSERT OR REPLACE INTO uses VALUES (?, ?)", rows)
        self.tick += len(rows)
        self.unwritten.clear()


class History:
    """One writer: while it is open, nobody else can open its file. After an error of `add`, open it anew."""

    def __init__(self, db: sqlite3.Connection, where: str, cap_tokens: int):
        self._db = db
        self._where = where
        self._shelf = _Shelf(db, cap_tokens)
        self._rebuild()
        with self._transaction():  # the cap may be lower than last time
            self._shelf.evict()

    @classmethod
    def open(cls, path: Path | None, model: str, tokenizer: str, cap_tokens: int = 2_000_000) -> "History":
        """The history in `path`, which is made if there is none; None keeps it in memory. `model` and `tokenizer` say
        what its lengths and token ids belong to."""
        where = "in memory" if path is None else str(path)
        with explained(where):
            db = sqlite3.connect(":memory:" if path is None else path, timeout=1.0, isolation_level=None)
            try:
                _prepare(db, where, {"model": model, "tokenizer": tokenizer})
                return cls(db, where, cap_tokens)
            except BaseException:
                db.close()
                raise

    def add(self, records: Iterable[Record]) -> None:
        """In one transaction. Pre: all records of a group come in one call; one call may bring several groups."""
        groups: dict[str, list[Record]] = {}
        for record in records:
            groups.setdefault(record.prompt, []).append(record)
        with self._transaction():
            for group in groups.values():
                self._write(group)
            self._shelf.evict()
            self._shelf.write_uses()
        for group in groups.values():
            self._take(group)

    def stats(self, prompt: str) -> PromptStats | None:
        tally = self._prompts.get(prompt)
        return None if tally is None else tally.stats()

    def task_lengths(self, task: str) -> TaskLengths | None:
        """None until a response of the task has finished."""
        return self._tasks.get(task)

    def responses(self, prompt: str) -> list[Record]:
        """Those whose token ids are still stored, the newest first."""
        rows = self._db.execute(
            f"SELECT {COLUMNS}, ids FROM records JOIN (SELECT record, ids FROM tokens WHERE prompt = ?) ON record = id "
            "ORDER BY id DESC",
            (prompt,),
        ).fetchall()
        self._shelf.use(prompt)
        return [_stored(row) for row in rows]

    def truncate(self, step: int) -> None:
        """Forget every record of a step later than `step`: a run goes on from a checkpoint of it."""
        with self._transaction():
            self._shelf.write_uses()
            self._db.execute("DELETE FROM tokens WHERE record IN (SELECT id FROM records WHERE step > ?)", (step,))
            self._db.execute("DELETE FROM records WHERE step > ?", (step,))
            self._db.execute("DELETE FROM uses WHERE prompt NOT IN (SELECT prompt FROM tokens)")
        self._shelf.load()
        self._rebuild()

    def count(self, step: int) -> int:
        """Of the records of all steps up to this one, and of what an earlier run handed over."""
        return int(self._db.execute("SELECT count(*) FROM records WHERE step <= ?", (step,)).fetchone()[0])

    def commit(self) -> None:
        """On the disk, not only with the operating system: before a checkpoint counts on it."""
        with self._transaction():
            self._shelf.write_uses()
        with explained(self._where):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        try:
            self.commit()
        finally:
            self._db.close()

    def _write(self, group: list[Record]) -> None:
        """Records of a group get numbers in a row, so that a rebuild meets them together and in the same order."""
        first = self._db.execute("SELECT coalesce(max(id), 0) + 1 FROM records").fetchone()[0]
        for number, r in enumerate(group, first):
            row = (number, first, r.prompt, r.task, r.step, r.version, r.length, r.end, r.reward, r.entropy, r.is_bound)
            self._db.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            if r.tokens:
                self._shelf.put(number, r.prompt, r.tokens)
        self._shelf.use(group[0].prompt)

    def _rebuild(self) -> None:
        self._prompts: dict[str, Tally] = {}
        self._tasks: dict[str, TaskLengths] = {}
        rows = self._db.execute(f"SELECT in_group, {COLUMNS} FROM records ORDER BY id")
        for _, group in groupby(rows, key=itemgetter(0)):
            self._take([Record(*row[1:]) for row in group])

    def _take(self, group: Sequence[Record]) -> None:
        prompt, task = group[0].prompt, group[0].task
        if prompt not in self._prompts:
            self._prompts[prompt] = Tally()
        self._prompts[prompt].take(group)
        finished = [record.length for record in group if not record.is_bound]
        if finished and task not in self._tasks:
            self._tasks[task] = TaskLengths()
        if finished:
            self._tasks[task].take(finished)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with explained(self._where), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield


def _prepare(db: sqlite3.Connection, where: str, made_with: dict[str, str]) -> None:
    """Make sure that the database is ours before anything is changed in it."""
    # The lock is held from the first read until the end, and goes with the process, however that ends.
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    is_new = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not is_new:
        refuse_unless_it_fits(db, where, made_with)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")  # synced at WAL checkpoints, not at every add: a kill loses nothing
    if is_new:
        _create(db, made_with)


def _create(db: sqlite3.Connection, made_with: dict[str, str]) -> None:
    with db:
        db.execute("BEGIN IMMEDIATE")
        for table in TABLES:
            db.execute(table)
        db.executemany("INSERT INTO meta VALUES (?, ?)", {"format": str(FORMAT), **made_with}.items())
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def refuse_unless_it_fits(db: sqlite3.Connection, where: str, made_with: dict[str, str]) -> None:
    """Pre: the database is not empty."""
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise UserError(f"the history {where} is a database of another program; choose another file")
    meta = dict(db.execute("SELECT key, value FROM meta"))
    if int(meta["format"]) > FORMAT:
        raise UserError(
            f"the history {where} has format {meta['format']}, but this untail knows formats up to {FORMAT}; upgrade "
            "untail, or choose another file"
        )
    for key, value in made_with.items():
        if meta[key] != value:
            raise UserError(
                f"the history {where} was made with the {key} {meta[key]!r}, but this run has {value!r}; choose "
                "another file, or leave it out"
            )


@contextmanager
def explained(where: str) -> Iterator[None]:
    """What SQLite complains about, as a sentence that says what to do; what is a fault of ours stays as it is."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        sentence = _sentence(where, error)
        if sentence is None:
            raise
        raise UserError(sentence) from error


def _sentence(where: str, error: sqlite3.DatabaseError) -> str | None:
    name = getattr(error, "sqlite_errorname", "")  # the module's own complaints have none
    if name.startswith("SQLITE_BUSY"):
        return f"the history {where} is in use by another run; wait for it, or choose another file"
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return f"the file {where} cannot be read as a history: {error}; choose another file, or leave it out"
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_PERM", "SQLITE_READONLY")):
        return (
            f"cannot use the history {where}: {error}; make sure that its folder exists, can be written and has room "
            "(what was written before is intact)"
        )
    return None


def _stored(row: tuple[Any, ...]) -> Record:
    *fields, is_bound, ids = row
    tokens = struct.unpack(f"<{len(ids) // TOKEN_BYTES}I", ids)
    return Record(*(*fields, bool(is_bound), tokens))
