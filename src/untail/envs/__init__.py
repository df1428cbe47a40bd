"""Who answers the model between two of its turns. One file per environment."""

from untail.envs import calculator, try_again
from untail.envs.base import ENVIRONMENTS, Answer, Environment, Turn

__all__ = ["ENVIRONMENTS", "Answer", "Environment", "Turn", "calculator", "try_again"]
