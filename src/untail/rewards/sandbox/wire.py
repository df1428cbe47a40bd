"""Messages over a stream socket: four bytes of length, then that many bytes. Standard library only."""

import socket
import struct

HEADER = struct.Struct("<I")


def framed(payload: bytes) -> bytes:
    return HEADER.pack(len(payload)) + payload


def send(sock: socket.socket, payload: bytes) -> None:
    sock.sendall(framed(payload))


def receive(sock: socket.socket) -> bytes | None:
    """The next message, or None if the other side is gone. Nothing beyond the message is read."""
    header = _exactly(sock, HEADER.size)
    return None if header is None else _exactly(sock, HEADER.unpack(header)[0])


def _exactly(sock: socket.socket, length: int) -> bytes | None:
    if length == 0:
        return b""
    buffer = bytearray(length)
    view = memoryview(buffer)
    done = 0
    while done < length:
        count = sock.recv_into(view[done:])
        if count == 0:
            return None
        done += count
    return bytes(buffer)
