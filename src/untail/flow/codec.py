"""Messages as bytes, with the large buffers aside.

Invariant: what comes out equals what went in, except that tensors arrive on the CPU, without their history, and
parameters as plain tensors. Tensors and arrays never pass through the pickle stream: their bytes stay in buffers, which
a backend carries as it can (shared memory, an object store). Classes travel by name: what cannot be imported where it
arrives is refused where it is sent.
"""

import io
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

Buffer = memoryview | bytes | bytearray


def encode(thing: Any) -> tuple[bytes, list[memoryview]]:
    """The pickle stream and the buffers that belong to it."""
    stream, buffers = io.BytesIO(), []
    _Pickler(stream, protocol=5, buffer_callback=lambda buffer: buffers.append(buffer.raw())).dump(thing)
    return stream.getvalue(), buffers


def decode(stream: bytes, buffers: Sequence[Any]) -> Any:
    """Tensors and arrays share the buffers' memory where that is writable."""
    return pickle.loads(stream, buffers=buffers)


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        torch = sys.modules.get("torch")  # whoever has a tensor has imported it
        if torch is None or type(thing) not in (torch.Tensor, torch.nn.Parameter) or thing.layout != torch.strided:
            return NotImplemented
        flat = thing.detach().cpu().contiguous().reshape(-1)
        return _tensor, (pickle.PickleBuffer(flat.view(torch.uint8).numpy()), str(thing.dtype), tuple(thing.shape))


def _tensor(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    kind = getattr(torch, dtype.removeprefix("torch."))
    bytes_N = np.frombuffer(buffer, dtype=np.uint8)
    if not bytes_N.flags.writeable:
        bytes_N = bytes_N.copy()
    return torch.from_numpy(bytes_N).view(kind).reshape(shape) if bytes_N.size else torch.empty(shape, dtype=kind)
