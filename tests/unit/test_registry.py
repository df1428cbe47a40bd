"""One class per name; plug-ins find their way in; unknown names list the known."""

import re
import sys
import types

import pytest

from untail import registry
from untail.config import Strict
from untail.errors import ConfigError
from untail.registry import Registry


class Colour:
    class Config(Strict):
        depth: int = 1

    def __init__(self, config):
        self.config = config


@pytest.fixture
def colours():
    colours = Registry("colour")
    colours.register("red")(Colour)
    colours.register("blue")(Colour)
    return colours


def test_build_checks_the_table_with_the_class_it_names(colours):
    assert colours.build({"name": "red", "depth": 3}, "sky").config.depth == 3
    with pytest.raises(ConfigError, match=re.escape("unknown key 'sky.deph'; did you mean 'depth'?")):
        colours.build({"name": "red", "deph": 3}, "sky")
    with pytest.raises(ConfigError, match=re.escape("sky has no name; set sky.name to one of: blue, red")):
        colours.build({"depth": 3}, "sky")


def test_unknown_and_doubled_names(colours):
    with pytest.raises(ConfigError, match=re.escape("unknown colour 'bleu'; did you mean 'blue'? known: blue, red")):
        colours.get("bleu")
    with pytest.raises(ConfigError, match="'red' is registered twice"):
        colours.register("red")(Colour)


def test_a_plugin_that_cannot_be_loaded_is_named(colours, monkeypatch):
    class Broken:
        name, value = "greens", "a_plugin.colours"

        def load(self):
            raise ImportError("no module named 'paint'")

    monkeypatch.setattr(registry, "entry_points", lambda group: [Broken()])
    monkeypatch.setattr(registry, "_plugins_loaded", False)
    sentence = (
        r"the plug-in 'greens' \(a_plugin.colours\) cannot be loaded: ImportError: no module named 'paint'; mend it"
    )
    for _ in range(2):  # also when it is asked for again
        with pytest.raises(ConfigError, match=sentence):
            colours.get("red")


def test_plugins_register_themselves(colours, monkeypatch):
    module = types.ModuleType("a_plugin")

    class Entry:
        def load(self):
            sys.modules["a_plugin"] = module
            colours.register("green")(Colour)

    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry()] if group == "untail.plugins" else [])
    monkeypatch.setattr(registry, "_plugins_loaded", False)
    assert colours.names() == ["blue", "green", "red"]
