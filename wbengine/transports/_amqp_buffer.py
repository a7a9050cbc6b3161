"""Reading and writing much at once on a connection of py-amqp, which asks the system for each part
of each frame.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["Buffer", "whole"]

#: Bytes that are asked for at once, and after which what is held back is written.
_READ: Final = 64 * 1024
_WRITE: Final = 128 * 1024


def whole(send: Callable[[Any], object]) -> Callable[[Any], None]:
    """`send`, but whoever is too slow to take all is lost: of a frame he may have a part."""

    def send_whole(data: Any) -> None:
        try:
            send(data)
        except TimeoutError as error:  # which others take for: there is nothing to read
            raise ConnectionError("it does not read what it is sent") from error

    return send_whole


class Buffer:
    """What a plain (not TLS) transport of py-amqp reads and writes through; of one thread.

    `patience`: seconds for what was held back to be written, however short reading may take.
    """

    def __init__(self, transport: Any, patience: float) -> None:
        self._transport = transport
        self._patience = patience
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
            if self._held:  # it may be an answer to that
                with self._transport.having_timeout(self._patience):
                    self._flush()
            self._got, self._at = self._recv(_READ), 0
        found = self._got[self._at : self._at + count]
        self._at += len(found)
        return found
