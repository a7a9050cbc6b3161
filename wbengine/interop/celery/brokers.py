"""The broker of a Celery application, as a worker of ours reaches it."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import kombu
from kombu import asynchronous

from wbengine import transports
from wbengine.engines.worker_based.connections import connecting
from wbengine.interop.celery import transport_options

__all__ = [
    "DEFAULT_QUEUE",
    "Broker",
    "close_hub",
    "declare",
    "queue_named",
    "redis_options",
    "redis_url",
]

LOG = logging.getLogger(__name__)

#: Where Celery's clients send what they were not told where to send.
DEFAULT_QUEUE: Final = "celery"

#: Seconds of the first attempts to reach it, and at most between two later ones.
CONNECT_TIMEOUT: Final = 10.0
_LONGEST_PAUSE: Final = 1.0

#: Seconds after which a message that nobody acknowledged is given to others: what kombu's Redis
#: transport does, and when a RabbitMQ closes the channel.
VISIBILITY: Final = 3600.0
CONSUMER_TIMEOUT: Final = 1800.0

#: What kombu's Redis transport is told unless somebody says otherwise: it waits for ever for a
#: server that is stopped, and notices after most of a minute.
_REDIS_OPTIONS: Final[Mapping[str, Any]] = {
    "socket_timeout": 15.0,
    "socket_connect_timeout": 5.0,
    "socket_keepalive": True,
    "health_check_interval": 10,
}

#: A queue that is there, with other arguments.
_PRECONDITION_FAILED: Final = 406

#: What a Redis may be asked about the certificate of its server, as Celery writes it.
_CERT: Final = re.compile("(?<=ssl_cert_reqs=)CERT_(NONE|OPTIONAL|REQUIRED)")


class Broker:
    """A broker by its URL, with `options` of kombu's transport; it is reached by kombu's own
    transports, as Celery does.

    :raises ValueError: there is no such transport, or the URL or an option makes no sense.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        given = dict(options or {})
        scheme = url.partition("://")[0]
        self.is_redis = scheme.partition("+")[0] in ("redis", "rediss", "sentinel")
        if self.is_redis:
            given = {**_REDIS_OPTIONS, **given}
        self.url = url
        self.options = given
        self._target = transports.Target(url, None, given)
        if "://" not in url:
            raise ValueError(f"the URL of a broker begins with its transport, as in amqp://{url}")
        self._target.check()
        self.is_amqp = self._target.amqp
        transport_options.check(self._target.connect(), given, amqp=self.is_amqp)
        #: What is raised when it is away, besides what all transports raise.
        self.errors: tuple[type[BaseException], ...] = ()
        if self.is_redis:
            import redis

            self.errors = (redis.RedisError,)

    @property
    def system(self) -> str:
        """What carries its messages, such as `rabbitmq`."""
        return "redis" if self.is_redis else self._target.system

    @property
    def shown(self) -> str:
        """The URL, for people: without passwords."""
        return self._target.shown

    @property
    def facts(self) -> dict[str, Any]:
        """What monitors show of it."""
        known = kombu.Connection(self.url).info()
        names = ("transport", "hostname", "port", "virtual_host", "userid")
        return {**{name: known[name] for name in names}, "uri": self.shown}

    @property
    def visibility(self) -> float:
        """Seconds for which what was delivered is this worker's, unless it says so again."""
        return float(self.options.get("visibility_timeout", VISIBILITY))

    @property
    def longest_hold(self) -> float | None:
        """Seconds for which a message may be kept without being acknowledged; None: for ever."""
        return CONSUMER_TIMEOUT / 2 if self.is_amqp else None

    def sending(self) -> Broker:
        """The same, for a connection that only publishes: nobody would see to its heartbeats."""
        return Broker(self.url, {**self.options, "heartbeat": 0} if self.is_amqp else self.options)

    def reach(
        self,
        stopping: threading.Event,
        *,
        within: float | None = None,
        on_failure: Callable[[str], None] | None = None,
    ) -> kombu.Connection:
        """A connection, tried until `stopping` is set, or for `within` seconds.

        :raises TransportFailure: it was not reached.
        """
        return connecting.reach(
            self._target, stopping, longest=_LONGEST_PAUSE, within=within, on_failure=on_failure
        )


def queue_named(name: str) -> kombu.Queue:
    """A queue as Celery's clients declare it that were told no more than its name."""
    return kombu.Queue(name, kombu.Exchange(name, type="direct"), routing_key=name)


def declare(connection: kombu.Connection, queue: kombu.Queue) -> None:
    """Make a queue, if it is not there; one that is, with other arguments, serves as well.

    What the broker says besides is raised.
    """
    # On a channel of its own: a broker that says no closes it.
    spare = connection.channel()
    try:
        queue(spare).declare()
    except connection.channel_errors as error:
        if getattr(error, "reply_code", None) != _PRECONDITION_FAILED:
            raise
    else:
        with contextlib.suppress(*connection.channel_errors):
            spare.close()


def close_hub(hub: asynchronous.Hub) -> None:
    """Close the hub of a connection that is gone; never raises."""
    for _ in range(2):  # what was still to be read raises, and leaves the rest open
        try:
            hub.close()
        except Exception as error:
            LOG.debug("a connection was not left in order (%s)", error)
        else:
            return


def redis_url(url: str) -> str:
    """The URL of a Redis as redis-py reads it, of one that Celery reads."""
    scheme, _, rest = url.partition(":")
    if scheme == "redis+socket":
        url = f"unix:{rest}"
    # Celery's word for what redis-py calls 'required', and so on.
    head, _, query = url.partition("?")
    return f"{head}?{_CERT.sub(lambda found: found[1].lower(), query)}" if query else url


def redis_options(url: str) -> dict[str, Any]:
    """How a client of the Redis at a URL is to connect."""
    found: dict[str, Any] = {"socket_timeout": 15.0, "socket_connect_timeout": 5.0}
    return found if url.startswith("unix:") else {**found, "socket_keepalive": True}
