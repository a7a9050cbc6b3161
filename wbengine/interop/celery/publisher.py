"""Task messages on their way to a Celery broker: published, confirmed, revoked, told of."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import kombu
from amqp import exceptions as amqp_errors
from kombu import clocks, pidbox

from wbengine import _names, exceptions, transports
from wbengine.engines.worker_based.connections import connecting
from wbengine.interop.celery import events, results, serializers
from wbengine.interop.celery.serializers import Wire
from wbengine.transports import reasons
from wbengine.types import failure as ft

__all__ = ["RPC", "Address", "Order", "Publisher", "Route", "address_of", "hostname", "route_of"]

LOG: Final = logging.getLogger(__name__)

#: Results come back as messages, through the broker; or there are none.
RPC: Final = "rpc://"
DISABLED: Final = "disabled://"
_STORES: Final = ("redis", "rediss", "unix")

#: So often a message is written that breaks its channel each time.
_MOST_TRIES: Final = 3
#: Seconds to wait for the broker to confirm a message.
_PATIENCE: Final = 30.0
#: Seconds after which a queue is declared once more: it may have been removed meanwhile.
_DECLARED: Final = 600.0
#: So many events, or revocations, go out together.
_TOGETHER: Final = 500
_NO_ROUTE: Final = 312


# Where a task goes. -------------------------------------------------------------------------------


class Address(NamedTuple):
    """One broker of Celery's, and one place of results."""

    broker: str
    backend: str = RPC
    #: What keys of results begin with, before Celery's own words.
    prefix: str = ""
    #: The content type of results that are stored without one.
    content_type: str = serializers.JSON
    #: The exchange on which workers listen for control commands, and that of events.
    control: str = "celery"
    events: str = events.EXCHANGE

    def reader(self) -> results.Reader | None:
        """The reader of this process for its results, if there are any."""
        if self.backend == DISABLED:
            return None
        if self.backend == RPC:
            return results.one_for(results.RpcReader, self.broker, self.content_type)
        given = self.backend, self.content_type, self.prefix
        return results.one_for(results.RedisReader, *given)

    def publisher(self) -> Publisher:
        """The publisher of this process for its broker."""
        return results.one_for(Publisher, self.broker, self.control, self.events)


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
    target = _target(url)
    target.check()
    if not (target.amqp or url.startswith(("redis", "sentinel"))):
        raise ValueError(f"a CeleryTask is sent through a RabbitMQ or a Redis, not {target.shown}")
    if result_backend is None:
        result_backend = RPC if conf is None else ask("result_backend") or DISABLED
    name = result_serializer or ask("result_serializer") or "json"
    if name not in serializers.MIME_TYPES:
        near = _names.hint(name, serializers.MIME_TYPES)
        raise ValueError(f"result_serializer {name!r} is none{near}")
    options = ask("result_backend_transport_options") or {}
    return Address(
        url,
        _backend(str(result_backend)),
        _prefix(str(options.get("global_keyprefix") or "")),
        serializers.MIME_TYPES[name],
        str(ask("control_exchange") or "celery"),
        str(ask("event_exchange") or events.EXCHANGE),
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
        router = getattr(getattr(app_or_url, "amqp", None), "router", None)
        options = {} if router is None else router.route({}, task, (), {})
        queue = options.get("queue")
        exchange = options.get("exchange") or None
        routing_key = routing_key or options.get("routing_key")
        if isinstance(exchange, kombu.Exchange):
            exchange = exchange.name
    if queue is None:
        if exchange is not None:
            return Route(exchange, routing_key or "")
        queue = _setting(getattr(app_or_url, "conf", None), "task_default_queue") or "celery"
    if isinstance(queue, str):
        queue = kombu.Queue(queue, kombu.Exchange(queue, type="direct"), routing_key=queue)
    if not isinstance(queue, kombu.Queue):
        raise TypeError(f"queue must be a name, or a kombu.Queue, not {queue!r:.80}")
    if not (exchange and routing_key) and queue.exchange.type == "direct":
        return Route("", queue.name, queue)
    return Route(exchange or queue.exchange.name, routing_key or queue.routing_key or "", queue)


def _setting(conf: Any, name: str) -> Any:
    # An attribute: what its variables of the environment say counts there, as for Celery.
    return getattr(conf, name, None)


def _prefix(told: str) -> str:
    """What Celery begins keys with, when it is told so."""
    return f"{told}_" if told and told[-1] not in ":_-." else told


def _backend(url: str) -> str:
    url = results.redis_url(url)
    scheme = url.partition(":")[0]
    if scheme in ("rpc", "disabled"):
        return f"{scheme}://"
    if scheme not in _STORES:
        near = _names.hint(scheme, ("rpc", "redis", "rediss", "redis+socket", "disabled"))
        raise ValueError(
            f"result backend {scheme!r} is not read here{near}: use rpc:// or redis://"
        )
    if "://" not in url:
        raise ValueError(f"result backend {url!r} is no URL: use {scheme}://localhost, or its host")
    return url


def _target(url: str) -> transports.Target:
    """
    :raises ValueError: it is no URL.
    """
    if "://" not in url:
        raise ValueError(f"the URL of a broker begins with its transport, as in amqp://{url}")
    target = transports.Target(url, None, {"confirm_publish": True, "heartbeat": 0})
    return target if target.amqp else transports.Target(url, None, dict(results.BROKER_OPTIONS))


def hostname() -> str:
    """What clients of Celery's are called in messages and events."""
    return f"gen{os.getpid()}@{socket.gethostname()}"


# Publishing. --------------------------------------------------------------------------------------

#: How far an order has come: nothing is known of it outside, it was written, the broker has it.
NEW: Final = 0
PUBLISHED: Final = 1
CONFIRMED: Final = 2


@dataclass(slots=True, eq=False)
class Order:
    """One task that Celery's workers are asked to run.

    `confirmed` is called when the broker has the message, `failed` if it never will.

    `recovered`: an earlier run may have sent it; if it is unknown whether, it is sent again only if
    `again`.
    """

    id: str
    wire: Wire
    route: Route
    reader: results.Reader | None
    confirmed: Callable[[], object]
    failed: Callable[[ft.Failure], object]
    recovered: bool = False
    again: bool = True
    stage: int = NEW
    #: How often it was written.
    tries: int = 0
    #: It is not to be sent any more.
    dropped: threading.Event = field(default_factory=threading.Event)


class Publisher:
    """Publishes to one broker, in a thread of its own, while there is something to publish and for
    some seconds more.  A connection that is lost is made again, and an order that was not confirmed
    is sent again.  All methods may be called from any thread.
    """

    def __init__(self, url: str, control: str = "celery", event_exchange: str = "celeryev") -> None:
        self._target = _target(url)
        #: Why the broker cannot be reached now; empty: nothing is known against it.
        self.why = ""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        # The rest is the thread's own.
        self._connection: kombu.Connection | None = None
        self._producer: kombu.Producer | None = None
        #: When queues were declared last.
        self._declared: dict[str, float] = {}
        self._events: list[events.Event] = []
        self._revoked: dict[str | None, list[str]] = {}
        #: What the broker has, and the Redis of its results, which is away, is still to note.
        self._unnoted: list[Order] = []
        self._clock = clocks.LamportClock()
        self._mailbox = pidbox.Mailbox(control, type="fanout", serializer="json", clock=self._clock)
        self._exchange = kombu.Exchange(event_exchange, type="topic")

    @property
    def shown(self) -> str:
        """The URL of the broker, without passwords."""
        return self._target.shown

    def send(self, order: Order) -> None:
        """Send an order, unless it is dropped before."""
        self._put(lambda: self._send(order))

    def drop(self, order: Order, revoke: bool, signal: str | None) -> None:
        """Do not send an order any more; if it was sent, with `revoke`, tell the workers not to run
        it, or, with a signal, to end it."""
        order.dropped.set()

        def tell() -> None:
            if revoke and (order.stage != NEW or order.recovered):
                self._revoked.setdefault(signal, []).append(order.id)

        with contextlib.suppress(RuntimeError):  # the interpreter ends
            self._put(tell)

    def revoke(self, id: str, signal: str | None = None) -> None:
        """Tell the workers not to run a task; with a signal, to end it."""
        self._put(lambda: self._revoked.setdefault(signal, []).append(id))

    def fate(self, order: Order) -> str:
        """What is known of an order that did not end; empty: a broker that is there has it."""
        why = self.why or (order.reader.why if order.reader else "")
        because, place = f": {why}" if why else "", f"the broker at {self.shown}"
        if order.stage == CONFIRMED:
            return f"{place} has its message, but is away{because}" if why else ""
        if order.stage == NEW and not order.recovered:
            return f"its message never reached {place}{because}"
        return f"{place} did not confirm its message{because}"

    def close(self, timeout: float = 5.0) -> None:
        """End the thread once all is published that was asked for, or after `timeout` seconds."""
        with self._lock:
            thread = self._thread
            self._jobs.put(None)
        if thread is not None:
            thread.join(timeout)

    def _put(self, job: Callable[[], object]) -> None:
        with self._lock:
            self._jobs.put(job)
            if self._thread is None:
                name = "wbengine-celery-publisher"
                self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._thread.start()

    # In the thread.

    def _serve(self) -> None:
        pause = 0.05
        while True:
            wait = pause if self._events or self._revoked or self._unnoted else results.IDLE
            job: Callable[[], object] | None = None
            with contextlib.suppress(queue.Empty):
                job = self._jobs.get(timeout=wait)
                if job is not None:
                    job()
            if self._jobs.empty() or len(self._events) >= _TOGETHER:
                unnoted, self._unnoted = self._unnoted, []
                done = all([self._flush(), self._note(unnoted)])
                pause = 0.05 if done else min(2 * pause, results.LONGEST_PAUSE)
            with self._lock:
                if job is None and self._jobs.empty() and not (self._revoked or self._unnoted):
                    self._thread = None
                    break
        self._disconnect()

    def _send(self, order: Order) -> None:
        """Until the broker has it, it is refused, or it is dropped."""
        pause = 0.05
        while not order.dropped.is_set():
            try:
                self._attempt(order)
                return
            except Exception as error:
                self._disconnect()
                failure = self._failure(order, error)
            if failure is not None:
                if not order.dropped.is_set():
                    order.failed(ft.Failure.from_exception(failure))
                return
            order.dropped.wait(pause)
            pause = min(2 * pause, results.LONGEST_PAUSE)

    def _attempt(self, order: Order) -> None:
        reader = order.reader
        if order.recovered and order.stage == NEW:
            if reader is not None and reader.look(order.id):
                order.stage = CONFIRMED
            elif not order.again:
                text = f"nobody can tell whether an earlier run sent task {order.id}"
                self._revoked.setdefault(None, []).append(order.id)
                order.failed(ft.Failure.from_exception(exceptions.WorkerLost(text)))
                return
        if order.stage != CONFIRMED:
            self._publish(order)
            order.stage = CONFIRMED
            self._events.append(self._event_of(order))
        if any(other.reader is reader for other in self._unnoted):
            self._unnoted.append(order)
        else:
            self._note([order])

    def _note(self, orders: list[Order]) -> bool:
        """Have their readers note that the broker has them; False: some wait for a Redis that is
        away.  What has its results elsewhere does not."""
        away: list[results.Reader | None] = []
        for order in orders:
            if order.dropped.is_set():
                continue
            if order.reader in away:
                self._unnoted.append(order)
                continue
            try:
                if order.reader is not None:
                    order.reader.sent(order.id)
            except Exception as error:
                if (failure := self._failure(order, error)) is not None:
                    order.failed(ft.Failure.from_exception(failure))
                else:
                    away.append(order.reader)
                    self._unnoted.append(order)
            else:
                order.confirmed()
        if orders and not self._unnoted:
            self._back()
        return not self._unnoted

    def _publish(self, order: Order) -> None:
        producer = self._open(order.dropped)
        order.tries += 1  # declaring a queue may break the channel, too
        if order.route.queue is not None:
            self._declare(order.route.queue)
        if isinstance(order.reader, results.RpcReader):
            self._declare(order.reader.queue)
        order.stage = PUBLISHED
        confirms = {"mandatory": True, "confirm_timeout": _PATIENCE} if self._target.amqp else {}
        producer.publish(
            order.wire.body,
            exchange=order.route.exchange,
            routing_key=order.route.routing_key,
            **confirms,
            **order.wire.arguments(),
        )

    def _failure(self, order: Order, error: Exception) -> Exception | None:
        """What an order fails with after an error; None: it is tried again."""
        if isinstance(error, amqp_errors.ChannelError) and not results.is_refusal(error):
            where = f"exchange {order.route.exchange!r}"
            if error.reply_code == _NO_ROUTE:
                key = order.route.routing_key
                why = f"no queue takes what is sent to {where} with routing key {key!r}"
            elif order.tries < _MOST_TRIES:
                return None
            else:
                why = f"the broker refused it {order.tries} times: {reasons.explain(error)}"
            return exceptions.TransportFailure(f"task {order.id} could not be sent: {why}", error)
        if isinstance(error, amqp_errors.FrameSyntaxError):  # py-amqp cannot write it
            return exceptions.NotEncodable(
                f"the message of task {order.id} cannot be sent: {error}"
            )
        why = reasons.explain(error.__cause__ or error)
        if results.is_refusal(error):
            text = f"the Celery broker at {self.shown}, or the Redis of its results, cannot be used"
            return exceptions.TransportFailure(f"{text}: {why}", error)
        if not results.is_lost(error):
            return error  # of this one alone: its headers, say, cannot be written
        order.tries = 0
        if not order.dropped.is_set():
            self._away(why)
        return None

    def _away(self, why: str) -> None:
        if why != self.why:
            told = "the Celery broker at %s, or the Redis of its results, cannot be reached: %s"
            LOG.warning(f"{told} (%d tasks wait)", self.shown, why, self._jobs.qsize() + 1)
        self.why = why

    def _back(self) -> None:
        if self.why:
            LOG.warning("the Celery broker at %s is back", self.shown)
        self.why = ""

    def _open(self, stopping: threading.Event) -> kombu.Producer:
        """
        :raises TransportFailure: the broker was not reached.
        """
        if self._producer is None:
            self._connection = connecting.reach(
                self._target, stopping, longest=results.LONGEST_PAUSE, within=10.0,
                on_failure=self._away,
            )  # fmt: skip
            self._producer = kombu.Producer(self._connection.channel(), auto_declare=False)
            self._exchange.type = events.exchange_type(self._connection.transport.driver_type)
        return self._producer

    def _disconnect(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        self._declared.clear()
        if connection is not None:
            connecting.release(connection)

    def _declare(self, known: kombu.Queue) -> None:
        """Make a queue, if it is not there; one that is, with other arguments, serves as well."""
        assert self._connection is not None
        if time.monotonic() - self._declared.get(known.name, -math.inf) < _DECLARED:
            return
        spare = self._connection.channel()  # a broker that says no closes it
        try:
            known(spare).declare()
            spare.close()
        except amqp_errors.PreconditionFailed:
            pass
        self._declared[known.name] = time.monotonic()

    def _event_of(self, order: Order) -> events.Event:
        """Tell monitors that a task was sent."""
        told = order.wire.headers
        names = ("retries", "eta", "expires", "root_id", "parent_id")
        queue = order.route.queue
        return events.Event(
            "task-sent", hostname(), self._clock.forward(), time.time(), events.utcoffset(),
            os.getpid(),
            {
                "uuid": order.id, "name": told["task"], "args": told["argsrepr"],
                "kwargs": told["kwargsrepr"], **{name: told[name] for name in names},
                "queue": None if queue is None else queue.name,
                "exchange": order.route.exchange, "routing_key": order.route.routing_key,
            },
        )  # fmt: skip

    def _flush(self) -> bool:
        """Send events and revocations; False: the revocations are to be tried again."""
        if not (self._events or self._revoked):
            return True
        try:
            producer = self._open(threading.Event())
            while self._revoked:
                signal, ids = next(iter(self._revoked.items()))
                given: dict[str, Any] = {"task_id": ids, "terminate": signal is not None}
                if signal is not None:
                    given["signal"] = signal
                self._mailbox(self._connection).abcast("revoke", given)
                del self._revoked[signal]
            told, self._events = self._events, []
            if told:
                wire, key = events.encode(told[0] if len(told) == 1 else told)
                producer.publish(
                    wire.body, exchange=self._exchange, routing_key=key, declare=[self._exchange],
                    **wire.arguments(),
                )  # fmt: skip
        except Exception as error:
            LOG.debug("events, or revocations, were not sent: %s", error)
            self._disconnect()
            self._events.clear()
            if results.is_refusal(error):
                self._revoked.clear()
            return not self._revoked
        return True


atexit.register(results.close_all)
