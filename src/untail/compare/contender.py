"""A recipe's training in a folder of its own, as the race drives it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from untail.config import Recipe
from untail.engine.models.load import load_model
from untail.errors import UserError
from untail.flow.choose import make_roles
from untail.observe.trackers import make_trackers
from untail.resolve import resolved
from untail.run import Run
from untail.tasks.prepare import prepare
from untail.train import Training

Show = Callable[[dict[str, Any]], None]


class LocalContender:
    def __init__(self, recipe: Recipe, folder: Path, show: Show, note: Callable[[str], None]):
        """Everything is loaded here: what is wrong with it must not leave a folder behind."""
        _refuse_single_run_trackers(recipe)
        recipe = resolved(recipe)  # as it will be read again on resume
        model = load_model(recipe.model, recipe.engine.device, recipe.engine.dtype)
        data = prepare(recipe, model.tokenizer, model.decoder.shape.context)
        for text in data.notes:
            note(text)
        self.roles = make_roles(recipe, model, data.rewards, data.prompts, data.partials)
        if ignored := self.roles.refuse_bad_history():
            note(ignored)
        self.held_out = data.held_out
        self.recipe, self.folder, self.show = recipe, folder, show
        self._run: Run | None = None
        self._training: Training | None = None

    async def begin(self) -> None:
        self._run = Run.begin(self.folder, self.recipe)
        listeners = (self.show, *make_trackers(self.recipe, self.folder))

        def show(row: dict[str, Any]) -> None:
            for listener in listeners:
                listener(row)

        never = asyncio.Event()  # a comparison is stopped as a whole: each run resumes from its last checkpoint
        self._training = Training(self._run, self.roles, self.held_out, show, never)
        await self._training.begin()

    async def one_step(self) -> bool:
        assert self._training is not None
        return await self._training.one_step()

    async def end(self) -> None:
        assert self._training is not None
        await self._training.end()

    async def close(self) -> None:
        if self._run is not None:
            self._run.close()
        await self.roles.close()


def _refuse_single_run_trackers(recipe: Recipe) -> None:
    for name in recipe.trackers:
        if name != "tensorboard":
            raise UserError(f"trackers names {name!r}, which follows one run at a time; leave it out of a comparison")
