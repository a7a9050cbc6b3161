"""Socket of an AMQP connection, as a replacement for the transport of py-amqp.

It reads and writes large pieces and never blocks a thread on writing.
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

from wbengine.transports._amqp import amqp_frames as frames

#: Maximum time until the broker reads sent data, or replies to a method.
STALL_SECONDS: Final = 10.0

#: Bytes for each system call.
_READ_BYTES: Final = 64 * 1024
_WRITE_BYTES: Final = 256 * 1024

_BEGIN: Final = struct.Struct(">BHI")

#: Raised if the socket has no data or accepts none. The last two occur only with TLS.
_WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class AmqpSocket:
    """Transport of a py-amqp connection that never blocks on writing.

    The owner is one thread: it reads, and calls py-amqp. Any thread may call `put`, with complete
    frames, and `flush`. Frames are sent in the order of the calls. If the system does not accept
    all data at once, `wake()` is called and the owner sends the rest.

    :param transport: py-amqp's transport, which connects.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        #: The operating system's socket. It is non-blocking.
        self.sock: Any = None
        #: Until the owner sets it, it polls.
        self.wake: Callable[[], object] = lambda: None
        #: Received bytes. The bytes before `at` are processed.
        self.received = b""
        self.at = 0
        self._out: deque[bytes] = deque()
        self._unsent = b""
        self._stuck_since = 0.0
        # Identifier of the thread whose writes are deferred.
        self._corked = 0
        self._broken: OSError | None = None
        self._writing = threading.Lock()
        # Two threads must not use a TLS socket at the same time.
        self._reading: Any = contextlib.nullcontext()
        self._timeout: float | None = None

    # Interface for py-amqp.

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
            self._broken = self._broken or ConnectionError("the connection is closed")
            self._transport.close()

    @contextlib.contextmanager
    def having_timeout(self, timeout: float | None) -> Iterator[None]:
        previous, self._timeout = self._timeout, timeout
        try:
            yield
        finally:
            self._timeout = previous

    def read_frame(self) -> tuple[int, int, bytes]:
        """Wait for a frame other than a heartbeat, and return it.

        A broker that sends only heartbeats is treated as silent.

        :raises TimeoutError: if no frame arrived in time.
        :raises ConnectionError: if the broker does not read the sent data.
        """
        self._send()  # The frame may be the reply to this data.
        deadline = time.monotonic() + (STALL_SECONDS if self._timeout is None else self._timeout)
        received_frame = self._next()
        while received_frame is None:
            if not self._wait_for_socket(max(0.0, deadline - time.monotonic())):
                if self._unsent:
                    raise ConnectionError("the broker does not read what this process sends")
                raise TimeoutError("timed out")
            if self.is_busy:
                self.proceed()
            self.fill()
            received_frame = self._next()
        return received_frame

    def _next(self) -> tuple[int, int, bytes] | None:
        while self.pending:
            next_frame = self.frame()
            if next_frame[0] != frames.HEARTBEAT:
                return next_frame
        return None

    def _wait_for_socket(self, seconds: float) -> bool:
        waiting = select.poll()
        waiting.register(self.sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        return bool(waiting.poll(seconds * 1000))

    def write(self, data: Any) -> None:
        """Send data.

        :raises OSError: if the connection is lost.
        """
        self._out.append(bytes(data))  # py-amqp overwrites its buffer.
        self.flush()
        if self._broken is not None:
            raise self._broken

    @property
    def is_stuck(self) -> bool:
        """Whether the system accepted only a part of the data."""
        return bool(self._unsent)

    @property
    def is_busy(self) -> bool:
        """Whether `proceed` has work to do."""
        return bool(self._out or self._unsent) or self._broken is not None

    def put(self, data: bytes) -> None:
        """Queue data for the next `flush`. Thread-safe."""
        self._out.append(data)

    def flush(self) -> None:
        """Send queued data, as much as is possible without blocking. Thread-safe."""
        if self._corked != threading.get_ident():
            self._send()

    def _send(self) -> None:
        # If another thread holds the lock, this one returns. The other thread checks again for
        # queued data after it has released the lock, so no data is left.
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
                while self._out and size < _WRITE_BYTES:
                    parts.append(self._out.popleft())
                    size += len(parts[-1])
                data = parts[0] if len(parts) == 1 else b"".join(parts)
            self._unsent = self._send_once(data)
            if self._unsent:
                return

    def _send_once(self, data: bytes) -> bytes:
        try:
            sent = self.sock.send(data)
        except _WOULD_BLOCK:
            sent = 0
        except OSError as error:
            self._broken = _lost(error)
            return b""
        if sent or not self._unsent:
            self._stuck_since = time.monotonic()
        return data[sent:]

    def proceed(self, since: float = 0.0) -> None:
        """Send the data that the system accepts now. Only the owner may call this.

        :param since: monotonic time since which the broker should have been reading.
        :raises OSError: if the connection is lost, or the broker read nothing for `STALL_SECONDS`.
        """
        if self._unsent:
            with self._writing:
                self._push()
            if self._unsent and time.monotonic() - max(self._stuck_since, since) > STALL_SECONDS:
                self._broken = ConnectionError("the broker does not read what this process sends")
        self._send()
        if self._broken is not None:
            raise self._broken

    @contextlib.contextmanager
    def corked(self) -> Iterator[None]:
        """Defer writes of this thread until the block ends or the thread waits for a reply."""
        self._corked = threading.get_ident()
        try:
            yield
        finally:
            self._corked = 0
            self.flush()

    @property
    def pending(self) -> bool:
        """Whether a complete frame is in the buffer."""
        unread = len(self.received) - self.at
        if unread < 8:
            return False
        return unread >= 8 + int.from_bytes(self.received[self.at + 3 : self.at + 7], "big")

    def fill(self) -> None:
        """Read available data without blocking.

        :raises OSError: if the connection is lost.
        """
        unread = self.received[self.at :]
        try:
            with self._reading:
                new_data = self.sock.recv(_READ_BYTES)
        except _WOULD_BLOCK:
            new_data = None
        except TimeoutError as error:
            raise _lost(error) from error
        if self._reading is self._writing and self._out:
            self._send()  # Another thread may not have got the lock.
        if new_data == b"":
            raise ConnectionResetError("the broker closed the connection")
        self.received, self.at = unread + new_data if new_data else unread, 0

    def frame(self) -> tuple[int, int, bytes]:
        """Remove the next complete frame and return it in the form of py-amqp.

        :raises UnexpectedFrame: if the data is not a frame.
        """
        data, at = self.received, self.at
        kind, channel, size = _BEGIN.unpack_from(data, at)
        end = at + 7 + size
        if data[end] != frames.END:
            raise amqp_errors.UnexpectedFrame(
                f"a frame must end with {frames.END:#04x}, got {data[end]:#04x}"
            )
        self.at = end + 1
        content = data[at + 7 : end]
        return kind, channel, frames.decodable(content) if kind == frames.HEADER else content


def _lost(error: OSError) -> OSError:
    """Convert a timeout of the system, after which the connection is lost.

    Callers interpret `TimeoutError` as "no data yet".
    """
    return ConnectionError(str(error)) if isinstance(error, TimeoutError) else error


class _Connection(pyamqp.Connection):  # type: ignore[misc]
    def Transport(self, *args: Any, **options: Any) -> AmqpSocket:
        return AmqpSocket(super().Transport(*args, **options))


class Transport(pyamqp.Transport):  # type: ignore[misc]
    """kombu's transport for RabbitMQ with `AmqpSocket`."""

    Connection = _Connection
