"""Reading and writing much at once on a connection of py-amqp, which asks the system for each part
of each frame.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

__all__ = ["Buffer"]

#: Bytes that are asked for at once, and after which what is held back is written.
_READ: Final = 64 * 1024
_WRITE: Final = 128 * 1024


class Buffer:
    """What a plain (not TLS) transport of py-amqp reads and writes through; of one thread."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._recv = transport._quick_recv
        self._send = transport._write
        self._got = b""
        self._at = 0
        self._held: bytearray | None = None
        transport._quick_recv = self._receive
        transport._write = self._write

    @property
    def pending(self) -> int:
        """How many bytes were received that nobody has read."""
        return len(self._got) - self._at

    @contextlib.contextmanager
    def corked(self) -> Iterator[None]:
        """Hold back what is written, until the end, or until something is to be read."""
        self._held = bytearray()
        try:
            yield
        finally:
            self._flush()
            self._held = None

    def _flush(self) -> None:
        held = self._held
        if held:
            self._held = None
            self._transport.write(held)
            self._held = bytearray()

    def _write(self, data: Any) -> None:
        if self._held is None:
            self._send(data)
            return
        self._held += data
        if len(self._held) > _WRITE:
            self._flush()

    def _receive(self, count: int) -> bytes:
        """At least a byte, and at most so many; none when the connection has ended."""
        if not self.pending:
            self._flush()  # it may be an answer to that
            self._got, self._at = self._recv(_READ), 0
        found = self._got[self._at : self._at + count]
        self._at += len(found)
        return found
