"""Python values as plain JSON and back, with the difference between a tuple and a list kept.

Invariant: `from_plain(json.loads(json.dumps(to_plain(value))))` equals `value` for anything built of None, bool, int,
float, str, bytes, complex, list, tuple, set, frozenset and dict (of any keys). Subclasses come back as the plain type.
Reading is safe whoever wrote the JSON: it makes values of these types and nothing else. Standard library only.
"""

from collections.abc import Callable
from typing import Any, cast

_COLLECTIONS: dict[str, type[Any]] = {"__tuple__": tuple, "__set__": set, "__frozenset__": frozenset}


def refuse(value: Any) -> Any:
    raise TypeError(f"a value of type {type(value).__name__} cannot be written as plain data")


def to_plain(value: Any, other: Callable[[Any], Any] = refuse) -> Any:
    """`other` writes what has no plain form; what it returns has to be plain JSON."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)  # drops the subclass: numpy's float64 is a float, its str_ a str
    if isinstance(value, list):
        return [to_plain(item, other) for item in value]
    if isinstance(value, dict):
        return _dict_to_plain(value, other)
    for tag, collection in _COLLECTIONS.items():
        if isinstance(value, collection):
            return {tag: [to_plain(item, other) for item in value]}
    if isinstance(value, bytes):
        return {"__bytes__": value.hex()}
    if isinstance(value, complex):
        return {"__complex__": [value.real, value.imag]}
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():  # a numpy scalar
        return to_plain(value.item(), other)
    return other(value)


def _dict_to_plain(value: dict[Any, Any], other: Callable[[Any], Any]) -> Any:
    if all(isinstance(key, str) and not key.startswith("__") for key in value):
        return {str(key): to_plain(item, other) for key, item in value.items()}
    return {"__dict__": [[to_plain(key, other), to_plain(item, other)] for key, item in value.items()]}


def from_plain(value: Any, tags: dict[str, Callable[[Any], Any]] | None = None) -> Any:
    """`tags` reads the forms that `other` wrote: {"__tag__": ...}."""
    if isinstance(value, list):
        return [from_plain(item, tags) for item in value]
    if not isinstance(value, dict):
        return value
    tag, content = next(iter(value.items())) if len(value) == 1 else ("", cast(Any, None))
    if tag in _COLLECTIONS:
        return _COLLECTIONS[tag](from_plain(item, tags) for item in content)
    if tag == "__dict__":
        return {from_plain(key, tags): from_plain(item, tags) for key, item in content}
    if tag == "__bytes__":
        return bytes.fromhex(content)
    if tag == "__complex__":
        return complex(*content)
    if tags and tag in tags:
        return tags[tag](content)
    return {key: from_plain(item, tags) for key, item in value.items()}
