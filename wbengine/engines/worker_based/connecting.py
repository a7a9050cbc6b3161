"""Reaching a broker that may be away, and noticing that one is."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import kombu
import tenacity
from amqp import exceptions as amqp_errors
from amqp.transport import TCPTransport

from wbengine import exceptions as exc
from wbengine import transports
from wbengine.transports import _amqp_buffer

LOG = logging.getLogger(__name__)

#: Seconds of one attempt.
ATTEMPT: Final = 4.0

#: Seconds that a broker may take to read what it is sent, and to answer what it is asked.
STALL: Final = 10.0

#: Seconds for the rest of a frame that began to come.
_FRAME: Final = 1.0

#: The type of a frame that is a heartbeat.
_BEAT: Final = 8

#: Errors that waiting does not mend: a wrong password, a virtual host that is missing, a
#: certificate of somebody else.
_FINAL: Final = (
    amqp_errors.AccessRefused,
    amqp_errors.NotAllowed,
    ssl.SSLCertVerificationError,
)


def reach(
    target: transports.Target,
    stopping: threading.Event,
    *,
    longest: float,
    within: float | None = None,
    on_failure: Callable[[str], None] | None = None,
) -> kombu.Connection:
    """A connection, with jittered waits of at most `longest` seconds between attempts.

    Tries until `stopping` is set, or for `within` seconds.  `on_failure` is told of each attempt
    that failed.

    :raises TransportFailure: the broker was not reached.
    """
    ends = None if within is None else time.monotonic() + within
    attempts = 0

    def attempt() -> kombu.Connection:
        nonlocal attempts
        attempts += 1
        left = ATTEMPT if ends is None else min(ATTEMPT, max(0.5, ends - time.monotonic()))
        return _open(target, attempts - 1, left)

    def may_pass(error: BaseException) -> bool:
        return isinstance(error, Exception) and (within is None or not _is_final(error))

    def tell(state: tenacity.RetryCallState) -> None:
        if on_failure is not None and state.outcome is not None:
            on_failure(explain(state.outcome.exception()))

    stop: Any = tenacity.stop_when_event_set(stopping)
    if within is not None:
        # Another attempt that had no time to be answered would tell nothing.
        stop = stop | tenacity.stop_after_delay(within - 1.0)
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(may_pass),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=longest),
        sleep=tenacity.sleep_using_event(stopping),
        stop=stop,
        before_sleep=tell,
        reraise=True,
    )
    try:
        return retrying(attempt)
    except exc.TransportFailure:
        raise
    except Exception as error:
        raise exc.TransportFailure(
            f"the broker at {target.shown} cannot be reached: {explain(error)}"
        ) from error


def _is_final(error: BaseException) -> bool:
    return isinstance(error, (*_FINAL, exc.TransportFailure, ValueError, ImportError))


def _open(target: transports.Target, number: int, seconds: float) -> kombu.Connection:
    connection = target.connect(number, connect_timeout=seconds)
    try:
        if target.amqp:
            _resolve(connection.hostname, seconds)
        # Kombu's own `connect` sleeps two seconds before it gives up.
        connection.ensure_connection(
            max_retries=0, interval_start=0, interval_step=0, reraise_as_library_errors=False
        )
    except BaseException:
        with contextlib.suppress(Exception):
            connection.release()
        raise
    return connection


def _resolve(host: str | None, seconds: float) -> None:
    """Ask for the address of `host`, which may take the system minutes, for so long only."""
    failed: list[OSError] = []

    def ask() -> None:
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            failed.append(error)

    asking = threading.Thread(target=ask, name="wbengine-resolver", daemon=True)
    asking.start()
    asking.join(seconds)
    if failed:
        raise failed[0]
    if asking.is_alive():
        raise socket.gaierror(f"no answer in {seconds:.0f} s")


def release(connection: kombu.Connection) -> None:
    """Close a connection that nobody uses any more; never raises."""
    try:
        connection.release()
    except Exception as error:  # another one takes its place
        LOG.debug("a connection was not closed in order (%s)", error)


def explain(error: BaseException | None) -> str:
    """In a few words why a broker was not reached, or left."""
    match error:
        case socket.gaierror():
            return f"its name cannot be resolved ({error.strerror or error})"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not accepted ({error.verify_message})"
        case ssl.SSLError() if "PEM" in str(error):
            return f"our own certificate or key cannot be used ({error})"
        case ssl.SSLError():
            return f"it speaks no TLS that we do ({error.reason or error})"
        case ConnectionRefusedError():
            return "nothing listens there (connection refused)"
        case TimeoutError():
            return "it does not answer"
        case amqp_errors.ConsumerCancelled():
            return "a queue that was consumed is gone"
        case amqp_errors.AccessRefused() if "access to" in str(error):
            return f"it does not permit that ({error})"
        case amqp_errors.AccessRefused():
            return f"it refuses this user or password ({error})"
        case amqp_errors.NotAllowed():
            return f"it has no such virtual host for this user ({error})"
    return " ".join(str(error).split()) or type(error).__name__


class Line:
    """An AMQP connection of one thread, which it can wait on, and others can ring.

    The thread calls `wait` and `read` in turn, at least once in a heartbeat: both sides of a
    connection give it up when they hear nothing for two.
    """

    def __init__(self, connection: kombu.Connection) -> None:
        # Taken once: asked for them again, kombu would connect again, without our consumers.
        self._raw = connection.connection
        self._transport = connection.transport
        self.socket: Any = self._raw.transport.sock
        # Whoever waits for an answer inside of py-amqp waits no longer than this.
        self.socket.settimeout(STALL)
        transport = self._raw.transport
        transport._write = _amqp_buffer.whole(transport._write)
        plain = type(transport) is TCPTransport
        self._buffer = _amqp_buffer.Buffer(transport, STALL) if plain else None
        self._pending: Callable[[], int] = getattr(self.socket, "pending", lambda: 0)
        heartbeat = float(self._raw.heartbeat or 0)
        self._period = heartbeat / 4 if heartbeat else None
        self._due = time.monotonic()
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.socket, selectors.EVENT_READ)
        self._selector.register(self._ear, selectors.EVENT_READ)

    @property
    def raw(self) -> Any:
        """The connection of py-amqp."""
        return self._raw

    @property
    def pending(self) -> bool:
        """Whether something is there that the system does not tell of any more."""
        return bool(self._pending() or (self._buffer is not None and self._buffer.pending))

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Write what is written meanwhile in one go, where that is possible."""
        return contextlib.nullcontext() if self._buffer is None else self._buffer.corked()

    def ring(self) -> None:
        """Let `wait` return at once; from any thread."""
        with contextlib.suppress(OSError):  # one that is full rings already
            self._bell.send(b"\0")

    def wait(self, timeout: float | None) -> bool:
        """Wait for the broker or a ring; whether there is something to read.

        Sends the heartbeat that is due.

        :raises Exception: one of kombu's connection errors: the broker is silent for too long.
        """
        now = time.monotonic()
        if self._period is not None:
            if now >= self._due:
                self._due = now + self._period
                self._transport.heartbeat_check(self._raw)
            left = self._due - now
            timeout = left if timeout is None else min(timeout, left)
        if self.pending:
            return True
        readable = False
        for key, _ in self._selector.select(timeout):
            if key.fileobj is self.socket:
                readable = True
            else:
                with contextlib.suppress(OSError):
                    self._ear.recv(4096)
        return readable

    def read(self) -> None:
        """Take in what comes next, and call whoever it is for."""
        transport = self._raw.transport
        # What is there is read without asking the system to wait for less.
        hurried = contextlib.nullcontext() if self.pending else transport.having_timeout(_FRAME)
        with contextlib.suppress(TimeoutError), hurried:
            while True:
                frame = transport.read_frame()
                if self._raw.on_inbound_frame(frame) or frame[0] == _BEAT:
                    return  # else it goes on with the next frame

    def drop(self) -> None:
        """End a connection that is of no use, without a word to the broker."""
        with contextlib.suppress(OSError):
            self.socket.settimeout(0.1)
        self._raw.collect()

    def close(self) -> None:
        """Nobody waits any more; the connection stays."""
        self._selector.close()
        self._bell.close()
        self._ear.close()


class Echo:
    """Whether a consumer still hears anything: one that hears nothing speaks to itself.

    Sans I/O: its owner says what it heard, and publishes what it is told to; `now` is of one
    monotonic clock.
    """

    def __init__(self, quiet: float, grace: float, now: float) -> None:
        self._quiet = quiet
        self._grace = grace
        self._last = self._turn = now
        self._asked = False
        self._out: float | None = None

    def heard(self, now: float) -> None:
        """Something came."""
        self._last = now
        self._asked = False
        self._out = None

    def published(self, now: float) -> None:
        """What `asks` asked for is with the broker."""
        if self._asked:
            self._out = now

    def asks(self, now: float) -> bool:
        """Whether a message to oneself is to be published now; it is asked for once."""
        if self._asked or now - self._last < self._quiet:
            return False
        self._asked = True
        return True

    def is_deaf(self, now: float) -> bool:
        """Whether what was published did not come; call it in each turn, after reading.

        A turn that took long proves nothing: what came meanwhile is not read yet.
        """
        late, self._turn = now - self._turn > self._grace / 2, now
        if self._out is None:
            return False
        if late:
            self._out = now
        return now - self._out > self._grace

    def next_due(self) -> float:
        """When to look again."""
        if self._asked:
            return self._turn + self._grace / 4
        return self._last + self._quiet
