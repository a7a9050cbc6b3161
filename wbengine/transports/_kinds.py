"""Transports: their kinds, the targets that they reach, and the way from a URL to a target."""

from __future__ import annotations

import abc
import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import kombu
from kombu.transport import TRANSPORT_ALIASES

from wbengine._concurrency import eventlet
from wbengine._configuration import default_broker, named_options, plugins, server_urls
from wbengine._introspection import object_names
from wbengine.transports._broker import Broker, BrokerWriter
from wbengine.transports._ledger import RowAccess
from wbengine.transports._publishing import Writer
from wbengine.transports._receiving import ReceivingLink

#: Entry point group of transports.
GROUP: Final = "wbengine.transports"

#: wbengine's transports. They are first, so that hints for misspelled names prefer them.
KINDS: Final[Mapping[str, str]] = {
    "amqp": "wbengine.transports._amqp.amqp_kind:KIND",
    "amqps": "wbengine.transports._amqp.amqp_kind:KIND",
    "pyamqp": "wbengine.transports._amqp.amqp_kind:KIND",
    "redis": "wbengine.transports._redis.redis_kind:KIND",
    "rediss": "wbengine.transports._redis.redis_kind:KIND",
    "filesystem": "wbengine.transports._folder.folder_kind:KIND",
    "memory": "wbengine.transports._memory.memory_broker:KIND",
    "postgresql": "wbengine.transports._sql.sql_kind:POSTGRESQL",
    "postgres": "wbengine.transports._sql.sql_kind:POSTGRESQL",
    "pgsql": "wbengine.transports._sql.sql_kind:POSTGRESQL",
    "mysql": "wbengine.transports._sql.sql_kind:MYSQL",
    "mariadb": "wbengine.transports._sql.sql_kind:MYSQL",
}
#: Names of wbengine's transports by their names elsewhere, for hints in error messages.
_ALIASES: Final[Mapping[str, str]] = {
    "dir": "filesystem",
    "file": "filesystem",
    "rabbitmq": "amqp",
    "sqlite": "filesystem",
    "unix": "redis",
    "valkey": "redis",
}
#: Transports of kombu with a second part in the scheme, as in `sqla+postgresql://`.
_COMBINED: Final = ("mongodb", "sqla", "sqlalchemy")
#: The kind of all transports that only kombu has.
_OF_KOMBU: Final = "wbengine.transports._kombu.kombu_kind:KIND"
#: Minimum of `dead_after`: consumers report each second, and one report may be late.
_MIN_DEAD_AFTER_SECONDS: Final = 1.5


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
        values = named_options.complete("retry_options", options, dataclasses.asdict(cls()))
        retries = values.pop("max_retries")
        numbers = {name: named_options.number(name, value) for name, value in values.items()}
        return cls(
            **numbers,
            max_retries=None if retries is None else named_options.whole("max_retries", retries),
        )

    def wait(self, attempts: int, chance: float) -> float:
        """Return the pause in seconds after a number of failed attempts.

        :param chance: random number from 0 to 1.
        """
        full = min(self.interval_max, self.interval_start + self.interval_step * (attempts - 1))
        return full * (1 - chance / 2)


class TransportKind(abc.ABC):
    """A kind of transport: its options, how it reaches a broker, and what it adds to other parts.

    The entry points of the group `wbengine.transports` name instances; the name of an entry point
    is the scheme of URLs, and the value of `transport`. The import of its module must be cheap: an
    object that needs a client library is named ('package.module:name') and loaded on first use.
    """

    #: The name of the transport, and of the messaging system in metrics.
    name: ClassVar[str]
    #: A dataclass with the transport options. The metadata `doc` of a field is its description.
    options: ClassVar[type]
    #: Whether the broker is RabbitMQ, reached by the frames of AMQP.
    is_amqp: ClassVar[bool] = False
    #: Whether connections cannot break: the broker is in this process or in a folder.
    is_local: ClassVar[bool] = False
    #: Whether the broker is in this process, so that no file or socket is polled.
    is_in_process: ClassVar[bool] = False
    #: Name of a function (target, role, result_ttl) that opens the ledger of a broker; None: it has
    #: none.
    ledger: ClassVar[str | None] = None
    #: Whether a `Broker` opens, claims and finishes the rows of its ledger in the steps in which it
    #: publishes, takes and deletes the messages of requests. Such a broker uses no other ledger.
    has_rows: ClassVar[bool] = False
    #: Name of a module with checks of `wbengine doctor`: `check(place)` yields findings, and
    #: `fix(reason, target)` returns how to reach an unreachable broker, or None.
    diagnosis: ClassVar[str | None] = None

    @abc.abstractmethod
    def resolve(
        self, url: str | None, transport: Any, options: dict[str, Any], exchange: str | None
    ) -> Target:
        """Check an address and its options without connecting.

        :raises ValueError: if the URL or an option is invalid, or a library is not installed.
        """

    def check_names(self, target: Target) -> None:  # noqa: B027
        """Check names that `resolve` does not check, without connecting.

        :raises ValueError: if a name is unknown; the message contains the nearest known name.
        """

    @abc.abstractmethod
    def check(self, target: Target) -> bool:
        """Check that the transport can be used. Return whether kombu emulates it.

        :raises ValueError: if it cannot be used.
        """

    @abc.abstractmethod
    def link(self, connection: Any, layout: Any, replies_from: float) -> ReceivingLink:
        """Return the interface for receiving on an open connection.

        :param layout: the `Topology` of this process.
        :param replies_from: see `AmqpLink`.
        """

    @abc.abstractmethod
    def writer(self, connection: Any, layout: Any, outbox: Any, is_careful: bool) -> Writer:
        """Return the interface for publishing on an open connection; see `link`.

        :param outbox: the sender, to which the writer reports.
        :param is_careful: see `Writer`.
        """

    def shown(self, target: Target) -> str:
        """Return the URL without passwords and options."""
        return masked(target.url or self.name)

    def system(self, target: Target) -> str:
        """Return the name of the messaging system."""
        return self.name

    def quick_options(self, seconds: float) -> dict[str, Any]:
        """Return the options with which an attempt to connect takes at most these seconds."""
        return {}

    def explain(self, error: BaseException) -> str | None:
        """Return in a few words what an error of the client library means, or None."""
        return None

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether the error means that the broker refuses access, so retries are useless."""
        return False

    def may_pass(self, error: BaseException) -> bool:
        """Return whether an exception of wbengine reports a state of the server that may pass."""
        return False


class BrokerKind(TransportKind):
    """A kind of transport that implements `Broker`."""

    def check(self, target: Target) -> bool:
        if not self.is_in_process:
            eventlet.check_poll(f"the broker at {target.shown}")
        return False

    def link(self, connection: Any, layout: Any, replies_from: float) -> ReceivingLink:
        link: ReceivingLink = connection
        return link

    def writer(self, connection: Any, layout: Any, outbox: Any, is_careful: bool) -> Writer:
        return BrokerWriter(connection, layout)

    @abc.abstractmethod
    def place(self, target: Target) -> Any:
        """Return a comparable value that identifies the broker, for ledgers and `open`."""

    @abc.abstractmethod
    def open(self, target: Target) -> Broker:
        """Connect.

        If the kind `has_rows`, the connection changes rows as `target.rows` describes.

        :raises TransportFailure, OSError: if the broker cannot be reached.
        """


class KombuKind(TransportKind):
    """A kind of transport that kombu implements."""

    @abc.abstractmethod
    def connect(self, target: Target, number: int, **kwargs: Any) -> kombu.Connection:
        """Return a connection, not open yet. See `Target.connect`."""

    def shown(self, target: Target) -> str:
        if target.url is None:
            name = target.transport
            return name if isinstance(name, str) else getattr(name, "driver_type", "the transport")
        return masked(target.url)

    def malformed(self, target: Target) -> ValueError:
        """Return the error for a URL that cannot be parsed.

        It replaces kombu's, which may contain a part of the password as the port.
        """
        return ValueError(
            f"the URL of the broker ({target.shown}) is malformed; {server_urls.PASSWORD_HINT}"
        )


@dataclass(frozen=True)
class Target:
    """Resolved broker address.

    `transport` is the name of a transport of wbengine or of a plug-in; for transports of kombu, an
    alias or class of kombu, or None, which leaves the choice to kombu. The owner of the connections
    sets `rows` before it connects, if the transport `has_rows`.
    """

    url: str | None
    transport: Any
    kind: TransportKind
    options: dict[str, Any] = field(default_factory=dict)
    retry: RetryOptions = RetryOptions()
    rows: RowAccess = field(init=False, default_factory=RowAccess, compare=False)

    def open(self) -> Broker:
        """Connect to a broker with a transport that implements `Broker`.

        :raises TransportFailure, OSError: if it cannot be reached.
        """
        if not isinstance(self.kind, BrokerKind):
            raise TypeError(f"{self.shown} has no Broker; use connect")
        return self.kind.open(self)

    def connect(self, number: int = 0, **kwargs: Any) -> kombu.Connection:
        """Return a kombu connection, not open yet.

        :param number: number of the attempt, which selects one of several brokers in the URL.
        :param kwargs: arguments of `kombu.Connection`.
        :raises ValueError: if the URL is malformed.
        """
        if not isinstance(self.kind, KombuKind):
            raise TypeError(f"{self.shown} is not reached by kombu; use open")
        return self.kind.connect(self, number, **kwargs)

    def check(self) -> bool:
        """Check that the transport can be used. Return whether kombu emulates it.

        :raises ValueError: if it is unknown or not installed, if a file of its options does not
            exist, or if it does not work in a process patched by eventlet.
        """
        return self.kind.check(self)

    @property
    def place(self) -> Any:
        """What identifies the broker for its ledger, None if its transport has no `Broker`."""
        return self.kind.place(self) if isinstance(self.kind, BrokerKind) else None

    @property
    def is_native(self) -> bool:
        """Whether the transport implements `Broker`; otherwise kombu connects."""
        return isinstance(self.kind, BrokerKind)

    @property
    def has_rows(self) -> bool:
        """Whether the broker changes rows of its ledger in the same steps as messages."""
        return self.kind.has_rows

    @property
    def amqp(self) -> bool:
        """Whether this is RabbitMQ, reached by kombu's py-amqp transport."""
        return self.kind.is_amqp

    @property
    def system(self) -> str:
        """Name of the messaging system: `rabbitmq`, `redis`, `filesystem`, `memory`, ..."""
        return self.kind.system(self)

    @property
    def is_local(self) -> bool:
        """Whether connections cannot break: the broker is in this process or in a folder."""
        return self.kind.is_local

    @property
    def shown(self) -> str:
        """URL for display, without passwords and options."""
        return self.kind.shown(self)


def check_options(kind: TransportKind, options: Mapping[str, Any]) -> None:
    """Check the names of transport options, and the value of `polling_interval`.

    :raises ValueError: if a name is unknown, with the nearest known name, or the value is invalid.
    """
    named_options.check_known(
        f"the {kind.name} transport", options, named_options.option_names(kind.options)
    )
    interval = options.get("polling_interval")
    if interval is not None and not (type(interval) in (int, float) and 0 < interval < math.inf):
        raise ValueError(f"polling_interval must be a number above 0, got {interval!r}")


def check_dead_after(options: Mapping[str, Any]) -> None:
    """Check the transport option `dead_after`.

    :raises ValueError: if it is invalid.
    """
    seconds = options.get("dead_after", _MIN_DEAD_AFTER_SECONDS)
    if not isinstance(seconds, int | float) or not seconds >= _MIN_DEAD_AFTER_SECONDS:
        raise ValueError(
            f"dead_after must be at least {_MIN_DEAD_AFTER_SECONDS} seconds, got {seconds!r}"
        )


def masked(url: str) -> str:
    """Return a URL, or several separated by `;`, without passwords and options."""
    return ";".join(_masked(part) for part in url.split(";"))


def _masked(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url.rpartition("@")[2]
    address = rest.partition("?")[0]
    if "@" in address:
        return scheme + mark + re.sub(r"^([^:/?#]*):.*@", r"\1:**@", address)
    # Without "@", a port that is not a number is the start of a password with "?" or ";".
    return scheme + mark + re.sub(r"^([^:/?#\[]*):(?!\d*([/,]|$)).*", r"\1:**", address)


#: Kinds of plug-ins that were used, by name.
_plugin_kinds: Final[dict[str, TransportKind]] = {}


def find_kind(name: Any) -> TransportKind:
    """Return the kind with this name, by default the one of kombu's transports.

    :param name: an alias or a class of kombu is allowed.
    :raises ValueError: if a plug-in cannot be loaded.
    """
    kind: TransportKind
    if isinstance(name, str) and name not in KINDS and name in plugins.names(GROUP):
        kind = _plugin_kinds[name] = _load_plugin(name)
    else:
        kind = object_names.load(KINDS.get(name, _OF_KOMBU) if isinstance(name, str) else _OF_KOMBU)
    return kind


def _load_plugin(name: str) -> TransportKind:
    try:
        kind = plugins.find(GROUP, name)
    except (Exception, SystemExit) as error:  # SystemExit: the module is a script.
        raise ValueError(
            f"The plug-in of transport {name!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(kind, TransportKind):
        raise ValueError(
            f"The entry point {name!r} of {GROUP} must name a TransportKind, got {kind!r:.80}"
        )
    return kind


def loaded_kinds() -> Iterable[TransportKind]:
    """Return wbengine's kinds, and those of plug-ins that were used."""
    own = [object_names.load(name) for name in dict.fromkeys(KINDS.values())]
    return (*own, *_plugin_kinds.values())


def resolve(
    url: str | None = None,
    transport: Any = None,
    transport_options: Mapping[str, Any] | None = None,
    *,
    exchange: str | None = None,
) -> Target:
    """Resolve a broker address, without connecting.

    `transport`, or else the scheme of `url`, names the kind: one of `KINDS`, a plug-in, or else a
    transport of kombu. If both are None, `$WBENGINE_URL` is used, or else the database of
    `$WBENGINE_PERSISTENCE` if that is PostgreSQL or MySQL, or else the default folder, which is
    created.

    :param exchange: the name of the exchange, which is a part of all keys in Redis.
    :raises TypeError: if an argument has a wrong type.
    :raises ValueError: if the kind is unknown, an option is invalid, or a client library is not
        installed.
    :raises TransportFailure: if the default folder is not safe to use.
    """
    if url is not None and not isinstance(url, str):
        raise TypeError(f"The url of a broker must be a str, got {url!r}")
    if transport_options is not None and not isinstance(transport_options, Mapping):
        raise TypeError(f"transport_options must be a dict, got {transport_options!r}")
    url, transport = default_broker.choose(url, transport, transport_options)
    scheme, mark, rest = (url or "").partition("://")
    if mark:
        url = scheme.lower() + mark + rest
    kind = kind_of(url, transport)
    return kind.resolve(url, transport, dict(transport_options or {}), exchange)


def kind_of(url: str | None, transport: Any) -> TransportKind:
    """Return the kind of a URL and a transport, of which one may be None.

    :raises ValueError: if a scheme such as `redis+sentinel` is unknown. Kombu would use the first
        part, and ignore the host.
    """
    if transport is not None:
        return find_kind(transport)
    scheme = (url or "").partition("://")[0]
    first, plus, _ = scheme.partition("+")
    kind = find_kind(scheme)
    if plus and kind.name == "kombu" and first not in _COMBINED:
        raise ValueError(unknown(scheme))
    return kind


def kombu_target(
    url: str | None, transport: Any = None, options: Mapping[str, Any] | None = None
) -> Target:
    """Return a target that kombu reaches, also if wbengine has a transport for the URL."""
    is_socket = (url or "").startswith("redis+socket://")
    if is_socket or not (kind := kind_of(url, transport)).is_amqp:
        kind = object_names.load(_OF_KOMBU)
    return Target(url, transport, kind, dict(options or {}))


def check_names(
    url: str | None, transport: str | None, transport_options: Mapping[str, Any] | None
) -> None:
    """Check the names of the transport and of its options, for transports of wbengine and RabbitMQ.

    This neither connects nor creates a folder.

    :raises ValueError: if a name is unknown. The message contains the nearest known name.
    """
    url, transport = default_broker.choose(url, transport, transport_options)
    if url is None and transport == default_broker.FOLDER:
        # A path prevents that the default folder is created.
        url = "filesystem:///-"
    target = resolve(url, transport, transport_options)
    target.kind.check_names(target)


def unknown(name: str) -> str:
    """Return the error message for an unknown transport, with the nearest known name."""
    known = dict.fromkeys((*KINDS, *plugins.names(GROUP), *TRANSPORT_ALIASES))
    parts = name.split("+")
    word = next((part for part in reversed(parts) if part in known), parts[0])
    return f"Unknown transport {name!r}{object_names.hint(_ALIASES.get(word, word), known)}"
