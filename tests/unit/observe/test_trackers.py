"""TensorBoard by itself, wandb and trackio when asked for."""

import importlib.machinery
import sys
import types

import pytest

from untail.config import load_recipe
from untail.errors import ConfigError
from untail.observe.trackers import flat, make_trackers, refuse_if_missing

ROW = {"step": 3, "reward": 0.5, "learn": {"loss": 0.25}, "ends": {"stop": 2}, "note": "text"}


def test_nested_numbers_get_joined_names():
    assert flat(ROW) == {"step": 3.0, "reward": 0.5, "learn/loss": 0.25, "ends/stop": 2.0}


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_that_is_named_hears_of_every_row(name, tmp_path, monkeypatch):
    calls = []
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.init = lambda **settings: calls.append(("init", settings["project"], settings["config"]["steps"]))
    module.log = lambda numbers, step: calls.append(("log", numbers["learn/loss"], step))
    monkeypatch.setitem(sys.modules, name, module)
    recipe = load_recipe(None, {}, [f"trackers=['{name}']", "steps=7"])
    for tracker in make_trackers(recipe, tmp_path):
        tracker(ROW)
    assert calls == [("init", "untail", 7), ("log", 0.25, 3)]
    assert any((tmp_path / "tensorboard").iterdir())


def test_a_tracker_that_is_not_installed():
    with pytest.raises(ConfigError, match="trackers names 'trackio', which is not installed; pip install trackio"):
        refuse_if_missing(load_recipe(None, {}, ["trackers=['trackio']"]))
