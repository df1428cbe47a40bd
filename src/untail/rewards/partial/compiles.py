"""Whether the code so far compiles, as Python: 1 if the last closed code block does, 0 if not, None while there is
none.

A block that is still open is no reason to judge. Only the last one counts: a response may mend what it wrote before.
"""

import warnings

from untail.rewards.code import FENCE
from untail.rewards.partial.base import PARTIALS, Partial
from untail.types import Prompt


@PARTIALS.register("compiles")
class Compiles(Partial):
    def score(self, text: str, prompt: Prompt) -> float | None:
        blocks = FENCE.findall(text)
        if not blocks:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a strange escape is not an error
                compile(blocks[-1], "<response>", "exec")
        except (SyntaxError, ValueError):  # ValueError: a null byte
            return 0.0
        return 1.0
