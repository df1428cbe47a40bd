"""The process that a code answer runs in: it executes the answer, then does calls for the judge until it is killed.

Nothing here has to be trusted. The answer owns this process and may patch whatever it finds; all it can achieve is what
its functions return. Standard library only.
"""

import json
import socket
from typing import Any

from . import plain, wire


class Answer:
    """The answer's namespace, and the objects of it that the judge holds a handle of."""

    def __init__(self, code: str):
        self.namespace: dict[str, Any] = {"__name__": "answer"}
        self.held: list[Any] = []
        self.problem: BaseException | None = None
        try:
            exec(compile(code, "answer.py", "exec"), self.namespace)
        except BaseException as error:  # SystemExit too: an answer that leaves is not an answer
            self.problem = error

    def do(self, request: dict[str, Any]) -> Any:
        if self.problem is not None:
            raise self.problem
        if "name" in request:
            return self.namespace[request["name"]]
        if "attribute" in request:
            return getattr(self.held[request["of"]], request["attribute"])
        args = plain.from_plain(request["args"], {"__held__": self.held.__getitem__})
        kwargs = plain.from_plain(request["kwargs"], {"__held__": self.held.__getitem__})
        return self.held[request["call"]](*args, **kwargs)

    def hold(self, value: Any) -> dict[str, int]:
        self.held.append(value)
        return {"__held__": len(self.held) - 1}


def serve(code: str, sock: socket.socket) -> None:
    answer = Answer(code)
    while (message := wire.receive(sock)) is not None:
        try:
            reply = {"value": plain.to_plain(answer.do(json.loads(message)), answer.hold)}
            payload = json.dumps(reply).encode()
        except BaseException as error:
            payload = json.dumps({"raised": [type(error).__name__, str(error)[:1000]]}).encode()
        wire.send(sock, payload)
