"""All lengths of section 3 are written for a budget of 8192 tokens and more; with a smaller one they shrink with it.

The budget is that of the recipe (`rollout.max_tokens`), not of one group: segments are then alike over all groups.
Windows of so many last tokens do not shrink: they are about the text.
"""

from untail.errors import ConfigError
from untail.history.predictor import FULL_BUDGET


def scaled(tokens: int, budget: int) -> int:
    return max(1, round(tokens * min(1, budget / FULL_BUDGET)))


def refuse_over_budget(field: str, tokens: int, budget: int) -> None:
    """A length that is over the budget, once it is scaled."""
    most = max(budget, FULL_BUDGET)
    if tokens > most:
        scales = f" (lengths scale with it below {FULL_BUDGET})" if budget < FULL_BUDGET else ""
        raise ConfigError(
            f"{field} = {tokens} is longer than the longest response, rollout.max_tokens = {budget}{scales}; set it to "
            f"at most {most}"
        )
