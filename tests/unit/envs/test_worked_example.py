"""The worked example of docs/turns.md does what the page says."""

import re
from pathlib import Path
from unittest.mock import patch

from untail.envs import ENVIRONMENTS, Turn
from untail.types import Prompt

PAGE = Path(__file__).parents[3] / "docs" / "turns.md"


async def test_the_example():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with patch.dict(ENVIRONMENTS._classes):
        exec(compile(code, str(PAGE), "exec"), {"__name__": "example"})
        dictionary = ENVIRONMENTS.build({"name": "dictionary", "turns": 2}, "environment")
    told = {"so [seven?]": "7", "so [nine?]": "not found", "#### 7": None}
    for text, reply in told.items():
        assert await dictionary.reply(Turn(Prompt("p", "t", "", (1,)), 1, text, 0, None)) == reply


def test_the_table_has_every_environment_that_ships():
    assert re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE) == ENVIRONMENTS.names()
