"""Reading and writing much at once on a connection of py-amqp, which asks the system for each part
of each frame, and waits where others may have something to say.
"""

from __future__ import annotations

import contextlib
import select
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from amqp import exceptions as amqp_errors
from amqp.transport import TCPTransport

from wbengine.transports import _amqp_frames as frames

#: Bytes that are asked for at once.
_READ: Final = 64 * 1024

#: Bytes that are offered to the system at once.
_WRITE: Final = 256 * 1024

#: Seconds for the rest of what TLS sends as one.
_RECORD: Final = 1.0

_BEGIN: Final = struct.Struct(">BHI")


class Buffer:
    """What a transport of py-amqp reads and writes through.

    One thread owns it: whoever made it reads, also through py-amqp.  Any thread may `send` whole
    frames: those of several calls go out in the order of the calls, and each in one piece.  It
    never waits: what the system does not take at once, and all that goes through TLS, which no two
    threads may use, is left to the owner, who is told by `wake()`.

    `patience`: seconds that the broker has for reading what it is sent.
    """

    def __init__(self, transport: Any, patience: float, wake: Callable[[], None]) -> None:
        self._transport = transport
        self._patience = patience
        self._wake = wake
        self._owner = threading.get_ident()
        self._recv, self._send = transport._quick_recv, transport._write
        #: Received, and not read beyond `at`.
        self.got = b""
        self.at = 0
        self._out: deque[bytes] = deque()
        self._unsent = b""
        self._stuck_since = 0.0
        self._corked = False
        self._closed = False
        self._broken: OSError | None = None
        self._writing = threading.Lock()
        # To the same connection, but asking it never waits.
        self._socket: Any = None
        if type(transport) is TCPTransport:
            self._socket = transport.sock.dup()
            self._socket.setblocking(False)
        transport._quick_recv = self._receive
        transport._write = self._write

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
        if not self._closed:
            self._out.append(data)

    def flush(self) -> None:
        """Send what was put, as far as that goes without waiting; any thread.

        :raises OSError: the connection is lost; only to the owner.
        """
        mine = threading.get_ident() == self._owner
        if mine and self._corked:
            return
        if self._socket is None and not mine:
            self._wake()
            return
        self._flush(mine)

    def _flush(self, mine: bool) -> None:
        # Whoever holds the lock looks again once he let go of it: nothing is left behind.
        while self._has_work and self._writing.acquire(blocking=False):
            try:
                self._push()
            finally:
                self._writing.release()
        if mine and self._broken is not None:
            raise self._broken
        if not mine and (self._unsent or self._broken is not None):
            self._wake()

    @property
    def _has_work(self) -> bool:
        return bool(self._out) and not (self._unsent or self._broken is not None or self._closed)

    def _push(self) -> None:
        while (self._out or self._unsent) and self._broken is None and not self._closed:
            parts, size = [self._unsent] if self._unsent else [], len(self._unsent)
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
            if self._socket is None:
                self._send(data)
                return b""
            sent = self._socket.send(data)
        except TimeoutError:
            self._broken = ConnectionError("it does not read what it is sent")
            return b""
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._broken = error
            return b""
        if sent == len(data):
            self._stuck_since = 0.0
            return b""
        if sent or not self._stuck_since:
            self._stuck_since = time.monotonic()
        return data[sent:]

    def proceed(self) -> None:
        """Send what the system takes now; the owner, when it could not take all.

        :raises OSError: the connection is lost, or nobody reads what is sent.
        """
        if self._unsent:
            with self._writing:
                self._push()
            if self._unsent and time.monotonic() - self._stuck_since > self._patience:
                self._broken = ConnectionError("it does not read what it is sent")
        self._flush(mine=True)

    @contextlib.contextmanager
    def corked(self) -> Iterator[None]:
        """Hold back what the owner writes, until the end, or until something is to be read."""
        self._corked = True
        try:
            yield
        finally:
            self._corked = False
            self.flush()

    def _write(self, data: Any) -> None:
        self._out.append(bytes(data))  # which is written over soon
        self.flush()

    # Reading.

    @property
    def pending(self) -> bool:
        """Whether there is a whole frame that nobody has read."""
        if self._transport._read_buffer:
            self._take_back()
        left = len(self.got) - self.at
        if left < 8:
            return False
        return left >= 8 + int.from_bytes(self.got[self.at + 3 : self.at + 7], "big")

    def fill(self) -> None:
        """Take in what there is, without waiting for it.

        :raises OSError: the connection is lost.
        """
        if self._transport._read_buffer:
            self._take_back()
        left = self.got[self.at :]
        try:
            if self._socket is None:
                with self._transport.having_timeout(_RECORD):
                    found = self._recv(_READ)
            else:
                found = self._socket.recv(_READ)
        except (BlockingIOError, TimeoutError):
            self.got, self.at = left, 0
            return
        if not found:
            raise ConnectionResetError("the broker has closed the connection")
        self.got, self.at = left + found if left else found, 0

    def _take_back(self) -> None:
        """What py-amqp took, and has no use for: it waited for more in vain, or took too much."""
        left, self._transport._read_buffer = self._transport._read_buffer, b""
        self.got, self.at = left + self.got[self.at :], 0

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

    def _receive(self, count: int) -> bytes:
        """At least a byte, and at most so many; none when the connection has ended."""
        if self.at >= len(self.got):
            if self._out or self._unsent:  # it may be an answer to that
                self._finish()
            self.got, self.at = self._recv(_READ), 0
        found = self.got[self.at : self.at + count]
        self.at += len(found)
        return found

    def _finish(self) -> None:
        self._flush(mine=True)
        while self._unsent:
            waiting = select.poll()
            waiting.register(self._transport.sock, select.POLLOUT)
            waiting.poll(self._patience * 1000)
            self.proceed()

    # The end.

    def close(self) -> None:
        """py-amqp reads and writes for itself again, and nobody else does."""
        with self._writing:
            if self._closed:
                return
            torn = bool(self._unsent)
            if not torn and self._broken is None:
                self._push()
                torn = bool(self._unsent)
            self._closed = True
        transport = self._transport
        transport._read_buffer += self.got[self.at :]
        transport._quick_recv, transport._write = self._recv, self._send
        if torn:  # whatever came next would be taken for the rest of a frame
            transport._write = _refuse
        if self._socket is not None:
            self._socket.close()


def _refuse(data: Any) -> None:
    raise ConnectionError("it does not read what it is sent")
