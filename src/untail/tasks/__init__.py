"""What a model is asked. One file per task; `load_tasks` turns a recipe's table into prompts."""

import importlib
import pkgutil

from untail.tasks.base import TASKS, Row, Task, build_task
from untail.tasks.load import TaskSet, load_tasks, read_rows
from untail.tasks.names import table_of

for _module in pkgutil.iter_modules(__path__):  # each registers its task: a new task is a new file, nothing else
    if not _module.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["TASKS", "Row", "Task", "TaskSet", "build_task", "load_tasks", "read_rows", "table_of"]
