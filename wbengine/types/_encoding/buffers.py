"""Bytes in trees: base64 text, or the index of a buffer outside of the tree.

`collecting` diverts large buffers while a value is encoded, and `reading` provides them while it is
decoded.
"""

from __future__ import annotations

import base64
import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from wbengine import exceptions
from wbengine.types._encoding import walk

#: An object with the buffer protocol. `collections.abc.Buffer` requires Python 3.12.
Buffer: TypeAlias = Any

#: Shorter buffers stay in the tree, because a reference to them would save nothing.
MIN_BYTES: Final = 1024


class _Provided:
    """The buffers of a tree. Each of them can be taken once, so that a tree cannot multiply them.

    :raises ValueError: from `take`, for any other index.
    """

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self.remaining = dict(enumerate(buffers))

    def take(self, index: Any) -> Buffer:
        if type(index) is not int or index not in self.remaining:
            raise ValueError(f"buffer {walk.short(index)} does not exist, or is used twice")
        return self.remaining.pop(index)


_collected: Final = contextvars.ContextVar[list[Buffer] | None]("collected", default=None)
_provided: Final = contextvars.ContextVar[_Provided | None]("provided", default=None)


@contextlib.contextmanager
def collecting() -> Iterator[list[Buffer]]:
    """Collect large buffers of values that are encoded in the `with` block. They are not copied."""
    buffers: list[Buffer] = []
    token = _collected.set(buffers)
    try:
        yield buffers
    finally:
        _collected.reset(token)


@contextlib.contextmanager
def reading(buffers: Sequence[Buffer]) -> Iterator[None]:
    """Provide buffers to values that are decoded in the `with` block.

    :raises InvalidFormat: after a block that did not use all of them.
    """
    provided = _Provided(buffers)
    token = _provided.set(provided)
    try:
        yield
    finally:
        _provided.reset(token)
    if provided.remaining:
        raise exceptions.InvalidFormat(f"{len(provided.remaining)} buffers are not used")


def write(data: Buffer) -> str | int:
    """Return base64 text, or the index of the collected buffer."""
    buffers = _collected.get()
    if buffers is not None and memoryview(data).nbytes >= MIN_BYTES:
        buffers.append(data)
        return len(buffers) - 1
    return base64.b64encode(data).decode()


def read(written: Any) -> Buffer:
    """Return the buffer that `write` received, or an equal one.

    :raises ValueError: if it is neither base64 text nor the index of a buffer.
    """
    if type(written) is str:
        return base64.b64decode(written, validate=True)
    return (_provided.get() or _Provided(())).take(written)


def _write_bytes(value: bytes, depth_left: int) -> walk.Parts:
    written = write(value)
    return {"v" if type(written) is str else "i": written}


def _read_bytes(parts: walk.Parts, depth_left: int) -> bytes:
    ((key, written),) = parts.items()
    if (key == "v") is not (type(written) is str):
        raise TypeError(f"{key} has another type")
    return bytes(read(written))


_BYTES: Final = walk.Tag("bytes", _write_bytes, _read_bytes, frozenset({"v", "i"}))
walk.BY_CLASS[bytes] = _BYTES
walk.BY_NAME[_BYTES.name] = _BYTES
