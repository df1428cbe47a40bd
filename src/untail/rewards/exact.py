r"""The answer, word for word.

The response's answer is what stands in <answer> tags, else in \boxed{}, else after ####, else its last line. White
space is compared as one blank; everything else counts.
"""

from untail.rewards.base import REWARDS, Reward
from untail.rewards.extract import last_line, marked, truth
from untail.types import Prompt


@REWARDS.register("exact")
class Exact(Reward):
    def score(self, response: str, prompt: Prompt) -> float:
        answer = marked(response)
        if answer is None:
            answer = last_line(response)
        return float(answer.split() == truth(prompt.data["answer"]).split())
