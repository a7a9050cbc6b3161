"""Broker addresses: from URL, transport name and options to a connection."""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final
from urllib.parse import quote

import kombu
from kombu.transport import TRANSPORT_ALIASES, virtual

from wbengine import _installing, _names, _options
from wbengine.concurrency import eventlet
from wbengine.transports import _amqp_socket, _files, amqp, filesystem, memory, tls
from wbengine.transports.broker import Broker

#: Environment variable with the default broker of engines and workers.
URL_VARIABLE: Final = "WBENGINE_URL"

#: wbengine's transports and their options. `polling_interval` of `memory` has no effect, but is
#: accepted because kombu's transport has it.
_OUR_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "filesystem": ("data_folder_in", "data_folder_out", "polling_interval", "inotify"),
    "memory": ("polling_interval",),
}
_REDIS: Final = ("redis", "rediss")
#: wbengine's transports are first, so that hints for misspelled names prefer them.
_KNOWN_TRANSPORTS: Final = tuple(
    dict.fromkeys(("amqp", "amqps", *_REDIS, *_OUR_OPTIONS, *TRANSPORT_ALIASES))
)
#: Extras of kombu whose name is not that of the transport.
_KOMBU_EXTRAS: Final[Mapping[str, str]] = {"kafka": "confluentkafka", "sqla": "sqlalchemy"}


@dataclass(frozen=True)
class RetryOptions:
    """Retries of an unreachable broker.

    The pause is `interval_start` seconds, and grows by `interval_step` up to `interval_max`. A
    random part of up to one half is subtracted, so that clients do not reconnect at the same time.
    A start fails after `max_retries` (None: after its timeout). After a successful start, retries
    never end.
    """

    interval_start: float = 0.1
    interval_step: float = 0.3
    interval_max: float = 1.0
    max_retries: int | None = None

    @classmethod
    def read(cls, options: Any) -> RetryOptions:
        """Read an option of engines and workers.

        :raises TypeError: if it is not a dict.
        :raises ValueError: if it has an unknown key or an invalid value.
        """
        values = _options.complete("retry_options", options, dataclasses.asdict(cls()))
        retries = values.pop("max_retries")
        numbers = {name: _options.number(name, value) for name, value in values.items()}
        return cls(
            **numbers,
            max_retries=None if retries is None else _options.whole("max_retries", retries),
        )

    def wait(self, attempts: int, chance: float) -> float:
        """Return the pause in seconds after a number of failed attempts.

        :param chance: random number from 0 to 1.
        """
        full = min(self.interval_max, self.interval_start + self.interval_step * (attempts - 1))
        return full * (1 - chance / 2)


@dataclass(frozen=True)
class Target:
    """Resolved broker address.

    If `is_native` is True, `transport` is the name of a transport of wbengine. Otherwise it is an
    alias of kombu, or None, which leaves the choice to kombu.
    """

    url: str | None
    transport: Any
    options: dict[str, Any] = field(default_factory=dict)
    is_native: bool = False
    retry: RetryOptions = RetryOptions()

    def open(self) -> Broker:
        """Connect to a broker with a transport of wbengine.

        :raises TransportFailure, OSError: if it cannot be reached.
        """
        if self.broker is not None:
            return memory.MemoryBroker(self.broker)
        if self.folders is not None:
            settings = self.options
            return filesystem.FileBroker(
                *self.folders,
                settings.get("polling_interval"),
                settings.get("inotify", True),
                settings.get("claims"),
            )
        from wbengine.transports import redis

        return redis.RedisBroker.reach(self.redis, self.options)

    def connect(self, number: int = 0, **kwargs: Any) -> kombu.Connection:
        """Return a kombu connection, not open yet.

        :param number: number of the attempt, which selects one of several brokers in the URL.
        :param kwargs: arguments of `kombu.Connection`.
        :raises ValueError: if the URL is malformed.
        """
        url = self.url
        transport: Any = self.transport
        settings: dict[str, Any] = {"transport_options": dict(self.options)}
        try:
            if self.amqp:
                brokers = amqp.alternates(url)
                url, settings = amqp.arguments(
                    brokers[number % len(brokers)], self.transport, self.options
                )
                transport = _amqp_socket.Transport
            return kombu.Connection(url, transport=transport, **{**settings, **kwargs})
        except amqp.InvalidURLError as error:
            raise ValueError(str(error)) from None
        except ValueError:
            # kombu's message may contain a part of the password, which it regards as the port.
            raise ValueError(f"the URL of the broker ({self.shown}) is malformed") from None

    def check(self) -> bool:
        """Check that the transport can be used. Return whether kombu emulates it.

        :raises ValueError: if it is unknown or not installed, if a file of its options does not
            exist, or if it does not work in a process patched by eventlet.
        """
        if self.amqp or (self.is_native and not self.broker):
            eventlet.check_poll(f"the broker at {self.shown}")
        for number in range(1, len(amqp.alternates(self.url)) if self.amqp else 0):
            self.connect(number)
        self._check_files()
        if self.is_native:
            return False
        try:
            return isinstance(self.connect().transport, virtual.Transport)
        except (KeyError, ImportError, AttributeError, NameError) as error:
            name = str(self.transport or str(self.url).partition("://")[0])
            raise ValueError(_unusable(name, error)) from error

    def _check_files(self) -> None:
        """Check that files of options exist, because later errors do not name the file."""
        if self.amqp:
            files = {f"ssl_{name}": path for name, path in (self.connect().ssl or {}).items()}
        else:
            files = dict(self.redis.settings) if self.redis is not None else {}
        for name in tls.FILES:
            path = files.get(name)
            if path is not None and not os.path.isfile(path):
                raise ValueError(f"{name} must be an existing file, got {str(path)!r}")

    @property
    def amqp(self) -> bool:
        """Whether this is RabbitMQ, reached by kombu's py-amqp transport."""
        return not self.is_native and amqp.is_rabbitmq(self.url, self.transport)

    @property
    def system(self) -> str:
        """Name of the messaging system: `rabbitmq`, `redis`, `filesystem`, `memory`, ..."""
        if self.amqp:
            return "rabbitmq"
        name = getattr(self.transport, "driver_type", None) or self.transport
        return str(name or str(self.url).partition("://")[0])

    @property
    def is_local(self) -> bool:
        """Whether connections cannot break: the broker is in this process or in a folder."""
        return self.folders is not None or self.broker is not None

    @property
    def shown(self) -> str:
        """URL for display, without passwords and options."""
        if self.url is None:
            name = self.transport
            return name if isinstance(name, str) else getattr(name, "driver_type", "the transport")
        if self.redis is not None:
            return str(self.redis.shown)
        return ";".join(_masked(part) for part in self.url.split(";"))

    @property
    def redis(self) -> Any:
        """Part of a Redis that wbengine's transport uses (`redis.Place`), else None."""
        if self.transport != "redis" or not self.is_native:
            return None
        from wbengine.transports import redis

        return redis.place(self.url, self.options)

    @property
    def folders(self) -> tuple[str, str] | None:
        """Folders (in, out) of wbengine's filesystem transport, else None."""
        if self.transport != "filesystem" or not self.is_native:
            return None
        return filesystem.folders(self.url, self.options)

    @property
    def broker(self) -> str | None:
        """Name of the hub of wbengine's memory transport, else None."""
        return memory.hub_name(self.url) if self.transport == "memory" and self.is_native else None


def default_folder() -> str:
    """Return the default folder of this user, created with mode 0700 if needed.

    It is `$XDG_RUNTIME_DIR/wbengine`, or `wbengine-<uid>` in the temporary folder.

    :raises TransportFailure: if it belongs to another user, is accessible to others, or is a
        symlink.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        path = os.path.join(runtime, "wbengine")
    else:
        path = os.path.join(tempfile.gettempdir(), f"wbengine-{os.getuid()}")
    return _files.make_folder(path, private=True)


def resolve(
    url: str | None = None,
    transport: Any = None,
    transport_options: Mapping[str, Any] | None = None,
    *,
    exchange: str | None = None,
) -> Target:
    """Resolve a broker address, without connecting.

    `filesystem`, `memory`, `redis` and `rediss` (as transport or scheme of the URL) are transports
    of wbengine; all others are kombu's. In Redis, keys begin with the name of the exchange. Without
    URL and transport, use `$WBENGINE_URL`, else the default folder, which is created.

    :raises TypeError: if an argument has a wrong type.
    :raises ValueError: if an option is invalid or the client of Redis is not installed.
    :raises TransportFailure: if the default folder is not safe to use.
    """
    if url is not None and not isinstance(url, str):
        raise TypeError(f"The url of a broker must be a str, got {url!r}")
    if transport_options is not None and not isinstance(transport_options, Mapping):
        raise TypeError(f"transport_options must be a dict, got {transport_options!r}")
    options = dict(transport_options or {})
    has_folder = bool(options.get("data_folder_in") or options.get("data_folder_out"))
    if url is None and transport is None:
        url = os.environ.get(URL_VARIABLE) or None
        if url is None or has_folder:
            url, transport = None, "filesystem"
    name = transport if transport is not None else (url or "").partition("://")[0]
    if isinstance(name, str) and name in _REDIS:
        return _redis(url, name, options, exchange)
    if not isinstance(name, str) or name not in _OUR_OPTIONS:
        target = Target(url, transport, options)
        if transport is None and "://" not in (url or ""):
            raise ValueError(
                f"The URL of a broker must begin with its transport, as in amqp://{target.shown}"
            )
        return target
    _options.check_known(f"the {name} transport", options, _OUR_OPTIONS[name])
    interval = options.get("polling_interval")
    if interval is not None and not (isinstance(interval, int | float) and interval > 0):
        raise ValueError(f"polling_interval must be a number above 0, got {interval!r}")
    if name == "memory":
        return Target(f"memory://{memory.hub_name(url)}", name, options, is_native=True)
    if not has_folder and not filesystem.path_of(url or ""):
        url = _url(default_folder())
    folder_in, folder_out = filesystem.folders(url, options)
    if has_folder:
        options.update(data_folder_in=folder_in, data_folder_out=folder_out)
    return Target(_url(folder_in), name, options, is_native=True)


def check_names(
    url: str | None, transport: str | None, transport_options: Mapping[str, Any] | None
) -> None:
    """Check the names of the transport and of its options, for transports of wbengine and RabbitMQ.

    This neither connects nor creates a folder.

    :raises ValueError: if a name is unknown. The message contains the nearest known name.
    """
    if url is None and transport in (None, "filesystem"):
        # A path prevents that the default folder is created.
        url = "filesystem:///-"
    target = resolve(url, transport, transport_options)
    if target.amqp:
        for number in range(len(amqp.alternates(url))):
            target.connect(number)
    elif not target.is_native:
        name = str(transport or url).partition("://")[0].partition("+")[0]
        # The class of another library's transport contains a dot or a colon.
        if not {".", ":"} & set(name) and name not in TRANSPORT_ALIASES:
            raise ValueError(_unknown(name))


def _redis(url: str | None, name: str, options: dict[str, Any], exchange: str | None) -> Target:
    # Do not import the client in processes that do not use Redis.
    try:
        from wbengine.transports import redis
    except ImportError as error:
        raise ValueError(_installing.needs(f"transport {name!r}", "redis-py", "redis")) from error

    _options.check_known("the redis transport", options, redis.OPTIONS)
    if exchange is not None:
        options.setdefault("prefix", exchange)
    url = url or f"{name}://"
    redis.place(url, options)
    return Target(url, "redis", options, is_native=True)


def _unknown(name: str) -> str:
    return f"Unknown transport {name!r}{_names.hint(name, _KNOWN_TRANSPORTS)}"


def _unusable(name: str, error: Exception) -> str:
    if isinstance(error, KeyError):
        return _unknown(name)
    # Its library is not installed. kombu may raise NameError for missing imports.
    kind = name.partition("+")[0].lower()
    if kind in (*_REDIS, "sentinel"):
        return _installing.needs(f"transport {name!r}", "redis-py", "redis")
    extra = _KOMBU_EXTRAS.get(kind, kind)
    if extra in metadata.metadata("kombu").get_all("Provides-Extra", []):
        instruction = _installing.pip("install", f"kombu[{extra}]")
    else:
        instruction = str(error)
    return f"transport {name!r} requires a library that is not installed: {instruction}"


def _masked(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url.rpartition("@")[2]
    return scheme + mark + re.sub(r"^([^:/?#]*):.*@", r"\1:**@", rest.partition("?")[0])


def _url(folder: str) -> str:
    # `;` separates alternatives in kombu's URLs.
    return f"filesystem://{quote(folder)}"
