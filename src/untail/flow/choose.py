"""The way to run a recipe's roles: by its `flow` section."""

from typing import TYPE_CHECKING

from untail.config import Recipe
from untail.engine.models.load import LoadedModel
from untail.flow.cluster import make_cluster
from untail.flow.placement import refuse_what_cannot_be
from untail.flow.role_base import Roles, Tables
from untail.flow.roles import LocalRoles
from untail.types import Prompt

if TYPE_CHECKING:
    from untail.flow.auto import Auto


def make_roles(
    recipe: Recipe,
    model: LoadedModel,
    rewards: Tables,
    prompts: list[Prompt],
    partials: Tables | None = None,
    auto: "Auto | None" = None,
) -> Roles:
    """All that can be wrong with the recipe's roles is said here; what they need is there when this returns. `auto`:
    of roles that sat elsewhere, and are to move to where its plan puts them now."""
    refuse_what_cannot_be(recipe)
    flow = recipe.flow
    if flow.mode == "local":
        return LocalRoles(recipe, model, rewards, prompts, partials)
    from untail.flow.worker_roles import WorkerRoles

    cluster = make_cluster(flow.backend, flow.address, flow.devices, flow.lease_s)
    try:
        if flow.mode == "auto" and auto is None:
            from untail.flow.auto import Auto

            auto = Auto.of(recipe, cluster, prompts)
        return WorkerRoles(recipe, model, rewards, prompts, cluster, partials, auto)
    except BaseException:
        cluster.close()
        raise
