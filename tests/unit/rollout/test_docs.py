"""The documentation says what is there, and its examples work."""

import importlib.util
import re
import tomllib
from pathlib import Path
from unittest.mock import patch

from tests.helpers.rollout import FakeView, make_group, write

import untail
from untail.config import RolloutConfig
from untail.rollout.mechanisms import MECHANISMS, Mechanisms

ROOT = Path(untail.__file__).parents[2]
ROLLOUT = (ROOT / "docs" / "rollout.md").read_text()


def test_the_page_of_mechanisms_is_what_the_registry_says():
    spec = importlib.util.spec_from_file_location("mechanisms_page", ROOT / "scripts" / "mechanisms_page.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text() == script.page(), "run scripts/mechanisms_page.py"


def test_the_example_of_a_plugin_works():
    stanza, recipe, *_ = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", ROLLOUT, re.DOTALL)][1:]
    assert list(stanza["project"]["entry-points"]) == ["untail.plugins"]
    example = next(block for block in re.findall(r"```python\n(.*?)```", ROLLOUT, re.DOTALL) if "def state" in block)
    with patch.dict(MECHANISMS._classes):
        exec(example, {})
        first, second = (Mechanisms(recipe["mechanisms"], RolloutConfig(max_tokens=100)) for _ in range(2))
    member = write(make_group().members[0], [1] * 32, entropy=1e-4)
    verdict = first.look(member, FakeView(), True, set())
    assert (verdict.act, verdict.reason) == ("stop", "too_sure")
    second.restore(first.state())
    assert second.state() == {"too_sure": {"stopped": 1}}
