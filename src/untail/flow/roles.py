"""All roles in this process, on one device.

Invariant: engine and learner share one set of weights: an update is a version bump, not a copy, and it happens only
while the engine is paused.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from untail.backends.base import Backend
from untail.backends.native import NativeBackend
from untail.config import Recipe
from untail.engine.models.folder import save_folder
from untail.engine.models.load import LoadedModel
from untail.flow.build import build_draft_training, build_engine, build_trainer
from untail.flow.in_turn import InTurn, build_beside
from untail.flow.role_base import Judge, Roles, Tables
from untail.learn import checkpoint
from untail.learn.memory import gauge_of
from untail.rollout.certain import Give
from untail.rollout.stage import Emit
from untail.types import Batch, Prompt


class LocalJudge(Judge):
    def _seat_engines(self) -> Sequence[Backend]:
        engine, self.speculator = build_engine(self.recipe, self.model)
        self.longest, self.vocab = engine.limits.longest, engine.limits.vocab
        self.wants_past = self.speculator is not None and self.speculator.wants_past
        self.backend = NativeBackend(engine, self.recipe.deterministic)
        return [self.backend]


class LocalRoles(LocalJudge, Roles):
    def __init__(
        self,
        recipe: Recipe,
        model: LoadedModel,
        rewards: Tables,
        prompts: list[Prompt],
        partials: Tables | None = None,
    ):
        super().__init__(recipe, model, rewards, prompts, partials)
        self.drafters = build_draft_training(recipe, model.decoder)
        if self.speculator is not None:
            self.speculator.training = self.drafters
        hear = self.drafters.hear_pass if self.drafters else None
        self.trainer = build_beside(self.backend.engine, partial(build_trainer, recipe, model.decoder, hear))
        self._in_turn = InTurn(self.backend, self.trainer, gauge_of(model.decoder.embed.device))

    async def begin(self, folder: Path, is_new: bool) -> None:
        await super().begin(folder, is_new)
        self.drafters.start()
        self.to_close.callback(self.drafters.close)

    async def sample(self, step: int, emit: Emit, version: int, give: Give) -> None:
        """Drafters learn meanwhile, and have ended when all groups are there."""
        self.drafters.begin_rollout()
        try:
            await super().sample(step, emit, version, give)
        finally:
            await self.aside(self.drafters.end_rollout)

    async def update(self, batch: Batch) -> dict[str, float]:
        await self.backend.pause("keep")
        await self._in_turn.learn()
        figures = await self.aside(self._update, batch)
        await self.backend.load_weights(None, batch.step)
        await self._in_turn.sample()
        return figures

    def _update(self, batch: Batch) -> dict[str, float]:
        """Drafters hear the learner's pass."""
        return self.trainer.update(batch) | self.drafters.after_update()

    def remember(self) -> None:
        super().remember()
        if self.speculator is not None:
            self.speculator.remember()

    async def learned(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, numbers = self.trainer.state_dict()
        drafted, state = self.drafters.state_dict()
        if self.speculator is not None:
            state["chooser"] = self.speculator.state()
        return tensors | drafted, {"trainer": numbers, "draft": state}

    async def relearn(self, path: Path, state: dict[str, Any]) -> None:
        saved = checkpoint.load(path)
        self.trainer.load_state_dict(saved.tensors, state["trainer"])
        self.drafters.load_state_dict(saved.tensors, state["draft"])
        if self.speculator is not None and "chooser" in state["draft"]:  # those of engines in workers are not saved
            self.speculator.restore(state["draft"]["chooser"])
        if saved.step:
            await self.backend.load_weights(None, saved.step)

    async def write_model(self, folder: Path) -> None:
        await self.aside(save_folder, self.model.decoder, self.model.tokenizer, folder)
        await self.aside(self.drafters.export, folder.parent / "drafter")
