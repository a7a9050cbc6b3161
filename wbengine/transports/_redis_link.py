"""One Redis as we talk to it: where it is, a connection, and scripts that are one step each.

Nothing here tries anything again: whether a step whose answer is missing was done is for the caller
to find out.  A connection whose answer did not come is not used any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import redis.connection
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.retry import Retry

from wbengine import _names, exceptions
from wbengine.transports import reasons, tls

pack_command: Callable[[tuple[Any, ...]], bytes] | None
try:
    from hiredis import pack_command
except ImportError:
    pack_command = None

T = TypeVar("T")

SCHEMES: Final = ("redis", "rediss")
#: What keys begin with where nobody named an exchange.
DEFAULT_PREFIX: Final = "wbengine"

#: Seconds to wait for an answer, and for a connection.
_PATIENCE: Final = 5.0
#: Lua has room for 8,000 values in a call.
_PORTION: Final = 1000
#: A connection that rested for so many seconds is tried before it is trusted.
_HEALTH_CHECK: Final = 30
#: Options of URLs and of `transport_options`: seconds, and what TLS is to trust.
_SECONDS: Final = ("socket_timeout", "socket_connect_timeout")
_TLS: Final = (*tls.NAMES, "ssl_ca_path", "ssl_ca_data", "ssl_password", "ssl_min_version")
_IN_URL: Final = ("prefix", *_SECONDS, *_TLS)
#: The transport has one more.
OPTIONS: Final = (*_IN_URL, "dead_after")

#: What says that the server was not reached, or went away, as opposed to: it refused.
LOST: Final = (errors.ConnectionError, errors.TimeoutError, OSError)


@dataclass(frozen=True)
class Place:
    """A part of one Redis: all keys that begin with `prefix`.

    `shown` is its URL without secrets.  `settings` are those of the client's connections.
    """

    shown: str
    prefix: str
    settings: Mapping[str, Any] = field(repr=False, compare=False)
    tls: bool = False

    @classmethod
    def parse(cls, url: str, options: Mapping[str, Any] | None = None) -> Place:
        """Understand the URL `redis[s]://[USER][:PASSWORD@]HOST[:PORT][/DB][?OPTION=VALUE]`.

        Options of the URL and of `options`: `prefix` (the name that keys begin with),
        `socket_timeout` and `socket_connect_timeout` (seconds), and `ssl_...` as redis-py calls
        them.  Other keys of `options` are not looked at.  Nothing is connected to.

        :raises ValueError: it is none, or an option makes no sense.
        """
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise ValueError(
                f"{parts.scheme!r} is no scheme of a Redis: use {' or '.join(SCHEMES)}"
            )
        try:
            port = parts.port or 6379
        except ValueError as error:
            raise ValueError(f"the URL of a Redis has a wrong port ({error})") from None
        host = unquote(parts.hostname or "localhost")
        path = parts.path.strip("/")
        if path and not path.isdecimal():
            raise ValueError(f"/{path:.80} is no database of a Redis: databases are numbers")
        told: dict[str, Any] = dict(parse_qsl(parts.query))
        for name in told:
            if name not in _IN_URL:
                raise ValueError(f"a Redis has no option {name!r}{_names.hint(name, _IN_URL)}")
        told = {**{name: (options or {}).get(name) for name in _IN_URL}, **told}
        told = {name: value for name, value in told.items() if value is not None}
        prefix = _names.check_label("prefix", told.pop("prefix", DEFAULT_PREFIX))
        settings: dict[str, Any] = {
            "host": host, "port": port, "db": int(path or 0),
            "socket_keepalive": True, "health_check_interval": _HEALTH_CHECK,
        }  # fmt: skip
        for name in _SECONDS:
            settings[name] = _seconds(name, told.pop(name, _PATIENCE))
        if parts.username:
            settings["username"] = unquote(parts.username)
        if parts.password:
            settings["password"] = unquote(parts.password)
        secure = parts.scheme == "rediss"
        if secure:
            settings.update(ssl_cert_reqs="required", ssl_check_hostname=True)
            settings.update({name: tls.read(name, value) for name, value in told.items()})
        elif told:
            raise ValueError(f"{next(iter(told))!r} is for rediss://, not for redis://")
        where = f"[{host}]" if ":" in host else host
        shown = f"{parts.scheme}://{where}:{port}/{path or 0}"
        return cls(shown, f"wbe:{{{prefix}}}:", settings, secure)

    def hurried(self, answer: float, connection: float) -> Place:
        """The same, with no more patience than so many seconds."""
        longest = dict(zip(_SECONDS, (answer, connection), strict=True))
        less = {name: min(most, self.settings[name]) for name, most in longest.items()}
        return replace(self, settings={**self.settings, **less})

    def connect(self) -> Any:
        """A connection, not opened yet."""
        made: Any = redis.connection.SSLConnection if self.tls else redis.connection.Connection
        # No attempt after the first one, whatever is the default of this version of the client.
        return made(**self.settings, protocol=2, retry=Retry(NoBackoff(), 0))


def _seconds(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < 3600:
        raise ValueError(f"{name} is {value!r}: it must be a number of seconds above 0")
    return number


class Script:
    """What the server does in one step: Lua, given one key (the prefix) and arguments."""

    __slots__ = ("digest", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Link:
    """One connection, opened at first use.  For one thread at a time.

    Whatever `LOST` names means that it is over; `broken` then stays True.
    """

    def __init__(self, place: Place, greet: Greeting | None = None) -> None:
        """`greet` is the first to use the connection when it is open."""
        self.place = place
        self.broken = False
        self._greet = greet
        self._connection: Any = None

    def send(self, *args: Any) -> None:
        """Begin a command."""
        self.send_all((args,))

    def send_all(self, commands: Sequence[tuple[Any, ...]]) -> None:
        """Begin commands, each of which is answered, in order."""
        try:
            if self.broken:
                raise errors.ConnectionError(f"the connection to {self.place.shown} was lost")
            if self._connection is None:
                connection = self.place.connect()
                connection.connect()
                if not self.place.tls:
                    _leave_to_system(connection._sock, self.place.settings["socket_timeout"])
                self._connection = connection
                if self._greet is not None:
                    self._greet(self)
            connection = self._connection
            connection.send_packed_command(
                connection.pack_commands(commands)
                if pack_command is None
                else [b"".join(map(pack_command, commands))]
            )
        except errors.InvalidResponse as error:
            self.close()
            raise _no_redis(error) from error
        except errors.ConnectionError as error:
            self.close()
            _check_time(error)
            raise
        except BaseException:
            self.close()
            raise

    def receive(self) -> Any:
        """The answer to the first command that has none yet.

        :raises ResponseError: the server refused it.
        """
        try:
            return self._connection.read_response()
        except errors.ConnectionError as error:
            self.close()
            _check_time(error)
            raise
        except errors.ResponseError:
            raise
        except errors.InvalidResponse as error:
            self.close()
            raise _no_redis(error) from error
        except BaseException:  # an answer that is not read now would be taken for the next one
            self.close()
            raise

    def call(self, *args: Any) -> Any:
        """A command and its answer."""
        self.send(*args)
        return self.receive()

    def run(self, script: Script, *args: Any, after: Sequence[tuple[Any, ...]] = ()) -> Any:
        """Run a script; one that the server does not know (any more) is sent in full.

        It is run `after` other commands, whether they are refused or not.
        """
        for command in after:  # large ones, which are not copied once more to go out together
            self.send(*command)
        self.send("EVALSHA", script.digest, 1, self.place.prefix, *args)
        for _ in after:
            with contextlib.suppress(errors.ResponseError):
                self.receive()
        try:
            return self.receive()
        except errors.NoScriptError:
            return self.call("EVAL", script.text, 1, self.place.prefix, *args)

    def fileno(self) -> int:
        """The socket, to wait for an answer."""
        found: int = self._connection._sock.fileno()
        return found

    def has_answer(self) -> bool:
        """Whether `receive` would not block, now that the socket can be read."""
        try:
            # What comes over TLS may be about TLS.
            return not self.place.tls or bool(self._connection.can_read(0))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Disconnect, for ever."""
        self.broken = True
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.disconnect()
            except (OSError, errors.RedisError):
                pass


#: What is said first on each new connection.
Greeting = Callable[[Link], object]


def _leave_to_system(sock: socket.socket, seconds: float) -> None:
    """Let the system end what takes longer than so many seconds.

    Python asks it before each reading and writing of a socket that has a timeout of Python's own.
    """
    if os.name == "posix":
        told = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            sock.setsockopt(socket.SOL_SOCKET, option, told)
        sock.settimeout(None)


def _check_time(error: errors.ConnectionError) -> None:
    """What the system ended is no broken connection, but an answer that did not come."""
    if isinstance(error.__context__, BlockingIOError):
        raise errors.TimeoutError("it did not answer in time") from error


def _no_redis(error: errors.InvalidResponse) -> errors.ConnectionError:
    return errors.ConnectionError(f"what answers there is no Redis ({error!s:.100})")


class Client:
    """A connection for all threads of a process, one step after the other."""

    def __init__(
        self,
        place: Place,
        kind: type[exceptions.WbengineException],
        greet: Greeting | None = None,
    ) -> None:
        self.place = place
        self._kind = kind
        self._lock = threading.Lock()
        self._link = Link(place, greet)

    @property
    def broken(self) -> bool:
        """Whether the connection was lost; it is not opened again."""
        return self._link.broken

    def run(self, script: Script, *args: Any, after: Sequence[tuple[Any, ...]] = ()) -> Any:
        """Run a script, `after` other commands.

        :raises LOST: the server was not reached, or did not answer; it may have run all the same.
        :raises kind: it refused, and nothing was done (out of memory, no permission, ...).
        """
        return self._do(self._link.run, script, *args, after=after)

    def call(self, *args: Any) -> Any:
        """Send a command; as `run`."""
        return self._do(self._link.call, *args)

    def _do(self, work: Callable[..., Any], *args: Any, **more: Any) -> Any:
        try:
            with self._lock:
                return work(*args, **more)
        except errors.ConnectionError:
            raise
        except errors.ResponseError as error:
            raise self._kind(f"{self.place.shown}: {error}") from error

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            self._link.close()


class Pool:
    """Connections for threads that do not wait for each other."""

    #: So many are kept that nobody uses.
    _SPARE: Final = 4

    def __init__(
        self,
        place: Place,
        kind: type[exceptions.WbengineException],
        name: str | None = None,
        greet: Greeting | None = None,
    ) -> None:
        """`name`: what it is to people, beside its URL."""
        self.place = place
        self._kind = kind
        self._name = name or place.shown
        self._greet = greet
        self._spare: deque[Link] = deque()
        self._closed = False
        #: When the server was not reached last, or did not answer, on the monotonic clock.
        self.lost_at = -math.inf

    def run(self, script: Script, *args: Any) -> tuple[Any, bool]:
        """Run a script, and once more where the connection was lost.

        The answer, and whether it is the second one: then the script may have run before.

        :raises kind: the server was not reached, did not answer in time, or refused.
        """
        return self._with_link(lambda link: link.run(script, *args))

    def call(self, *args: Any) -> Any:
        """Send a command; as `run`, but only the answer."""
        return self._with_link(lambda link: link.call(*args))[0]

    def _with_link(self, work: Callable[[Link], Any]) -> tuple[Any, bool]:
        again = False
        while True:
            try:
                link = self._spare.pop()
            except IndexError:
                link = Link(self.place, self._greet)
            try:
                return work(link), again
            except LOST as error:
                self.lost_at = time.monotonic()
                # The others were as good as this one.  An answer that is late will not come sooner.
                self._drop_spare()
                if again or isinstance(error, errors.TimeoutError):
                    raise self._kind(f"{self._name}: {reasons.explain(error)}") from error
                again = True
            except errors.ResponseError as error:
                raise self._kind(f"{self._name}: {error}") from error
            finally:
                if not link.broken:
                    self._spare.append(link)
                    if self._closed or len(self._spare) > self._SPARE:
                        self._drop_spare(0 if self._closed else self._SPARE)

    def _drop_spare(self, but: int = 0) -> None:
        while len(self._spare) > but:
            try:
                self._spare.popleft().close()
            except IndexError:
                return

    def close(self) -> None:
        """Disconnect."""
        self._closed = True
        self._drop_spare()


def portions(things: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many at a time as a script takes as arguments of one command."""
    for start in range(0, len(things), _PORTION):
        yield things[start : start + _PORTION]
