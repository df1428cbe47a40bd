"""The judge of a code answer: it runs the row's unit tests, and reaches the answer's functions only by message.

Invariant: the verdict is formed in a process that never executes the answer, from plain values (numbers, texts,
lists, ...) that it builds itself out of JSON. So exit codes, printing, `os._exit`, a patched `assert`, objects that
are equal to everything: none of it reaches the verdict. The tests are read after the answer's process was forked and
cannot be read out of this one. Both processes are confined (see `confine`).

What tests see of the answer: its global names, for every name that they use and do not define; functions and objects
as proxies that can be called and asked for attributes, items and length. Values cross as copies (an argument changed
in place stays as it was here), a proxy equals only itself and has no truth value, and tests cannot hand over
functions or objects of their own: that is reported as a failure.

Standard library only. Run as: python -I judge.py SOCKET_FD PARENT_PID; the first message is the code, the second the
tests.
"""

import ast
import builtins
import importlib
import json
import os
import resource
import socket
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

MOST_OPEN_FILES = 64


class AnswerGone(BaseException):
    """Not an Exception: a test's `except Exception` must not take it for the answer's own error."""


class Unsupported(BaseException):
    """The tests want something of a proxy that cannot cross between the processes."""


class Proxy:
    """A function or object that lives in the answer's process."""

    def __init__(self, ask: Callable[[dict[str, Any]], Any], handle: int):
        self.__dict__.update(_ask=ask, _handle=handle)

    def __getattr__(self, name: str) -> Any:
        return self._ask({"of": self._handle, "attribute": name})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask({"call": self._handle, "args": list(args), "kwargs": kwargs})

    def __bool__(self) -> bool:
        raise TypeError("an object of the answer has no truth value in a test")


def _forwarded(name: str) -> Callable[..., Any]:
    def forward(self: Proxy, *args: Any) -> Any:
        try:
            method = self.__getattr__(name)
        except AttributeError as error:  # what Python itself says of an object without it
            raise TypeError(str(error)) from None
        return method(*args)

    return forward


for _name in ("__len__", "__iter__", "__next__", "__getitem__", "__setitem__", "__contains__", "__str__"):
    setattr(Proxy, _name, _forwarded(_name))


class Link:
    """Asks the answer's process and reads its replies."""

    def __init__(self, sock: socket.socket, plain: ModuleType, wire: ModuleType):
        self.sock, self.plain, self.wire = sock, plain, wire

    def ask(self, request: dict[str, Any]) -> Any:
        for key in ("args", "kwargs"):
            if key in request:
                request[key] = self.plain.to_plain(request[key], _hand_back)
        try:
            self.wire.send(self.sock, json.dumps(request).encode())
            message = self.wire.receive(self.sock)
        except OSError:
            message = None
        if message is None:
            raise AnswerGone
        reply = json.loads(message)
        if "raised" in reply:
            raise _as_exception(*reply["raised"])
        return self.plain.from_plain(reply["value"], {"__held__": lambda handle: Proxy(self.ask, int(handle))})


def _hand_back(value: Any) -> dict[str, int]:
    if isinstance(value, Proxy):
        return {"__held__": value._handle}
    raise Unsupported(f"the tests hand a {type(value).__name__} to the answer; only plain values can be handed over")


def _as_exception(name: str, message: str) -> Exception:
    kind = getattr(builtins, str(name), None)
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, UnicodeError):
        return kind(message)
    return RuntimeError(f"{name}: {message}")


def names_wanted(tests: str) -> set[str]:
    """The names that the tests use and neither bind, nor import, nor find among Python's own."""
    used: set[str] = set()
    bound = set(dir(builtins)) | {"__name__"}
    for node in ast.walk(ast.parse(tests)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return used - bound


def run_tests(link: Link, tests: str, entry_point: str | None) -> dict[str, Any]:
    """`{"passed": bool}`, or `{"failure": why}` if it is the tests that cannot be run."""
    try:
        wanted = names_wanted(tests) | ({entry_point} if entry_point else set())
    except SyntaxError as error:
        return {"failure": f"the tests are not valid Python: {error}"}
    if not wanted:
        return {"failure": "the tests use no name of the answer"}
    namespace: dict[str, Any] = {"__name__": "tests"}
    try:
        for name in wanted:
            namespace[name] = link.ask({"name": name})
        exec(compile(tests, "tests.py", "exec"), namespace)
        if entry_point and "check" in namespace:  # HumanEval's form
            namespace["check"](namespace[entry_point])
    except Unsupported as error:
        return {"failure": str(error)}
    except BaseException:
        return {"passed": False}
    return {"passed": True}


def _load_siblings() -> list[ModuleType]:
    """The modules beside this file, by a package made by hand: `-I` keeps this folder off the path."""
    package = ModuleType("sandbox")
    package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
    sys.modules["sandbox"] = package
    return [importlib.import_module(f"sandbox.{name}") for name in ("confine", "plain", "wire", "answer")]


def main(worker_fd: int, worker_pid: int) -> None:
    confine, plain, wire, answer = _load_siblings()
    confine.die_with_parent()
    if os.getppid() != worker_pid:  # it ended before the line above
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_OPEN_FILES, MOST_OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.set_int_max_str_digits(0)  # the time limit guards against large numbers; tests with them are fair
    worker = socket.socket(fileno=worker_fd)
    code = wire.receive(worker).decode()
    ours, theirs = socket.socketpair()
    judge_pid = os.getpid()
    if os.fork() == 0:
        worker.close()
        ours.close()
        confine.die_with_parent()
        if os.getppid() == judge_pid:
            confine.confine()
            answer.serve(code, theirs)
        os._exit(0)
    theirs.close()
    confine.confine()
    request = json.loads(wire.receive(worker))
    verdict = run_tests(Link(ours, plain, wire), request["tests"], request["entry_point"])
    wire.send(worker, json.dumps(verdict).encode())
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
