"""Task messages on their way to a Celery broker: published, confirmed, revoked, told of."""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import math
import os
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
from wbengine.interop.celery import events, reconnecting, results, serializers
from wbengine.interop.celery.serializers import Wire
from wbengine.transports import reasons
from wbengine.types import failure as ft

__all__ = [
    "RPC", "Address", "OutgoingTask", "Publisher", "Route", "address_of", "hostname", "route_of",
]  # fmt: skip

LOG: Final = logging.getLogger(__name__)

#: Results come back as messages, through the broker; or there are none.
RPC: Final = "rpc://"
DISABLED: Final = "disabled://"
_STORES: Final = ("redis", "rediss", "unix")

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
            return reconnecting.one_for(results.RpcReader, self.broker, self.content_type)
        given = self.backend, self.content_type, self.prefix
        return reconnecting.one_for(results.RedisReader, *given)

    def publisher(self) -> Publisher:
        """The publisher of this process for its broker."""
        return reconnecting.one_for(Publisher, self.broker, self.control, self.events)


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
    conf = getattr(app_or_url, "conf", None)
    if conf is None and not isinstance(app_or_url, str):
        raise TypeError(
            f"app_or_url must be the URL of a broker, or a Celery app, not {app_or_url!r:.80}"
        )

    def ask(name: str) -> Any:
        # An attribute: what its variables of the environment say counts there, as for Celery.
        return getattr(conf, name, None)

    url = app_or_url if conf is None else ask("broker_write_url") or ask("broker_url")
    if not isinstance(url, str):
        url = ";".join(url) if url else "amqp://"
    target = _target(url)
    target.check()
    if not (target.amqp or url.startswith(("redis", "sentinel"))):
        raise ValueError(f"a CeleryTask is sent through a RabbitMQ or a Redis, not {target.shown}")
    if result_backend is None:
        result_backend = RPC if conf is None else ask("result_backend") or DISABLED
    options = ask("result_backend_transport_options") or {}
    return Address(
        url,
        _backend(str(result_backend)),
        _prefix(str(options.get("global_keyprefix") or "")),
        serializers.mime_type(result_serializer or ask("result_serializer") or "json"),
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
        conf = getattr(app_or_url, "conf", None)
        queue = getattr(conf, "task_default_queue", None) or "celery"
    if isinstance(queue, str):
        queue = kombu.Queue(queue, kombu.Exchange(queue, type="direct"), routing_key=queue)
    if not isinstance(queue, kombu.Queue):
        raise TypeError(f"queue must be a name, or a kombu.Queue, not {queue!r:.80}")
    if not (exchange and routing_key) and queue.exchange.type == "direct":
        return Route("", queue.name, queue)
    return Route(exchange or queue.exchange.name, routing_key or queue.routing_key or "", queue)


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

#: How far a message has come: nothing is known of it outside, it was written, the broker has it.
NEW: Final = 0
PUBLISHED: Final = 1
CONFIRMED: Final = 2


@dataclass(slots=True, eq=False)
class OutgoingTask:
    """One task that Celery's workers are asked to run.

    `tell` gets the failure if the broker never will have the message; the id when it has, unless
    its result is waited for.

    `recovered`: an earlier run may have sent it; if it is unknown whether, it is sent again only if
    `again`.
    """

    id: str
    wire: Wire
    route: Route
    reader: results.Reader | None
    waits: bool
    tell: Callable[[Any], object]
    recovered: bool = False
    again: bool = True
    stage: int = NEW
    #: It is not to be sent any more.
    dropped: threading.Event = field(default_factory=threading.Event)

    def confirmed(self) -> None:
        if not self.waits:
            self.tell(self.id)

    def failed(self, error: Exception) -> None:
        self.tell(ft.Failure.from_exception(error))


class Publisher(reconnecting.ReconnectLoop):
    """Publishes to one broker, in order; what was not confirmed is sent again."""

    def __init__(self, url: str, control: str = "celery", event_exchange: str = "celeryev") -> None:
        self._target = _target(url)
        super().__init__(f"the Celery broker at {self._target.shown}")
        #: What is to be done, in order; the first one goes when it is done.
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()
        self._revoked: dict[str | None, list[str]] = {}
        # The rest is the thread's own.
        self._connection: kombu.Connection | None = None
        self._producer: kombu.Producer | None = None
        #: When queues were declared last.
        self._declared: dict[str, float] = {}
        self._events: list[events.Event] = []
        self._clock = clocks.LamportClock()
        self._mailbox = pidbox.Mailbox(control, type="fanout", serializer="json", clock=self._clock)
        self._exchange = kombu.Exchange(event_exchange, type="topic")

    def send(self, message: OutgoingTask) -> None:
        """Send a message, unless it is dropped before."""
        self._put(functools.partial(self._send, message))

    def drop(self, message: OutgoingTask, revoke: bool, signal: str | None) -> None:
        """Do not send a message any more; if it was sent, with `revoke`, tell the workers not to
        run its task, or, with a signal, to end it."""
        message.dropped.set()

        def revoke_what_was_sent() -> None:
            if message.stage != NEW or message.recovered:
                self._revoke(message.id, signal)

        if revoke:
            with contextlib.suppress(RuntimeError):  # the interpreter ends
                self._put(revoke_what_was_sent)

    def revoke(self, id: str, signal: str | None = None) -> None:
        """Tell the workers not to run a task; with a signal, to end it."""
        self._put(functools.partial(self._revoke, id, signal))

    def fate(self, message: OutgoingTask) -> str:
        """What is known of a message whose task did not end; empty: a broker that is there has
        it."""
        why = self.why or (message.reader.why if message.reader else "")
        because, place = f": {why}" if why else "", f"the broker at {self._target.shown}"
        if message.stage == CONFIRMED:
            return f"{place} has its message, but is away{because}" if why else ""
        if message.stage == NEW and not message.recovered:
            return f"its message never reached {place}{because}"
        return f"{place} did not confirm its message{because}"

    def _put(self, job: Callable[[], None]) -> None:
        with self._changed:
            self._jobs.append(job)
            self._wake()

    def _revoke(self, id: str, signal: str | None) -> None:
        self._revoked.setdefault(signal, []).append(id)

    # In the thread.

    @property
    def _pending(self) -> int:
        return len(self._jobs) + len(self._revoked)

    def _serve(self) -> None:
        try:
            while self._pending or not self._is_over():
                if self._jobs:
                    self._jobs[0]()
                    self._jobs.popleft()
                if not self._jobs or len(self._events) >= _TOGETHER:
                    self._flush()
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._jobs or self._stopping.is_set(), reconnecting.IDLE
                    )
        finally:
            self._disconnect()

    def _refused(self, error: Exception) -> None:
        LOG.debug("revocations were not sent: %s", error)
        self._revoked.clear()

    def _send(self, message: OutgoingTask) -> None:
        """Until the broker has it, or it never will; raises when the connection is lost."""
        if message.dropped.is_set():
            return
        try:
            self._attempt(message)
        except Exception as error:
            if (failure := self._failure(message, error)) is None:
                raise
            self._disconnect()
            message.failed(failure)

    def _attempt(self, message: OutgoingTask) -> None:
        reader = message.reader
        if message.recovered and message.stage == NEW:
            if reader is not None and reader.was_sent(message.id):
                message.stage = CONFIRMED
            elif not message.again:
                text = f"nobody can tell whether an earlier run sent task {message.id}"
                self._revoke(message.id, None)
                message.failed(exceptions.WorkerLost(text))
                return
        if message.stage != CONFIRMED:
            self._publish(message)
            message.stage = CONFIRMED
            self._back()
            self._events.append(self._event_of(message))
        if reader is None:
            message.confirmed()
        else:
            reader.note_sent(message)

    def _publish(self, message: OutgoingTask) -> None:
        producer = self._open()
        if message.route.queue is not None:
            self._declare(message.route.queue)
        if isinstance(message.reader, results.RpcReader):
            self._declare(message.reader.queue)
        message.stage = PUBLISHED
        confirms = {"mandatory": True, "confirm_timeout": _PATIENCE} if self._target.amqp else {}
        producer.publish(
            message.wire.body,
            exchange=message.route.exchange,
            routing_key=message.route.routing_key,
            **confirms,
            **message.wire.arguments(),
        )

    def _failure(self, message: OutgoingTask, error: Exception) -> Exception | None:
        """What a message fails with after an error; None: it is sent again."""
        if isinstance(error, amqp_errors.ChannelError) and not reconnecting.is_refusal(error):
            where = f"exchange {message.route.exchange!r}"
            if error.reply_code == _NO_ROUTE:
                key = message.route.routing_key
                why = f"no queue takes what is sent to {where} with routing key {key!r}"
            else:
                why = f"the broker refused it: {reasons.explain(error)}"
            return exceptions.TransportFailure(f"task {message.id} could not be sent: {why}", error)
        if isinstance(error, amqp_errors.FrameSyntaxError):  # py-amqp cannot write it
            return exceptions.NotEncodable(
                f"the message of task {message.id} cannot be sent: {error}"
            )
        if reconnecting.is_refusal(error):
            text = f"{self.place}, or the Redis of its results, cannot be used"
            why = reasons.explain(error.__cause__ or error)
            return exceptions.TransportFailure(f"{text}: {why}", error)
        # Else of this one alone: its headers, say, cannot be written.
        return None if reconnecting.is_lost(error) else error

    def _open(self) -> kombu.Producer:
        """
        :raises TransportFailure: the broker was not reached.
        """
        if self._producer is None:
            self._connection = connecting.reach(
                self._target, self._stopping, within=10.0, on_failure=self._away
            )
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

    def _event_of(self, message: OutgoingTask) -> events.Event:
        """Tell monitors that a task was sent."""
        told = message.wire.headers
        names = ("retries", "eta", "expires", "root_id", "parent_id")
        queue = message.route.queue
        return events.Event(
            "task-sent", hostname(), self._clock.forward(), time.time(), events.utcoffset(),
            os.getpid(),
            {
                "uuid": message.id, "name": told["task"], "args": told["argsrepr"],
                "kwargs": told["kwargsrepr"], **{name: told[name] for name in names},
                "queue": None if queue is None else queue.name,
                "exchange": message.route.exchange, "routing_key": message.route.routing_key,
            },
        )  # fmt: skip

    def _flush(self) -> None:
        """Send revocations, which are sent again if the connection is lost, and events."""
        if not (self._events or self._revoked):
            return
        told, self._events = self._events, []
        producer = self._open()
        while self._revoked:
            signal, ids = next(iter(self._revoked.items()))
            given: dict[str, Any] = {"task_id": ids, "terminate": signal is not None}
            if signal is not None:
                given["signal"] = signal
            self._mailbox(self._connection).abcast("revoke", given)
            del self._revoked[signal]
        if told:
            wire, key = events.encode(told[0] if len(told) == 1 else told)
            producer.publish(
                wire.body, exchange=self._exchange, routing_key=key, declare=[self._exchange],
                **wire.arguments(),
            )  # fmt: skip
