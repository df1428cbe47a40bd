"""One registry class for every kind of plug-in.

Invariant: a name stands for exactly one class; an unknown name raises and lists the known ones. A plug-in class carries
its own torch-free pydantic `Config`, so that a recipe table `{name = "x", ...}` is checked by the class it names.
Other packages add theirs through the entry-point group "untail.plugins": each entry point is a module to import.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from untail.config import parse
from untail.errors import ConfigError, nearest

T = TypeVar("T")
_plugins_loaded = False


def load_plugins() -> None:
    """Import every installed plug-in once; their modules register themselves."""
    global _plugins_loaded
    if not _plugins_loaded:
        for entry in entry_points(group="untail.plugins"):
            try:
                entry.load()
            except Exception as error:
                raise ConfigError(
                    f"the plug-in {entry.name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}; "
                    "mend it, or uninstall the package that brings it"
                ) from error
        _plugins_loaded = True


class Registry(Generic[T]):
    def __init__(self, kind: str):
        self.kind = kind
        self._classes: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        def add(cls: type[T]) -> type[T]:
            if name in self._classes:
                raise ConfigError(f"{self.kind} {name!r} is registered twice; rename one of them")
            self._classes[name] = cls
            return cls

        return add

    def names(self) -> list[str]:
        load_plugins()
        return sorted(self._classes)

    def get(self, name: str, where: str = "") -> type[T]:
        """`where` is the field that asks for it."""
        load_plugins()
        if name not in self._classes:
            field = f"{where}: " if where else ""
            raise ConfigError(f"{field}unknown {self.kind} {name!r}; {nearest(name, self.names())}")
        return self._classes[name]

    def build(self, table: dict[str, Any], where: str, *args: Any) -> T:
        """The plug-in that `table["name"]` stands for, made from the rest of the table (checked by its `Config`)."""
        fields = dict(table)
        name = fields.pop("name", None)
        if name is None:
            raise ConfigError(f"{where} has no name; set {where}.name to one of: {', '.join(self.names())}")
        cls: Any = self.get(str(name), where)
        return cls(parse(cls.Config, fields, where), *args)
