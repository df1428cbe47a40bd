"""A recipe with every field of every plug-in written out: what is shown, and what a run's folder keeps."""

from untail.config import Recipe
from untail.learn import rules
from untail.rollout import mechanisms


def resolved(recipe: Recipe) -> Recipe:
    return mechanisms.resolved(recipe.model_copy(update={"learn": rules.resolved(recipe.learn)}))
