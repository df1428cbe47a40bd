"""A recipe with every field of every plug-in written out: what is shown, and what a run's folder keeps.

Invariant: what contradicts itself is refused here, before anything is loaded.
"""

from untail.config import Recipe
from untail.draft import build as drafting
from untail.learn import rules
from untail.rollout import mechanisms


def resolved(recipe: Recipe) -> Recipe:
    plain = {"learn": rules.resolved(recipe.learn), "draft": drafting.resolved(recipe.draft)}
    recipe = mechanisms.resolved(recipe.model_copy(update=plain))
    made = mechanisms.Mechanisms(recipe.mechanisms, recipe.rollout)
    learner = rules.rules_of(recipe.learn, recipe.rollout.max_tokens)
    lossy = [*made.lossy, *drafting.lossy(recipe.draft)]
    rollout = rules.Rollout(lossy, made.copiers, made.sure_pruners, made.masking_pruners, made.rest == "defer")
    rules.refuse_unfit(learner, recipe.learn.bridge is not None, rollout)
    return recipe
