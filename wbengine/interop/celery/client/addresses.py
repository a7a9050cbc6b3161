"""Which Celery a task is for: its broker, where its results are, and the queue it goes to."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import kombu

from wbengine import _names
from wbengine.interop.celery import brokers
from wbengine.interop.celery.protocol import serializers

__all__ = ["RPC", "Address", "Route", "address_of", "route_of"]

#: Results come back as messages, through the broker.
RPC: Final = "rpc://"
#: There are none.
DISABLED: Final = "disabled://"

_REDIS: Final = ("redis", "rediss", "unix")
_BACKENDS: Final = ("rpc", "redis", "rediss", "redis+socket", "disabled")


class Address(NamedTuple):
    """One broker of Celery's, and one place of results."""

    broker: str
    backend: str = RPC
    #: What keys of results begin with, before Celery's own words.
    prefix: str = ""
    #: The content type of results that are stored without one.
    content_type: str = serializers.JSON
    #: Where workers listen for control commands.
    control: str = "celery"

    @property
    def stores(self) -> bool:
        """Whether results are kept in a Redis."""
        return self.backend.partition("://")[0] in _REDIS

    @property
    def answers(self) -> bool:
        """Whether there are results at all."""
        return self.backend != DISABLED


class Route(NamedTuple):
    """Where a message is published, and the queue that is to be there before."""

    exchange: str
    routing_key: str
    queue: kombu.Queue | None = None


def address_of(
    app_or_url: Any, result_backend: str | None = None, result_serializer: str | None = None
) -> Address:
    """The address that a URL of a broker, or an app of Celery's, means.

    Of an app only its configuration is read; Celery is not imported.

    :raises TypeError: it is neither.
    :raises ValueError: no transport, result backend or serializer is called so.
    """
    conf = None
    if not isinstance(app_or_url, str):
        conf = getattr(app_or_url, "conf", None)
        if conf is None:
            raise TypeError(
                f"app_or_url must be the URL of a broker, or a Celery app, not {app_or_url!r:.80}"
            )
    ask = functools.partial(_setting, conf)
    url = app_or_url if conf is None else ask("broker_write_url") or ask("broker_url")
    if not isinstance(url, str):
        url = ";".join(url) if url else "amqp://"
    broker = brokers.Broker(url)  # refuses what is none
    if not (broker.is_amqp or broker.is_redis):
        raise ValueError(f"a CeleryTask is sent through a RabbitMQ or a Redis, not {broker.shown}")
    if result_backend is None:
        result_backend = RPC if conf is None else ask("result_backend") or DISABLED
    options = ask("result_backend_transport_options") or {}
    name = result_serializer or ask("result_serializer") or "json"
    if name not in serializers.MIME_TYPES:
        raise ValueError(
            f"result_serializer {name!r} is none{_names.hint(name, serializers.MIME_TYPES)}"
        )
    return Address(
        url,
        _backend(result_backend),
        str(options.get("global_keyprefix") or ""),
        serializers.MIME_TYPES[name],
        str(ask("control_exchange") or "celery"),
    )


def route_of(
    app_or_url: Any,
    task: str,
    queue: str | kombu.Queue | None,
    exchange: str | None,
    routing_key: str | None,
) -> Route:
    """Where messages of a task go: as they were told to, or as the routes of the app say.

    As Celery does it, a queue behind a direct exchange is written to by its name.

    :raises TypeError: the queue is neither a name nor a `kombu.Queue`.
    """
    if queue is None and exchange is None and not isinstance(app_or_url, str):
        options = _routed(app_or_url, task)
        queue = options.get("queue")
        exchange = options.get("exchange") or None
        routing_key = routing_key or options.get("routing_key")
        if isinstance(exchange, kombu.Exchange):
            exchange = exchange.name
    if queue is None:
        if exchange is not None:
            return Route(exchange, routing_key or "")
        queue = _default_queue(app_or_url)
    if isinstance(queue, str):
        queue = brokers.queue_named(queue)
    if not isinstance(queue, kombu.Queue):
        raise TypeError(f"queue must be a name, or a kombu.Queue, not {queue!r:.80}")
    if not (exchange and routing_key) and queue.exchange.type == "direct":
        return Route("", queue.name, queue)
    return Route(exchange or queue.exchange.name, routing_key or queue.routing_key or "", queue)


def _routed(app: Any, task: str) -> Mapping[str, Any]:
    """What the routes of an app say of a task."""
    router = getattr(getattr(app, "amqp", None), "router", None)
    found = {} if router is None else router.route({}, task, (), {})
    return found if isinstance(found, Mapping) else {}


def _default_queue(app_or_url: Any) -> str:
    conf = getattr(app_or_url, "conf", None)
    return str(_setting(conf, "task_default_queue") or brokers.DEFAULT_QUEUE)


def _setting(conf: Any, name: str) -> Any:
    if isinstance(conf, Mapping):
        return conf.get(name)
    return getattr(conf, name, None)


def _backend(url: str) -> str:
    url = brokers.redis_url(str(url))
    scheme = url.partition(":")[0]
    if scheme in ("rpc", "disabled"):
        return f"{scheme}://"
    if scheme not in _REDIS:
        known = _names.hint(scheme, _BACKENDS)
        raise ValueError(
            f"result backend {scheme!r} is not read here{known}: use rpc:// or redis://"
        )
    return url
