"""Imports run one way, and the package costs nothing to import."""

import ast
import subprocess
import sys
from pathlib import Path

import untail

SOURCE = Path(untail.__file__).parent
# Each room and what it may import; a room always sees itself and the ground.
GROUND = {"errors", "types", "notice", "config", "registry", "tokenizer"}
MAY_IMPORT = {
    "errors": set(),
    "types": set(),
    "notice": set(),
    "config": {"errors"},
    "registry": {"errors", "config"},
    "tokenizer": {"errors"},
    "rewards": GROUND,
    "tasks": GROUND | {"rewards"},
    "engine": GROUND,
    "draft": GROUND | {"engine"},
    "backends": GROUND | {"engine"},
    "envs": GROUND,
    "history": GROUND,
    "observe": GROUND | {"history"},
    "rollout": GROUND | {"backends", "envs", "history", "observe", "rewards"},
    "learn": GROUND | {"engine"},
    "flow": GROUND | {"backends", "draft", "engine", "history", "learn", "observe", "rewards", "rollout"},
    "embodied": GROUND | {"flow", "learn"},
    "run": GROUND | {"learn", "observe"},
    "train": GROUND | {"flow", "observe", "run", "tasks"},
    "resolve": GROUND | {"draft", "learn", "rollout"},
    "compare": GROUND | {"engine", "flow", "observe", "resolve", "run", "tasks", "train"},
    "simulate": GROUND | {"backends", "history", "observe", "rewards", "rollout"},
    "bench": GROUND | {"draft", "engine", "learn", "backends", "flow", "rewards", "rollout", "tasks"},
    "cli": None,
}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"untail.{alias.name}" for alias in node.names] if node.module == "untail" else [node.module]
        found |= {name.split(".")[1] for name in names if name.startswith("untail.")}
    return found


def test_imports_run_one_way():
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        allowed = MAY_IMPORT.get(room, set())
        if room == "__init__" or allowed is None:
            continue
        assert room in MAY_IMPORT, f"{room} is a room that this test does not know"
        wrong = imports_of(path) - allowed - {room, "__version__"}
        assert not wrong, f"{path.relative_to(SOURCE)} imports {sorted(wrong)}"


def test_learner_and_rollout_meet_only_in_types():
    assert "rollout" not in MAY_IMPORT["learn"]
    assert "learn" not in MAY_IMPORT["rollout"]


def test_importing_the_package_and_its_config_brings_no_torch():
    code = "import sys, untail, untail.config, untail.types, untail.tasks, untail.rewards, untail.envs; "
    code += "import untail.cli.main; "
    code += "print(*{'torch', 'ray', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
