"""Where to connect: from URL, transport name and options to what kombu needs."""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import kombu
from kombu.transport import virtual

from wbengine import _names, _options
from wbengine.concurrency import eventlet
from wbengine.transports import _amqp_socket, _files, amqp, filesystem, memory, tls
from wbengine.transports.broker import Broker

#: Names the broker of engines and workers that are told none.
URL_VARIABLE: Final = "WBENGINE_URL"

#: Ours, and the names of their options.  Of `memory` one is kept for programs that were written for
#: kombu's: here no time passes between two looks.
_OURS: Final[Mapping[str, tuple[str, ...]]] = {
    "filesystem": ("data_folder_in", "data_folder_out", "polling_interval", "inotify"),
    "memory": ("polling_interval",),
}
_REDIS: Final = ("redis", "rediss")
_KNOWN: Final = ("amqp", "amqps", *_REDIS, *_OURS)


@dataclass(frozen=True)
class RetryOptions:
    """How a broker is tried again that was not reached.

    The wait is `interval_start` seconds, then each time `interval_step` more, up to `interval_max`;
    of each up to a half is taken away at random, so that many do not come at once.  A start fails
    after `max_retries` (None: when its time is over); a broker that was reached once is tried for
    ever.
    """

    interval_start: float = 0.1
    interval_step: float = 0.3
    interval_max: float = 1.0
    max_retries: int | None = None

    @classmethod
    def read(cls, told: Any) -> RetryOptions:
        """Read an option of engines and workers.

        :raises TypeError: it is no dict.
        :raises ValueError: it has another key, or a value makes no sense.
        """
        found = _options.complete("retry_options", told, dataclasses.asdict(cls()))
        most = found.pop("max_retries")
        numbers = {name: _options.number(name, value) for name, value in found.items()}
        return cls(
            **numbers, max_retries=None if most is None else _options.whole("max_retries", most)
        )

    def wait(self, attempts: int, chance: float) -> float:
        """How long to wait after so many attempts failed; `chance` is from 0 to 1."""
        full = min(self.interval_max, self.interval_start + self.interval_step * (attempts - 1))
        return full * (1 - chance / 2)


@dataclass(frozen=True)
class Target:
    """A resolved broker address.

    `transport` is the name of one of `ours`, else what kombu is to find by itself (an alias, or
    None: by the URL).
    """

    url: str | None
    transport: Any
    options: dict[str, Any] = field(default_factory=dict)
    ours: bool = False
    retry: RetryOptions = RetryOptions()

    def open(self) -> Broker:
        """Connect to one of ours.

        :raises TransportFailure, OSError: it cannot be reached.
        """
        if self.broker is not None:
            return memory.MemoryBroker(self.broker)
        if self.folders is not None:
            told = self.options
            return filesystem.FileBroker(
                *self.folders,
                told.get("polling_interval"),
                told.get("inotify", True),
                told.get("claims"),
            )
        from wbengine.transports import redis

        return redis.RedisBroker.reach(self.redis, self.options)

    def connect(self, number: int = 0, **kwargs: Any) -> kombu.Connection:
        """A kombu connection to what is not ours, not yet opened; `kwargs` go to
        `kombu.Connection`.

        Where a URL of RabbitMQ names several brokers, `number` (of the attempt) chooses.

        :raises ValueError: the URL is malformed.
        """
        url = self.url
        transport: Any = self.transport
        more: dict[str, Any] = {"transport_options": dict(self.options)}
        try:
            if self.amqp:
                brokers = amqp.alternates(url)
                url, more = amqp.arguments(
                    brokers[number % len(brokers)], self.transport, self.options
                )
                transport = _amqp_socket.Transport
            return kombu.Connection(url, transport=transport, **{**more, **kwargs})
        except amqp.Malformed as error:
            raise ValueError(str(error)) from None
        except ValueError:
            # What kombu says may hold the password, of which it took a part for the port.
            raise ValueError(f"the URL of the broker ({self.shown}) is malformed") from None

    def check(self) -> bool:
        """See that its transport can be used here; whether it is one that kombu emulates.

        :raises ValueError: it is unknown, or not installed; a file of its options is not there; it
            does not work in a process that eventlet has patched.
        """
        if self.amqp or (self.ours and not self.broker):
            eventlet.check_poll(f"the broker at {self.shown}")
        self._check_files()
        if self.ours:
            return False
        try:
            return isinstance(self.connect().transport, virtual.Transport)
        except (KeyError, ImportError, AttributeError) as error:
            name = str(self.transport or str(self.url).partition("://")[0])
            if isinstance(error, KeyError):
                why = f"there is none of this name{_names.hint(name, _KNOWN)}"
            else:  # kombu reads attributes of libraries that it could not import
                extra = name.partition("+")[0].replace("rediss", "redis")
                package = "wbengine" if extra == "redis" else "kombu"
                why = f"what it takes is not installed: pip install '{package}[{extra}]'"
            raise ValueError(f"{name!r} is no transport that can be used here: {why}") from error

    def _check_files(self) -> None:
        """What reads them later does not say which one it missed."""
        if self.amqp:
            told = {f"ssl_{name}": path for name, path in (self.connect().ssl or {}).items()}
        else:
            told = dict(self.redis.settings) if self.redis is not None else {}
        for name in tls.FILES:
            path = told.get(name)
            if path is not None and not os.path.isfile(path):
                raise ValueError(f"{name} is {str(path)!r}: there is no such file")

    @property
    def amqp(self) -> bool:
        """Whether this is a RabbitMQ, reached by kombu's py-amqp transport."""
        return not self.ours and amqp.is_meant(self.url, self.transport)

    @property
    def system(self) -> str:
        """What carries messages there: `rabbitmq`, `redis`, `filesystem`, `memory`, ..."""
        if self.amqp:
            return "rabbitmq"
        name = getattr(self.transport, "driver_type", None) or self.transport
        return str(name or str(self.url).partition("://")[0])

    @property
    def is_local(self) -> bool:
        """Whether it is within this process, or a folder: what cannot break unnoticed."""
        return self.folders is not None or self.broker is not None

    @property
    def shown(self) -> str:
        """The URL for people: without passwords, and what may hold them."""
        if self.url is None:
            name = self.transport
            return name if isinstance(name, str) else getattr(name, "driver_type", "the transport")
        if self.redis is not None:
            return str(self.redis.shown)
        return ";".join(_masked(part) for part in self.url.split(";"))

    @property
    def redis(self) -> Any:
        """The part of a Redis that our transport uses (`redis.Place`), else None."""
        if self.transport != "redis" or not self.ours:
            return None
        from wbengine.transports import redis

        return redis.place(self.url, self.options)

    @property
    def folders(self) -> tuple[str, str] | None:
        """(in, out) of our filesystem transport, else None."""
        if self.transport != "filesystem" or not self.ours:
            return None
        return filesystem.folders(self.url, self.options)

    @property
    def broker(self) -> str | None:
        """The hub's name of our memory transport, else None."""
        return memory.hub_name(self.url) if self.transport == "memory" and self.ours else None


def default_folder() -> str:
    """The folder of this user: made with mode 0700 when it is not there.

    `$XDG_RUNTIME_DIR/wbengine`, or `wbengine-<uid>` in the temporary folder.

    :raises TransportFailure: it belongs to somebody else, is open to others, or is a symlink.
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
    """Find out where to connect.

    `filesystem`, `memory`, `redis` and `rediss` (as transport or scheme of the URL) are ours,
    anything else is kombu's.  Keys in Redis begin with the name of the exchange.  Without URL and
    transport: `$WBENGINE_URL`, else the default folder.  Touches no broker; only the default folder
    is made.

    :raises TypeError: an argument is of a wrong type.
    :raises ValueError: an option makes no sense.
    :raises ImportError: the client of a Redis is not installed.
    :raises TransportFailure: the default folder is not safe to use.
    """
    if url is not None and not isinstance(url, str):
        raise TypeError(f"The url of a broker must be a str, not {url!r}")
    if transport_options is not None and not isinstance(transport_options, Mapping):
        raise TypeError(f"transport_options must be a dict, not {transport_options!r}")
    options = dict(transport_options or {})
    has_folder = bool(options.get("data_folder_in") or options.get("data_folder_out"))
    if url is None and transport is None:
        url = os.environ.get(URL_VARIABLE) or None
        if url is None or has_folder:
            url, transport = None, "filesystem"
    name = transport if transport is not None else (url or "").partition("://")[0]
    if isinstance(name, str) and name in _REDIS:
        return _redis(url, name, options, exchange)
    if not isinstance(name, str) or name not in _OURS:
        target = Target(url, transport, options)
        if transport is None and "://" not in (url or ""):
            raise ValueError(
                f"the URL of a broker begins with its transport, as in amqp://{target.shown}"
            )
        return target
    _options.check_known(f"the {name} transport", options, _OURS[name])
    interval = options.get("polling_interval")
    if interval is not None and not (isinstance(interval, int | float) and interval > 0):
        raise ValueError(f"polling_interval is {interval!r}: it must be a number above 0")
    if name == "memory":
        return Target(f"memory://{memory.hub_name(url)}", name, options, ours=True)
    if not has_folder and not filesystem.path_of(url or ""):
        url = _url(default_folder())
    folder_in, folder_out = filesystem.folders(url, options)
    if has_folder:
        options.update(data_folder_in=folder_in, data_folder_out=folder_out)
    return Target(_url(folder_in), name, options, ours=True)


def _redis(url: str | None, name: str, options: dict[str, Any], exchange: str | None) -> Target:
    # Not on top: a process that does not use it is to do without the client.
    try:
        from wbengine.transports import redis
    except ImportError as error:
        raise ValueError(
            f"{name!r} is no transport that can be used here: what it takes is not installed:"
            f" pip install 'wbengine[redis]'"
        ) from error

    _options.check_known("the redis transport", options, redis.OPTIONS)
    if exchange is not None:
        options.setdefault("prefix", exchange)
    url = url or f"{name}://"
    redis.place(url, options)
    return Target(url, "redis", options, ours=True)


def _masked(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url.rpartition("@")[2]
    return scheme + mark + re.sub(r"^([^:/?#]*):.*@", r"\1:**@", rest.partition("?")[0])


def _url(folder: str) -> str:
    # `;` separates alternates in kombu's URLs.
    return f"filesystem://{quote(folder)}"
