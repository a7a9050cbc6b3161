"""The socket of an AMQP connection, in the place of py-amqp's transport: read and written in large
pieces, by several threads, none of which waits for it.
"""

from __future__ import annotations

import contextlib
import select
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from amqp import exceptions as amqp_errors
from kombu.transport import pyamqp

from wbengine.transports import _amqp_frames as frames

#: Seconds that a broker may take to read what it is sent, and to answer what it is asked.
STALL: Final = 10.0

#: Bytes that are asked for at once, and that are offered to the system at once.
_READ: Final = 64 * 1024
_WRITE: Final = 256 * 1024

_BEGIN: Final = struct.Struct(">BHI")

#: The system has nothing, or takes nothing; TLS says so in two ways.
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class AmqpSocket:
    """What a connection of py-amqp has for a transport; `transport`, which is py-amqp's, connects.

    One thread owns it: it reads, and calls py-amqp.  Any thread may `put` whole frames and `flush`:
    they go out in the order of the calls, each in one piece.  What the system does not take at once
    is left to the owner, who is told by `wake()`.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        #: Of the system; none of py-amqp's is to wait for it.
        self.sock: Any = None
        self.wake: Callable[[], None] = _nobody
        #: Received, and not read beyond `at`.
        self.got = b""
        self.at = 0
        self._out: deque[bytes] = deque()
        self._unsent = b""
        self._stuck_since = 0.0
        # The thread that holds back what it writes.
        self._corked = 0
        self._broken: OSError | None = None
        self._writing = threading.Lock()
        # No two threads may use TLS.
        self._reading: Any = contextlib.nullcontext()
        self._timeout: float | None = None

    # As py-amqp calls it.

    @property
    def connected(self) -> bool:
        return bool(self._transport.connected) and self._broken is None

    def connect(self) -> None:
        self._transport.connect()
        self.sock = self._transport.sock
        self.sock.setblocking(False)
        if isinstance(self.sock, ssl.SSLSocket):
            self._reading = self._writing

    def close(self) -> None:
        with self._writing:
            self._broken = self._broken or ConnectionError("it was closed")
            self._transport.close()

    @contextlib.contextmanager
    def having_timeout(self, timeout: float | None) -> Iterator[None]:
        before, self._timeout = self._timeout, timeout
        try:
            yield
        finally:
            self._timeout = before

    def read_frame(self) -> tuple[int, int, bytes]:
        """Wait for a frame that says something, and take it: a broker that only beats is as silent.

        :raises TimeoutError: none came.
        :raises ConnectionError: the broker does not even read what it is sent.
        """
        self._send()  # it may be an answer to that
        until = time.monotonic() + (STALL if self._timeout is None else self._timeout)
        found = self._next()
        while found is None:
            if not self._await(max(0.0, until - time.monotonic())):
                if self._unsent:
                    raise ConnectionError("it does not read what it is sent")
                raise TimeoutError("timed out")
            if self.is_busy:
                self.proceed()
            self.fill()
            found = self._next()
        return found

    def _next(self) -> tuple[int, int, bytes] | None:
        while self.pending:
            found = self.frame()
            if found[0] != frames.HEARTBEAT:
                return found
        return None

    def _await(self, seconds: float) -> bool:
        waiting = select.poll()
        waiting.register(self.sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        return bool(waiting.poll(seconds * 1000))

    def write(self, data: Any) -> None:
        """:raises OSError: the connection is lost."""
        self._out.append(bytes(data))  # which is written over soon
        self.flush()
        if self._broken is not None:
            raise self._broken

    # Writing.

    @property
    def is_stuck(self) -> bool:
        """Whether the system took only a part of what was to be sent."""
        return bool(self._unsent)

    @property
    def is_busy(self) -> bool:
        """Whether there is something for `proceed` to do."""
        return bool(self._out or self._unsent) or self._broken is not None

    def put(self, data: bytes) -> None:
        """Let this go out with the next `flush`; any thread."""
        self._out.append(data)

    def flush(self) -> None:
        """Send what was put, as far as that goes without waiting; any thread."""
        if self._corked != threading.get_ident():
            self._send()

    def _send(self) -> None:
        # Whoever holds the lock looks again once he let go of it: nothing is left behind.
        while self._has_work and self._writing.acquire(blocking=False):
            try:
                self._push()
            finally:
                self._writing.release()
        if self._unsent or self._broken is not None:
            self.wake()

    @property
    def _has_work(self) -> bool:
        return bool(self._out) and not self._unsent and self._broken is None

    def _push(self) -> None:
        while (self._out or self._unsent) and self._broken is None:
            data = self._unsent
            if not data:
                parts, size = [], 0
                while self._out and size < _WRITE:
                    parts.append(self._out.popleft())
                    size += len(parts[-1])
                data = parts[0] if len(parts) == 1 else b"".join(parts)
            self._unsent = self._offer(data)
            if self._unsent:
                return

    def _offer(self, data: bytes) -> bytes:
        """Send; what is left."""
        try:
            sent = self.sock.send(data)
        except _NOT_NOW:
            sent = 0
        except OSError as error:
            self._broken = _lost(error)
            return b""
        if sent or not self._unsent:
            self._stuck_since = time.monotonic()
        return data[sent:]

    def proceed(self, since: float = 0.0) -> None:
        """Send what the system takes now; the owner.

        :raises OSError: the connection is lost, or nobody reads what is sent, although the broker
            was expected to since then.
        """
        if self._unsent:
            with self._writing:
                self._push()
            if self._unsent and time.monotonic() - max(self._stuck_since, since) > STALL:
                self._broken = ConnectionError("it does not read what it is sent")
        self._send()
        if self._broken is not None:
            raise self._broken

    @contextlib.contextmanager
    def corked(self) -> Iterator[None]:
        """Hold back what this thread writes, until the end, or until it waits for an answer."""
        self._corked = threading.get_ident()
        try:
            yield
        finally:
            self._corked = 0
            self.flush()

    # Reading.

    @property
    def pending(self) -> bool:
        """Whether there is a whole frame that nobody has read."""
        left = len(self.got) - self.at
        if left < 8:
            return False
        return left >= 8 + int.from_bytes(self.got[self.at + 3 : self.at + 7], "big")

    def fill(self) -> None:
        """Take in what there is, without waiting for it.

        :raises OSError: the connection is lost.
        """
        left = self.got[self.at :]
        try:
            with self._reading:
                found = self.sock.recv(_READ)
        except _NOT_NOW:
            found = None
        except OSError as error:
            raise _lost(error) from error
        if self._reading is self._writing and self._out:
            self._send()  # others may have found it in use
        if found == b"":
            raise ConnectionResetError("the broker has closed the connection")
        self.got, self.at = left + found if found else left, 0

    def frame(self) -> tuple[int, int, bytes]:
        """Take the next frame, which is pending, as py-amqp has it.

        :raises UnexpectedFrame: it is none.
        """
        data, at = self.got, self.at
        kind, channel, size = _BEGIN.unpack_from(data, at)
        end = at + 7 + size
        if data[end] != frames.END:
            raise amqp_errors.UnexpectedFrame(f"a frame ends with {data[end]:#04x}")
        self.at = end + 1
        return kind, channel, data[at + 7 : end]


def _lost(error: OSError) -> OSError:
    """Whoever reads takes a timeout for: nothing came; this one is the system's, and final."""
    return ConnectionError(str(error)) if isinstance(error, TimeoutError) else error


def _nobody() -> None:
    """Whoever reads looks by itself."""


class _Connection(pyamqp.Connection):  # type: ignore[misc]
    def Transport(self, *args: Any, **options: Any) -> AmqpSocket:
        return AmqpSocket(super().Transport(*args, **options))


class Transport(pyamqp.Transport):  # type: ignore[misc]
    """kombu's transport to a RabbitMQ, with this socket."""

    Connection = _Connection
