"""A recipe's engine and learner, wherever they are built: in the driver's process, or in a worker's."""

from functools import partial

from torch.distributed import ProcessGroup

from untail.config import Recipe
from untail.draft import build as drafting
from untail.draft.adaptive.target import Target
from untail.draft.speculation import Speculator
from untail.draft.training import DraftTraining
from untail.engine.engine import Engine
from untail.engine.models.decoder import Decoder
from untail.engine.models.load import LoadedModel
from untail.learn.policy import Hear
from untail.learn.trainer import Trainer


def build_engine(recipe: Recipe, model: LoadedModel) -> tuple[Engine, Speculator | None]:
    """And who drafts for it."""
    config = recipe.engine
    if recipe.deterministic:
        # What the cache holds would depend on where a run was resumed, and with it the rounding; keys and values
        # of older weights are gone by then.
        config = config.model_copy(update={"prefix_cache": False, "kv_after_update": "recompute"})
    # How many tokens a step gives depends on what drafters know, and not all of that is in a checkpoint.
    speculator = None if recipe.deterministic else drafting.build(recipe.draft, recipe.seed)
    decode = partial(model.tokenizer.decode, skip_special=False)
    engine = Engine(model.decoder, config, decode, speculator)
    engine.warm_up()
    return engine, speculator


def build_draft_training(recipe: Recipe, target: Target) -> DraftTraining:
    """Of the drafters that learn, beside the learner's weights; in deterministic mode nothing is drafted."""
    return DraftTraining() if recipe.deterministic else drafting.build_training(recipe.draft, target)


def build_trainer(
    recipe: Recipe, decoder: Decoder, hear: Hear | None = None, group: ProcessGroup | None = None
) -> Trainer:
    return Trainer(decoder, recipe.learn, recipe.rollout.temperature, recipe.rollout.max_tokens, hear, group)
