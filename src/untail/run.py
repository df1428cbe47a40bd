"""A run's folder: what is in it, and how a run is begun, continued and cut back to a checkpoint.

Invariant: files only grow; on resume, events and metrics are cut back to exactly where the checkpoint was written.
"""

from pathlib import Path
from typing import Any

from untail.config import Recipe, dump_toml, parse, read_toml
from untail.errors import UserError
from untail.learn import checkpoint
from untail.observe.events import JsonLines


class Run:
    def __init__(self, folder: Path, recipe: Recipe, resumed_from: Path | None = None):
        self.folder = folder
        self.recipe = recipe
        self.resumed_from = resumed_from
        sizes = checkpoint.read_state(resumed_from)["sizes"] if resumed_from else {}
        self.events = JsonLines(folder / "events.jsonl", sizes.get("events"))
        self.metrics = JsonLines(folder / "metrics.jsonl", sizes.get("metrics"))

    @classmethod
    def begin(cls, folder: Path, recipe: Recipe) -> "Run":
        cls.refuse_if_taken(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "recipe.toml").write_text(dump_toml(recipe))
        except OSError as error:
            raise UserError(f"cannot write to --out {folder}: {error.strerror}") from None
        return cls(folder, recipe)

    @staticmethod
    def refuse_if_taken(folder: Path) -> None:
        if (folder / "recipe.toml").exists():
            raise UserError(f"--out {folder} already holds a run; continue it with --resume, or choose another folder")

    @classmethod
    def resume(cls, folder: Path, recipe: Recipe | None, steps: int | None) -> "Run":
        """Continue the run in `folder`. `recipe`, if given, must be the run's own; `steps` may differ."""
        if not (folder / "recipe.toml").exists():
            raise UserError(f"--resume: {folder} holds no run (no recipe.toml); start one without --resume")
        own = parse(Recipe, read_toml(folder / "recipe.toml"), "")
        if recipe is not None:
            _same(own.model_copy(update={"steps": steps or own.steps}).model_dump(), recipe.model_dump(), folder)
        latest = checkpoint.latest(folder / "checkpoints")
        if steps is not None and steps != own.steps:
            done = checkpoint.step_of(latest) if latest else 0
            if steps < done:
                raise UserError(
                    f"--steps {steps}, but the run in {folder} has done {done} already; give at least {done}"
                )
            own = own.model_copy(update={"steps": steps})
            (folder / "recipe.toml").write_text(dump_toml(own))
        if latest is None:
            # Stopped before the first checkpoint: what little there is starts anew.
            for name in ("events.jsonl", "metrics.jsonl"):
                (folder / name).unlink(missing_ok=True)
        return cls(folder, own, latest)

    @property
    def sizes(self) -> dict[str, int]:
        return {"events": self.events.size, "metrics": self.metrics.size}

    def sync(self) -> None:
        self.events.sync()
        self.metrics.sync()

    def close(self) -> None:
        self.events.close()
        self.metrics.close()


def _same(own: dict[str, Any], given: dict[str, Any], folder: Path, path: str = "") -> None:
    for key, value in own.items():
        where, other = f"{path}{key}", given.get(key)
        if isinstance(value, dict) and isinstance(other, dict) and set(value) == set(other):
            _same(value, other, folder, f"{where}.")
        elif value != other:
            raise UserError(
                f"--resume: {where} = {other!r}, but the run in {folder} has {value!r}; drop the change, or "
                "start a new run in another folder (the number of steps alone may change, with --steps)"
            )
