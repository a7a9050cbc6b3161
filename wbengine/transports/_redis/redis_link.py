"""Connections to one Redis, and scripts that run atomically.

Only `Pool` retries. Other callers must find out whether a step without a reply was executed. A
connection with a missing reply is not used again.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeVar
from urllib.parse import parse_qsl, unquote

import redis.connection
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.retry import Retry

from wbengine import exceptions
from wbengine._configuration import server_urls
from wbengine._introspection import object_names
from wbengine._redis import client_options
from wbengine._redis.lua_scripts import Step
from wbengine.transports import _reasons
from wbengine.transports._nudge import Nudge
from wbengine.transports._redis import redis_kind

pack_command: Callable[[tuple[Any, ...]], bytes] | None
try:
    from hiredis import pack_command
except ImportError:
    pack_command = None

T = TypeVar("T")

#: Prefix of keys if no exchange is given.
DEFAULT_PREFIX: Final = "wbengine"

#: Maximum number of values in one call: Lua permits 8,000.
MAX_SCRIPT_VALUES: Final = 1000
#: Idle time after which a connection is checked before use.
_HEALTH_CHECK_SECONDS: Final = 30
#: Maximum time until a waiting consumer polls: a wake-up is lost if its receiver dies.
POLL_SECONDS: Final = 1
_URL_OPTIONS: Final = ("prefix", *client_options.NAMES)

#: Exceptions for an unreachable or disconnected server. Others mean that the server refused.
LOST: Final = (errors.ConnectionError, errors.TimeoutError, OSError)


@dataclass(frozen=True)
class Place:
    """Part of one Redis: all keys that begin with `prefix`.

    `shown` is the URL without secrets, `settings` are arguments for the client's connections.
    """

    shown: str
    prefix: str
    settings: Mapping[str, Any] = field(repr=False, compare=False)
    tls: bool = False

    @classmethod
    def parse(cls, url: str, options: Mapping[str, Any] | None = None) -> Place:
        """Parse a URL `redis[s]://[USER][:PASSWORD@]HOST[:PORT][/DB][?OPTION=VALUE]`.

        The URL and `options` may contain: `prefix` (start of all keys), and the options of
        `ClientOptions`. Other keys of `options` are ignored. This does not connect.

        :raises ValueError: if the URL or an option is invalid.
        """
        parts = server_urls.split("a Redis URL", url)
        if parts.scheme not in redis_kind.NAMES:
            raise ValueError(
                f"The scheme of a Redis URL must be {' or '.join(redis_kind.NAMES)},"
                f" got {parts.scheme!r}"
            )
        port = parts.port or 6379
        host = unquote(parts.hostname or "localhost")
        path = parts.path.strip("/")
        if path and not path.isdecimal():
            raise ValueError(f"The database of a Redis URL must be a number, got /{path:.80}")
        values: dict[str, Any] = dict(parse_qsl(parts.query))
        for name in values:
            if name not in _URL_OPTIONS:
                raise ValueError(
                    f"A Redis URL has no option {name!r}{object_names.hint(name, _URL_OPTIONS)}"
                )
        values = {**{name: (options or {}).get(name) for name in _URL_OPTIONS}, **values}
        prefix = object_names.check_label("prefix", values["prefix"] or DEFAULT_PREFIX)
        secure = parts.scheme == "rediss"
        settings: dict[str, Any] = {
            "host": host, "port": port, "db": int(path or 0),
            "socket_keepalive": True, "health_check_interval": _HEALTH_CHECK_SECONDS,
            **client_options.arguments(values, secure),
        }  # fmt: skip
        if parts.username:
            settings["username"] = unquote(parts.username)
        if parts.password:
            settings["password"] = unquote(parts.password)
        where = f"[{host}]" if ":" in host else host
        shown = f"{parts.scheme}://{where}:{port}/{path or 0}"
        return cls(shown, f"wbe:{{{prefix}}}:", settings, secure)

    def with_timeouts(self, answer: float, connection: float) -> Place:
        """Return a copy whose timeouts are at most these, in seconds."""
        limits = dict(zip(client_options.TIMEOUTS, (answer, connection), strict=True))
        timeouts = {name: min(limit, self.settings[name]) for name, limit in limits.items()}
        return replace(self, settings={**self.settings, **timeouts})

    def connect(self) -> Any:
        connection_type: Any = (
            redis.connection.SSLConnection if self.tls else redis.connection.Connection
        )
        # Disable retries: their default depends on the version of the client.
        return connection_type(**self.settings, protocol=2, retry=Retry(NoBackoff(), 0))


class Link:
    """One connection, opened at first use, which threads use one after another.

    After an exception of `LOST`, the connection stays closed and `broken` is True.
    """

    def __init__(
        self,
        place: Place,
        kind: type[exceptions.WbengineException] = exceptions.TransportFailure,
        greet: Greeting | None = None,
    ) -> None:
        """Create a connection.

        :param kind: raised by `run` and `call` if the server refuses.
        :param greet: called with the new link before any other use.
        """
        self.place = place
        self.broken = False
        self._kind = kind
        self._greet = greet
        self._connection: Any = None
        self._lock = threading.RLock()  # `greet` uses the link while it connects.

    def run(self, step: Step[T], after: Sequence[tuple[Any, ...]] = ()) -> T:
        """Run a script, whose key is the prefix. Its text is sent only if the server lacks it.

        :param after: commands to send first; the script runs even if they are refused.
        :raises LOST: if the server is unreachable or did not reply. The script may have run.
        :raises kind: if the server refused, for example without memory or permission. Then nothing
            was changed.
        """
        try:
            with self._lock:
                # These commands may be large; sending them together would copy them again.
                for command in after:
                    self.send_all((command,))
                self.send_all((step.command(self.place.prefix),))
                for _ in after:
                    with contextlib.suppress(errors.ResponseError):
                        self.receive()
                return self.receive_result(step)
        except errors.ResponseError as error:
            raise self._kind(f"{self.place.shown}: {error}") from error

    def call(self, *args: Any) -> Any:
        """Send a command. See `run` for exceptions."""
        try:
            with self._lock:
                self.send_all((args,))
                return self.receive()
        except errors.ResponseError as error:
            raise self._kind(f"{self.place.shown}: {error}") from error

    def send_all(self, commands: Sequence[tuple[Any, ...]]) -> None:
        """Send several commands. The replies arrive in the order of the commands."""
        try:
            if self.broken:
                raise errors.ConnectionError(f"the connection to {self.place.shown} was lost")
            if self._connection is None:
                connection = self.place.connect()
                connection.connect()
                if not self.place.tls:
                    _set_system_timeout(connection._sock, self.place.settings["socket_timeout"])
                self._connection = connection
                if self._greet is not None:
                    self._greet(self)
            connection = self._connection
            connection.send_packed_command(
                connection.pack_commands(commands)
                if pack_command is None
                else [b"".join(map(pack_command, commands))]
            )
        except BaseException as error:
            self.close()
            _raise_meaning(error)
            raise

    def receive(self) -> Any:
        """Read the reply to the oldest command without one.

        :raises ResponseError: if the server refused the command.
        """
        try:
            return self._connection.read_response()
        except errors.ResponseError:
            raise
        except BaseException as error:  # The next caller would read this reply.
            self.close()
            _raise_meaning(error)
            raise

    def receive_result(self, step: Step[T]) -> T:
        """Read the reply to a script. If the server lacks the script, run it now."""
        try:
            reply = self.receive()
        except errors.NoScriptError:
            script = "EVAL", step.script.text, 1, self.place.prefix, *step.arguments
            self.send_all((script,))
            reply = self.receive()
        return step.read(reply)

    def close(self) -> None:
        """Disconnect; the link stays closed."""
        with self._lock:
            self.broken = True
            connection, self._connection = self._connection, None
            if connection is not None:
                try:
                    connection.disconnect()
                except (OSError, errors.RedisError):
                    pass


#: Called with each new connection before it is used.
Greeting = Callable[[Link], object]


def _set_system_timeout(sock: socket.socket, seconds: float) -> None:
    """Set the timeout of a socket in the operating system instead of in Python.

    With a timeout in Python, each read and write would need an additional system call.
    """
    if os.name == "posix":
        timeout = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, timeout)
        sock.settimeout(None)


def _raise_meaning(error: BaseException) -> None:
    """Raise another error if that of the client does not have the meaning of its type."""
    if isinstance(error, errors.InvalidResponse):
        raise errors.ConnectionError(f"the server is not a Redis ({error!s:.100})") from error
    # The client reports a timeout of the operating system as a lost connection.
    if isinstance(error, errors.ConnectionError) and isinstance(error.__context__, BlockingIOError):
        raise errors.TimeoutError("Redis did not answer in time") from error


class BlockingWait(Link, Generic[T]):
    """Connection on which one consumer waits for messages, blocked in the server.

    When the wait ends, for any reason, the server runs a script.

    `nudge` is thread-safe; all other methods are for one thread. If a nudge ends a call of `wait`,
    the wait continues in the server, and the next call resumes it. So a nudge costs no round trip,
    unless the next call waits for other queues.
    """

    def __init__(
        self,
        place: Place,
        begin: Callable[[Sequence[str]], tuple[Sequence[str], Step[T]]],
        poke: Callable[[], object],
        greet: Greeting | None = None,
    ) -> None:
        """Create a connection.

        :param begin: called before each wait in the server, with the queues; returns those of them
            from which the script after the wait takes messages, and this script.
        :param poke: ends the wait in the server.
        :param greet: see `Link`.
        """
        super().__init__(place, greet=greet)
        self._begin = begin
        self._poke = poke
        # The keys for which the server waits; none: it does not.
        self._blocked_keys: tuple[str, ...] = ()
        self._step: Step[T]
        self._deadline = 0.0
        self._nudge = Nudge()
        self._poll: select.poll | None = None

    @property
    def is_blocked(self) -> bool:
        """Whether a wait continues in the server."""
        return bool(self._blocked_keys)

    def wait(self, timeout: float | None, consumer: str, queues: Sequence[str]) -> Sequence[T]:
        """Wait for one of the queues, a nudge, or `POLL_SECONDS`.

        :returns: the result of the script; nothing if the wait continues in the server.
        :raises LOST: if the connection is lost or the server does not reply.
        :raises TransportFailure: if the server refuses the script.
        :raises ResponseError: if it refuses the wait. The connection is then closed.
        """
        if not self._blocked_keys:
            queues, self._step = self._begin(queues)
            keys = self._keys(consumer, queues)
            script = self._step.command(self.place.prefix)
            self.send_all((("BLPOP", *keys, POLL_SECONDS), script))
            self._blocked_keys = keys
            reply_timeout: float = self.place.settings["socket_timeout"]
            self._deadline = time.monotonic() + POLL_SECONDS + reply_timeout
        elif not set(self._keys(consumer, queues)) <= set(self._blocked_keys):
            return (self.recall(),)
        remaining = self._deadline - time.monotonic()
        ready = self._ready(remaining if timeout is None else min(timeout, remaining))
        nudged = self._nudge.fd in ready
        if nudged:
            self._nudge.clear()
        if len(ready) > nudged and self._has_answer():
            return (self._receive(),)
        if time.monotonic() >= self._deadline:
            self.close()
            raise errors.TimeoutError(f"{self.place.shown} does not answer")
        return ()

    def _keys(self, consumer: str, queues: Sequence[str]) -> tuple[str, ...]:
        prefix = self.place.prefix
        return f"{prefix}n:{consumer}", *(f"{prefix}bell:{queue}" for queue in queues)

    def recall(self) -> T:
        """End the wait that continues in the server. Return the result of the script."""
        self._poke()
        return self._receive()

    def _ready(self, timeout: float) -> list[int]:
        if self._poll is None:
            self._poll = select.poll()  # `select` does not support large descriptors.
            for descriptor in (self._connection._sock.fileno(), self._nudge.fd):
                self._poll.register(descriptor, select.POLLIN)
        return [ready_fd for ready_fd, _ in self._poll.poll(max(0.0, timeout * 1000))]

    def _has_answer(self) -> bool:
        """Return whether `receive` would not block, although the socket is readable."""
        try:
            # The readable data may be a record of the TLS protocol.
            return not self.place.tls or bool(self._connection.can_read(0))
        except BaseException:
            self.close()
            raise

    def _receive(self) -> T:
        self._blocked_keys = ()
        try:
            self.receive()
        except errors.ResponseError:
            self.close()  # The reply of the script would be read as that of a later command.
            raise
        try:
            return self.receive_result(self._step)
        except errors.ResponseError as error:
            raise self._kind(f"{self.place.shown}: {error}") from error

    def pause(self, seconds: float) -> bool:
        """Wait only for a nudge, unless a wait is in the server. Return whether there was one."""
        return not self._blocked_keys and self._nudge.wait(seconds)

    def nudge(self) -> None:
        """End the current `wait`, or the next one. Thread-safe."""
        self._nudge.notify()

    def close(self) -> None:
        """Disconnect, which ends the wait in the server."""
        self._blocked_keys = ()
        super().close()

    def release(self) -> None:
        """Disconnect, and close the descriptors. No thread may be waiting."""
        self.close()
        self._nudge.close()


class Pool:
    """Pool of connections for concurrent threads."""

    _MAX_IDLE: Final = 4

    def __init__(
        self,
        place: Place,
        kind: type[exceptions.WbengineException],
        greet: Greeting | None = None,
    ) -> None:
        self.place = place
        self._kind = kind
        self._greet = greet
        self._idle: deque[Link] = deque()
        self._closed = False
        #: Monotonic time of the last failure to reach the server.
        self.lost_at = -math.inf

    def run(self, step: Step[T]) -> tuple[T, bool]:
        """Run a script, and retry once if the connection was lost.

        :returns: the result, and whether it is that of a retry: the script may then have run twice.
        :raises kind: if the server is unreachable, did not reply in time, or refused.
        """
        return self._with_link(lambda link: link.run(step))

    def call(self, *args: Any) -> Any:
        """Send a command like `run`, and return only the reply."""
        return self._with_link(lambda link: link.call(*args))[0]

    def info(self) -> dict[str, str]:
        """Return what the server reports about itself."""
        text = self.call("INFO").decode(errors="replace")
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def _with_link(self, work: Callable[[Link], T]) -> tuple[T, bool]:
        is_retry = False
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                link = Link(self.place, self._kind, self._greet)
            try:
                return work(link), is_retry
            except LOST as error:
                self.lost_at = time.monotonic()
                # The idle connections are probably lost too. After a timeout, a retry is useless.
                self._close_idle()
                if is_retry or isinstance(error, errors.TimeoutError):
                    raise self._kind(f"{self.place.shown}: {_reasons.explain(error)}") from error
                is_retry = True
            finally:
                if not link.broken:
                    self._idle.append(link)
                    if self._closed or len(self._idle) > self._MAX_IDLE:
                        self._close_idle(0 if self._closed else self._MAX_IDLE)

    def _close_idle(self, but: int = 0) -> None:
        while len(self._idle) > but:
            try:
                self._idle.popleft().close()
            except IndexError:
                return

    def close(self) -> None:
        self._closed = True
        self._close_idle()
