"""The publisher of task messages, revocations and `task-sent` events for a Celery broker."""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import kombu
from amqp import exceptions as amqp_errors
from amqp import spec
from kombu import clocks, pidbox

from wbengine import exceptions, transports
from wbengine._concurrency import conditions
from wbengine._introspection import object_names
from wbengine.engines.worker_based._connections import connecting
from wbengine.interop.celery import _reconnecting, _results, _serializers, events
from wbengine.interop.celery._serializers import Wire
from wbengine.transports import _reasons
from wbengine.types import failure as ft

__all__ = [
    "RPC", "Address", "OutgoingTask", "Publisher", "Route", "address_of", "hostname", "route_of",
]  # fmt: skip

LOG: Final = logging.getLogger(__name__)

#: Special result backends: results arrive through the broker; there are no results.
RPC: Final = "rpc://"
DISABLED: Final = "disabled://"
_STORES: Final = ("redis", "rediss", "unix")

#: Maximum time to wait for the broker's confirmation of a message.
_CONFIRM_SECONDS: Final = 30.0
#: Time after which a queue is declared again, because it may have been removed.
_DECLARE_SECONDS: Final = 600.0
#: Maximum number of collected events; then they are published.
_MAX_PENDING_EVENTS: Final = 500
_NO_ROUTE: Final = 312


class Address(NamedTuple):
    """A Celery broker and a result backend."""

    broker: str
    backend: str = RPC
    #: Prefix of the keys of results, before Celery's own prefix.
    prefix: str = ""
    #: The content type of stored results that do not contain one.
    content_type: str = _serializers.JSON
    control: str = "celery"
    events: str = events.EXCHANGE
    #: Celery's `broker_transport_options` if the broker is a Redis, and its `broker_use_ssl` as the
    #: option `ssl` if it is RabbitMQ.
    options: _results.Options = _results.Options()

    def reader(self) -> _results.Reader | None:
        """Return this process's reader for the results, or None if results are disabled."""
        if self.backend == DISABLED:
            return None
        if self.backend == RPC:
            arguments: tuple[Any, ...] = self.broker, self.content_type, self.options
            return _reconnecting.shared_instance(_results.RpcReader, *arguments)
        arguments = self.backend, self.content_type, self.prefix
        return _reconnecting.shared_instance(_results.RedisReader, *arguments)

    def publisher(self) -> Publisher:
        """Return this process's publisher for the broker."""
        arguments = self.broker, self.control, self.events, self.options
        return _reconnecting.shared_instance(Publisher, *arguments)


class Route(NamedTuple):
    """The exchange and routing key of a message, and the queue to declare before publishing."""

    exchange: str
    routing_key: str
    queue: kombu.Queue | None = None


def address_of(
    app_or_url: Any, result_backend: str | None = None, result_serializer: str | None = None
) -> Address:
    """Return the address of a broker URL or a Celery app.

    Only the configuration of an app is read; Celery is not imported.

    :raises TypeError: if the argument is neither.
    :raises ValueError: if the transport, result backend or serializer is unknown, or an option of
        TLS is invalid.
    """
    conf = getattr(app_or_url, "conf", None)
    if conf is None and not isinstance(app_or_url, str):
        raise TypeError(
            f"app_or_url must be the URL of a broker or a Celery app, got {app_or_url!r:.80}"
        )

    def ask(name: str) -> Any:
        # Attribute access includes Celery's environment variables.
        return getattr(conf, name, None)

    url = app_or_url if conf is None else ask("broker_write_url") or ask("broker_url")
    if not isinstance(url, str):
        url = ";".join(url) if url else "amqp://"
    target = _target(url)
    target.check()
    if not (target.amqp or url.startswith(("redis", "sentinel"))):
        raise ValueError(
            f"The broker of a CeleryTask must be RabbitMQ or Redis, got {target.shown}"
        )
    secure = ask("broker_use_ssl")
    if target.amqp:
        broker_options = {"ssl": secure} if secure else {}
        _target(url, broker_options).check()
    else:
        broker_options = ask("broker_transport_options") or {}
        parts = [_results.with_tls(part, "broker_use_ssl", secure) for part in url.split(";")]
        url = ";".join(parts)
    if result_backend is None:
        result_backend = RPC if conf is None else ask("result_backend") or DISABLED
    backend, backend_tls = _backend(str(result_backend)), "redis_backend_use_ssl"
    options = ask("result_backend_transport_options") or {}
    return Address(
        url,
        _results.with_tls(backend, backend_tls, ask(backend_tls)),
        _prefix(str(options.get("global_keyprefix") or "")),
        _serializers.mime_type(result_serializer or ask("result_serializer") or "json"),
        str(ask("control_exchange") or "celery"),
        str(ask("event_exchange") or events.EXCHANGE),
        _results.Options(broker_options),
    )


def route_of(
    app_or_url: Any,
    task: str,
    queue: str | kombu.Queue | None,
    exchange: str | None,
    routing_key: str | None,
) -> Route:
    """Return the route of a task's messages, from the arguments or from the routes of the app.

    The app also defines the queue of a name, because a queue that exists with other arguments
    prevents the start of Celery's workers.

    Like Celery, publish to the default exchange, with the queue's name as routing key, if the queue
    is bound to a direct exchange.

    :raises TypeError: if the queue is neither a name nor a `kombu.Queue`.
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
        try:
            queue = app_or_url.amqp.queues[queue]
        except (AttributeError, KeyError):  # a URL, or an app that does not define the queue
            queue = kombu.Queue(queue, kombu.Exchange(queue, type="direct"), routing_key=queue)
    if not isinstance(queue, kombu.Queue):
        raise TypeError(f"queue must be a name or a kombu.Queue, got {queue!r:.80}")
    if not (exchange and routing_key) and queue.exchange.type == "direct":
        return Route("", queue.name, queue)
    return Route(exchange or queue.exchange.name, routing_key or queue.routing_key or "", queue)


def _prefix(setting: str) -> str:
    return f"{setting}_" if setting and setting[-1] not in ":_-." else setting


def _backend(url: str) -> str:
    url = _results.redis_url(url)
    scheme = url.partition(":")[0]
    if scheme in ("rpc", "disabled"):
        return f"{scheme}://"
    if scheme not in _STORES:
        near = object_names.hint(scheme, ("rpc", "redis", "rediss", "redis+socket", "disabled"))
        raise ValueError(f"The result backend must be rpc:// or redis://, got {scheme!r}{near}")
    if "://" not in url:
        raise ValueError(
            f"The result backend must be a URL, as in {scheme}://localhost, got {url!r}"
        )
    return url


def _target(url: str, options: Mapping[str, Any] | None = None) -> transports.Target:
    options = options or {}
    amqp_options = {"confirm_publish": True, "heartbeat": 0, **options}
    target = transports.kombu_target(url, options=amqp_options)
    if "://" not in url:
        raise ValueError(
            f"The URL of a broker must begin with its transport, as in amqp://{target.shown}"
        )
    if target.amqp:
        return target
    return transports.kombu_target(url, options={**_results.BROKER_OPTIONS, **options})


def hostname() -> str:
    """Return the host name of this client in messages and events."""
    return f"gen{os.getpid()}@{socket.gethostname()}"


#: Stages of a message: not sent, sent, confirmed by the broker.
NEW: Final = 0
PUBLISHED: Final = 1
CONFIRMED: Final = 2


@dataclass(slots=True, eq=False)
class OutgoingTask:
    """A task to be sent to Celery's workers.

    `notify` is called with the failure if the message cannot be published. If `waits` is False, the
    result is not awaited, and `notify` is called with the task id when the broker confirms the
    message.

    `recovered`: whether an earlier run may have sent the message. If the result backend does not
    prove this, the message is sent again if `may_resend` is True; otherwise the task fails.
    """

    id: str
    wire: Wire
    route: Route
    reader: _results.Reader | None
    waits: bool
    notify: Callable[[Any], object]
    recovered: bool = False
    may_resend: bool = True
    stage: int = NEW
    dropped: conditions.Event = field(default_factory=conditions.Event)

    def confirmed(self) -> None:
        if not self.waits:
            self.notify(self.id)

    def failed(self, error: Exception) -> None:
        self.notify(ft.Failure.from_exception(error))


class Publisher(_reconnecting.ReconnectLoop):
    """Publishes messages to one broker in order, and resends unconfirmed ones."""

    def __init__(
        self,
        url: str,
        control: str = "celery",
        event_exchange: str = "celeryev",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._target = _target(url, options)
        super().__init__(f"the Celery broker at {self._target.shown}")
        #: Pending jobs in order; a job is removed after it has succeeded.
        self._jobs: collections.deque[Callable[[], None]] = collections.deque()
        self._revoked: dict[str | None, list[str]] = {}
        # Only the publisher's thread uses the attributes below.
        self._connection: kombu.Connection | None = None
        self._producer: kombu.Producer | None = None
        #: Whether RabbitMQ has an alarm.
        self._is_blocked = False
        #: Time of the last declaration of each queue.
        self._declared: dict[str, float] = {}
        self._events: list[events.Event] = []
        self._clock = clocks.LamportClock()
        self._mailbox = pidbox.Mailbox(control, type="fanout", serializer="json", clock=self._clock)
        self._exchange = kombu.Exchange(event_exchange, type="topic")

    def send(self, message: OutgoingTask) -> None:
        """Queue a message for publishing, unless it is dropped before."""
        self._put(functools.partial(self._send, message))

    def drop(self, message: OutgoingTask, revoke: bool, signal: str | None) -> None:
        """Do not send a message. If it was already sent and `revoke` is True, revoke its task.

        With a signal, the task is also terminated.
        """
        message.dropped.set()

        def revoke_what_was_sent() -> None:
            if message.stage != NEW or message.recovered:
                self._revoke(message.id, signal)

        if revoke:
            with contextlib.suppress(RuntimeError):  # the interpreter is shutting down
                self._put(revoke_what_was_sent)

    def revoke(self, id: str, signal: str | None = None) -> None:
        """Revoke a task; with a signal, also terminate it."""
        self._put(functools.partial(self._revoke, id, signal))

    def describe_state(self, message: OutgoingTask) -> str:
        """Describe the state of a message whose task did not end.

        The text is empty if the message was confirmed and the broker is available.
        """
        why = self.unavailable_reason or (
            message.reader.unavailable_reason if message.reader else ""
        )
        suffix, broker = f": {why}" if why else "", f"the broker at {self._target.shown}"
        if message.stage == CONFIRMED:
            return f"{broker} has received its message but cannot be reached{suffix}" if why else ""
        if message.stage == NEW and not message.recovered:
            return f"its message was not sent to {broker}{suffix}"
        return f"{broker} has not confirmed its message{suffix}"

    def _put(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._jobs.append(job)
            self._wake()

    def _revoke(self, id: str, signal: str | None) -> None:
        self._revoked.setdefault(signal, []).append(id)

    # Only the publisher's thread calls the methods below.

    @property
    def _pending(self) -> int:
        return len(self._jobs) + len(self._revoked)

    def _serve(self) -> None:
        try:
            while self._pending or not self._is_over():
                if self._jobs:
                    self._jobs[0]()
                    self._jobs.popleft()
                if not self._jobs or len(self._events) >= _MAX_PENDING_EVENTS:
                    self._flush()
                self._changed.wait_for(
                    lambda: self._jobs or self._stopping.is_set(), _reconnecting.IDLE_SECONDS
                )
        finally:
            self._disconnect()

    def _on_refusal(self, error: Exception) -> None:
        LOG.debug("revocations were not sent: %s", error)
        self._revoked.clear()

    def _send(self, message: OutgoingTask) -> None:
        """Publish a message, or report its failure.

        An exception means that the connection is lost. Then the job is repeated.
        """
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
            elif not message.may_resend:
                text = f"it is unknown whether an earlier run sent task {message.id}"
                self._revoke(message.id, None)
                message.failed(exceptions.WorkerLost(text))
                return
        if message.stage != CONFIRMED:
            self._publish(message)
            message.stage = CONFIRMED
            self._note_available()
            self._events.append(self._event_of(message))
        if reader is None:
            message.confirmed()
        else:
            reader.note_sent(message)

    def _publish(self, message: OutgoingTask) -> None:
        producer = self._open()
        if message.route.queue is not None:
            self._declare(message.route.queue)
        if isinstance(message.reader, _results.RpcReader):
            self._declare(message.reader.queue)
        message.stage = PUBLISHED
        confirms = (
            {"mandatory": True, "confirm_timeout": _CONFIRM_SECONDS} if self._target.amqp else {}
        )
        try:
            producer.publish(
                message.wire.body,
                exchange=message.route.exchange,
                routing_key=message.route.routing_key,
                **confirms,
                **message.wire.arguments(),
            )
        except TimeoutError:
            self._await_confirmation(producer.channel)

    def _await_confirmation(self, channel: Any) -> None:
        """Wait for the end of an alarm of RabbitMQ, which then reads the message.

        A second copy of the message would run, too.

        :raises TimeoutError: if the broker has no alarm.
        """

        def on_reply(method: object, *_: object) -> None:
            if method == spec.Basic.Nack:
                raise amqp_errors.MessageNacked

        while self._is_blocked:
            with contextlib.suppress(TimeoutError):
                replies = [spec.Basic.Ack, spec.Basic.Nack]
                channel.wait(replies, callback=on_reply, timeout=_CONFIRM_SECONDS)
                return
        raise TimeoutError("the broker did not confirm a message")

    def _on_blocked(self, reason: str) -> None:
        self._is_blocked = True
        self._note_unavailable("it is short of memory or disk space")

    def _on_unblocked(self) -> None:
        self._is_blocked = False

    def _failure(self, message: OutgoingTask, error: Exception) -> Exception | None:
        """Return the failure of a message after an error, or None to send it again."""
        if isinstance(error, amqp_errors.ChannelError) and not _reconnecting.is_refusal(error):
            exchange = f"exchange {message.route.exchange!r}"
            if error.reply_code == _NO_ROUTE:
                key = message.route.routing_key
                problem = f"no queue receives messages for {exchange} with routing key {key!r}"
            else:
                problem = f"the broker refused it: {_reasons.explain(error)}"
            return exceptions.TransportFailure(
                f"task {message.id} could not be sent: {problem}", error
            )
        if isinstance(error, amqp_errors.FrameSyntaxError):  # py-amqp cannot encode it
            return exceptions.NotEncodable(
                f"the message of task {message.id} cannot be sent: {error}"
            )
        if _reconnecting.is_refusal(error):
            text = f"{self.place}, or its Redis for results, cannot be used"
            problem = _reasons.explain(error.__cause__ or error)
            return exceptions.TransportFailure(f"{text}: {problem}", error)
        # Other errors concern only this message, such as invalid headers.
        return None if _reconnecting.is_lost(error) else error

    def _open(self) -> kombu.Producer:
        if self._producer is None:
            self._connection = connecting.reach(
                self._target, self._stopping, within=10.0, on_failure=self._note_unavailable
            )
            if self._target.amqp:
                self._is_blocked = False
                raw = self._connection.connection
                raw.on_blocked, raw.on_unblocked = self._on_blocked, self._on_unblocked
            self._producer = kombu.Producer(self._connection.channel(), auto_declare=False)
            self._exchange.type = events.exchange_type(self._connection.transport.driver_type)
        return self._producer

    def _disconnect(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        self._declared.clear()
        if connection is not None:
            connecting.release(connection)

    def _declare(self, queue: kombu.Queue) -> None:
        """Declare a queue. Accept an existing queue with other arguments."""
        assert self._connection is not None
        if time.monotonic() - self._declared.get(queue.name, -math.inf) < _DECLARE_SECONDS:
            return
        # A broker that refuses the declaration closes the channel, so use a separate one.
        channel = self._connection.channel()
        try:
            queue(channel).declare()
            channel.close()
        except amqp_errors.PreconditionFailed:
            pass
        self._declared[queue.name] = time.monotonic()

    def _event_of(self, message: OutgoingTask) -> events.Event:
        headers = message.wire.headers
        names = ("retries", "eta", "expires", "root_id", "parent_id")
        queue = message.route.queue
        return events.Event(
            "task-sent", hostname(), self._clock.forward(), time.time(), events.utcoffset(),
            os.getpid(),
            {
                "uuid": message.id, "name": headers["task"], "args": headers["argsrepr"],
                "kwargs": headers["kwargsrepr"], **{name: headers[name] for name in names},
                "queue": None if queue is None else queue.name,
                "exchange": message.route.exchange, "routing_key": message.route.routing_key,
            },
        )  # fmt: skip

    def _flush(self) -> None:
        """Send revocations and events. If the connection is lost, only revocations are kept."""
        if not (self._events or self._revoked):
            return
        pending_events, self._events = self._events, []
        producer = self._open()
        while self._revoked:
            signal, ids = next(iter(self._revoked.items()))
            arguments: dict[str, Any] = {"task_id": ids, "terminate": signal is not None}
            if signal is not None:
                arguments["signal"] = signal
            self._mailbox(self._connection).abcast("revoke", arguments)
            del self._revoked[signal]
        if pending_events:
            wire, key = events.encode(
                pending_events[0] if len(pending_events) == 1 else pending_events
            )
            producer.publish(
                wire.body, exchange=self._exchange, routing_key=key, declare=[self._exchange],
                **wire.arguments(),
            )  # fmt: skip
