"""A run's folder: what is in it, and how a run is begun, continued and cut back to a checkpoint.

Invariant: files only grow; on resume, events and metrics are cut back to exactly where the checkpoint was written.
"""

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from untail.config import Recipe, dump_toml, parse, read_toml
from untail.errors import UserError
from untail.learn import checkpoint
from untail.notice import say
from untail.observe.events import JsonLines

# What may differ when a run is continued: nothing that step k + 1 depends on, except for a reward that was mended.
MAY_CHANGE = (
    "steps",
    "trackers",
    "flow",
    "checkpoint_every",
    "keep_checkpoints",
    "reward",
    "task.reward",
    "task.partial",
    "validation.task.reward",
)


class Run:
    def __init__(self, folder: Path, recipe: Recipe, lock: IO[bytes], resumed_from: Path | None = None):
        self.folder = folder
        self.recipe = recipe
        self.resumed_from = resumed_from
        self._lock = lock
        sizes = checkpoint.read_state(resumed_from, "sizes")["sizes"] if resumed_from else {}
        self.events = JsonLines(folder / "events.jsonl", sizes.get("events"))
        self.metrics = JsonLines(folder / "metrics.jsonl", sizes.get("metrics"))

    @classmethod
    def begin(cls, folder: Path, recipe: Recipe) -> "Run":
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = _lock(folder)
            cls.refuse_if_taken(folder)
            (folder / "recipe.toml").write_text(dump_toml(recipe))
        except OSError as error:
            raise UserError(f"cannot write to --out {folder}: {error.strerror}") from None
        return cls(folder, recipe, lock)

    @staticmethod
    def refuse_if_taken(folder: Path) -> None:
        """A run gets a folder of its own: nobody's files are mixed with it."""
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--out {folder} is a file; choose a folder")
        if (folder / "recipe.toml").exists():
            raise UserError(f"--out {folder} already holds a run; continue it with --resume, or choose another folder")
        if folder.exists() and any(path.name != "lock" for path in folder.iterdir()):
            raise UserError(f"--out {folder} is not an empty folder; choose another")

    @classmethod
    def resume(cls, folder: Path, change: Callable[[dict[str, Any]], Recipe]) -> "Run":
        """Continue the run in `folder`; `change` makes the recipe to go on with from the run's own tree."""
        if not (folder / "recipe.toml").exists():
            raise UserError(f"--resume: {folder} holds no run (no recipe.toml); start one without --resume")
        lock = _lock(folder)
        tree = read_toml(folder / "recipe.toml")
        own, recipe = parse(Recipe, tree, ""), change(tree)
        _refuse_other_changes(own.model_dump(), recipe.model_dump(), folder)
        latest = checkpoint.latest(folder / "checkpoints")
        done = checkpoint.step_of(latest) if latest else 0
        if recipe.steps < done:
            raise UserError(f"steps = {recipe.steps}, but the run in {folder} has done {done} already; ask for more")
        if latest is None:
            say(f"the run in {folder} was stopped before its first checkpoint: it begins anew")
            for name in ("events.jsonl", "metrics.jsonl", "history.sqlite", "history.sqlite-wal", "history.sqlite-shm"):
                (folder / name).unlink(missing_ok=True)
        run = cls(folder, recipe, lock, latest)
        (folder / "recipe.toml").write_text(dump_toml(recipe))
        return run

    @property
    def sizes(self) -> dict[str, int]:
        return {"events": self.events.size, "metrics": self.metrics.size}

    def sync(self) -> None:
        self.events.sync()
        self.metrics.sync()

    def close(self) -> None:
        self.events.close()
        self.metrics.close()
        self._lock.close()


def _lock(folder: Path) -> IO[bytes]:
    """Held while the file is open, and gone with the process, however that ends."""
    file = (folder / "lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"a run is going on in {folder}; wait for it, stop it, or choose another folder") from None
    return file


def _refuse_other_changes(own: Any, given: Any, folder: Path, path: str = "") -> None:
    if own == given or path.startswith(MAY_CHANGE):
        return
    if isinstance(own, dict) and isinstance(given, dict):
        for key in {**own, **given}:
            _refuse_other_changes(own.get(key), given.get(key), folder, f"{path}.{key}".lstrip("."))
        return
    if path == "reproduces":
        raise UserError(
            f"--resume: the run in {folder} is of another recipe ({own}); name none, it goes on with its own"
        )
    raise UserError(
        f"--resume: {path} = {given!r}, but the run in {folder} has {own!r}; drop the change, or start a new run in "
        "another folder"
    )
