"""A named exchange, seen by one process: what comes is dispatched, what goes is published in order.

One connection receives and one sends, each with its own thread, and neither is shared with anybody:
publishing inside a consumer's callback on the same AMQP connection recurses, an AMQP connection
used by two threads loses messages, and a process-wide pool of connections runs dry.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import kombu

from wbengine import _names, transports
from wbengine import exceptions as exc
from wbengine._crash import crashpoint
from wbengine.engines.worker_based import connecting, dispatcher, protocol, topology
from wbengine.engines.worker_based import envelope as env
from wbengine.engines.worker_based.outbox import Outbox, Parcel

LOG = logging.getLogger(__name__)

#: Seconds a first connection may take before `start` gives up.
CONNECT_TIMEOUT: Final = 10.0

#: Seconds a consumer waits for the network before it looks at the clock again; a transport that
#: can be woken is, others are asked more often.
DRAIN_PERIOD: Final = 1.0
SHORT_DRAIN_PERIOD: Final = 0.05

#: Seconds after which a queue of ours is declared again: what cleans temporary folders of old
#: files may have taken it, or its bindings.
DECLARE_PERIOD: Final = 60.0

#: Seconds before it connects again to a broker that can be reached, but not used.
AILING_PAUSE: Final = 0.5

_KNOWN: Final = ("amqp", "amqps", "filesystem", "memory", "redis", "rediss")


class Proxy:
    """Publish to, and be called for messages from, one topic exchange.

    `topic` names this side's own queue, bound under its name and under each of `bindings`.
    `on_wait` is called on the consumer's thread between messages, and at least once a second.
    Handlers run on that thread too, and must not block.
    """

    DEFAULT_RETRY_OPTIONS: Final[Mapping[str, float]] = {
        "interval_start": 1,
        "interval_step": 1,
        "interval_max": 1,
        "max_retries": 3,
    }

    def __init__(
        self,
        topic: str,
        exchange: str,
        type_handlers: Mapping[str, dispatcher.Handler] | None = None,
        on_wait: Callable[[], None] | None = None,
        url: str | None = None,
        transport: str | None = None,
        transport_options: Mapping[str, Any] | None = None,
        retry_options: Mapping[str, Any] | None = None,
        *,
        bindings: Sequence[str] = (),
        until: Callable[[], float | None] | None = None,
        interop: str | None = None,
    ) -> None:
        self._topic = topic
        self._exchange_name = exchange
        self._topology = topology.Topology(exchange, topic, bindings, interop)
        self._on_wait = on_wait
        self._until = until
        self._retry_options = _with_defaults(retry_options, self.DEFAULT_RETRY_OPTIONS)
        if interop:  # TaskFlow's peers use kombu's own transports
            self._target = transports.Target(url, transport, dict(transport_options or {}))
        else:
            self._target = transports.resolve(url, transport, transport_options)
        self._check_transport()
        self._dispatcher = dispatcher.TypeDispatcher(type_handlers)
        self._outbox = Outbox(self._connect, self._topology, exchange)
        self._running = threading.Event()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        #: Whether this side's own queue stays when `stop` ends it: somebody else reads it.
        self.leaves_queue = False
        self._soon: deque[Callable[[], None]] = deque()
        self._wake: Callable[[], None] | None = None
        self._work: _Work | None = None

    # What it is.

    @property
    def dispatcher(self) -> dispatcher.TypeDispatcher:
        return self._dispatcher

    @property
    def target(self) -> transports.Target:
        """The broker that was resolved from url, transport and options."""
        return self._target

    @property
    def connection_details(self) -> dict[str, Any]:
        """Where this proxy connects to, without secrets."""
        with self._connect() as connection:
            return {
                "uri": connection.as_uri(include_password=False),
                "transport": connection.transport_cls
                if isinstance(connection.transport_cls, str)
                else connection.transport.driver_type,
                "exchange": self._exchange_name,
                "topic": self._topic,
            }

    @property
    def is_running(self) -> bool:
        return self._running.is_set() and not self._ended.is_set()

    def _check_transport(self) -> None:
        try:
            self._connect().get_transport_cls()
        except (KeyError, ImportError, AttributeError) as error:
            name = str(self._target.transport or str(self._target.url).partition("://")[0])
            if isinstance(error, KeyError):
                why = f"there is none of this name{_names.hint(name, _KNOWN)}"
            else:  # kombu reads attributes of a redis that it could not import
                extra = name.replace("rediss", "redis")
                why = f"{error} (perhaps: pip install 'kombu[{extra}]')"
            raise ValueError(f"{name!r} is no transport that can be used here: {why}") from error

    @property
    def ended(self) -> bool:
        """Whether `start` has returned: a proxy lives once."""
        return self._ended.is_set()

    def _connect(self) -> kombu.Connection:
        return self._target.connect(connect_timeout=5)

    # Publishing.

    def publish(
        self,
        msg: protocol.Message,
        routing_key: str,
        reply_to: str | None = None,
        correlation_id: str | None = None,
        *,
        headers: Mapping[str, Any] | None = None,
        first: bool = False,
    ) -> None:
        """Publish a message; see `send`."""
        envelope = env.Envelope(
            msg.TYPE,
            msg.to_dict(),
            routing_key=routing_key,
            correlation_id=correlation_id,
            reply_to=reply_to,
            headers=dict(headers or {}),
        )
        self.send(Parcel(envelope), first=first)

    def send(self, parcel: Parcel, first: bool = False) -> None:
        """Queue a parcel for the publisher's thread, and return at once.

        Parcels go out in the order in which they were queued, except that `first` ones (beats)
        pass all others.  A broker that is away only delays them.
        """
        self._outbox.put(parcel, first)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was queued is published; False if time ran out."""
        return self._outbox.flush(timeout)

    # Consuming.

    def take_from(self, queues: Sequence[str], slots: int) -> None:
        """Also take requests from shared queues, never more than `slots` at a time.

        `queues` are served in their order: the first is emptied before the second is looked at.
        Takes effect when the proxy starts, and after every reconnect.
        """
        self._work = _Work(tuple(queues), slots)

    def stop_taking(self) -> None:
        """Take no further request; what was taken can still be acknowledged."""
        work = self._work
        if work is not None:
            work.open = False
            self.call_soon(work.cancel)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Run `function` on the consumer's thread, soon."""
        self._soon.append(function)
        if self._wake is not None:
            self._wake()

    def ack(self, message: Any) -> None:
        """Acknowledge a message from any thread; never raises.

        What came on a connection that is gone cannot be acknowledged any more: it comes again.
        """
        if self._target.ours:
            _ack(message)
        else:
            self.call_soon(lambda: _ack(message))

    def start(self) -> None:
        """Connect, and dispatch what comes, until `stop`; blocks.

        :raises TransportFailure: the broker could not be reached within 10 seconds of the start.
        """
        try:
            self._outbox.start()
            self._run()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._outbox.stop()
            self._ended.set()
            self._running.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the proxy is connected and consuming; False if time ran out.

        :raises TransportFailure: it gave up.
        """
        ready = self._running.wait(timeout)
        if self._error is not None:
            raise self._error
        return ready

    def stop(self, timeout: float = 5.0) -> None:
        """Publish what is queued, delete this side's own queue unless it is left, disconnect."""
        self._outbox.flush(timeout)
        self._stopping.set()
        self._outbox.close()
        if self._wake is not None:
            self._wake()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._connect() as connection:
                errors = connection.recoverable_connection_errors
                try:
                    if self._reach(connection, errors):
                        self._consume(connection)
                except errors as error:
                    LOG.warning("lost the broker (%s), connecting again", error)
                except (OSError, exc.TransportFailure) as error:  # such as a full disk
                    if not self._running.is_set():
                        uri = connection.as_uri()
                        raise exc.TransportFailure(f"{uri} cannot be used: {error}") from error
                    LOG.warning("cannot receive (%s), connecting again", error)
                    self._stopping.wait(AILING_PAUSE)
                except Exception:
                    if not self._running.is_set():
                        raise
                    LOG.exception("receiving failed, connecting again")
                    self._stopping.wait(SHORT_DRAIN_PERIOD)

    def _reach(self, connection: kombu.Connection, errors: Any) -> bool:
        """Connect: at first for 10 seconds at most, later for as long as it takes."""
        first = not self._running.is_set()
        try:
            connecting.reach(
                connection,
                self._stopping,
                longest=float(self._retry_options["interval_max"]),
                within=CONNECT_TIMEOUT if first else None,
            )
        except errors as error:
            if first and not self._stopping.is_set():
                raise exc.TransportFailure(
                    f"the broker at {connection.as_uri()} cannot be reached: {error}"
                ) from error
            return False
        return True

    def _consume(self, connection: kombu.Connection) -> None:
        channel = connection.channel()
        own = self._topology.declare_own(channel, self._target.ours)
        consumer = kombu.Consumer(channel, [own], on_message=self._on_message, auto_declare=False)
        consumer.consume()
        if self._work is not None:
            self._work.consume(connection, self._topology, self._on_message)
        self._wake = getattr(connection.transport, "wake", None)
        self._running.set()
        self._drain(connection, channel)
        if self._work is not None:
            self._work.cancel()
        consumer.cancel()
        if not (self._topology.interop or self.leaves_queue):
            own.delete()

    def _drain(self, connection: kombu.Connection, channel: Any) -> None:
        longest = DRAIN_PERIOD if self._wake is not None else SHORT_DRAIN_PERIOD
        declared = time.monotonic()
        while not self._stopping.is_set():
            if self._target.ours and time.monotonic() - declared > DECLARE_PERIOD:
                declared = time.monotonic()
                self._topology.declare_own(channel, ours=True)
                if self._work is not None:
                    self._work.declare(channel, self._topology)
            while self._soon:
                self._soon.popleft()()
            if self._on_wait is not None:
                self._on_wait()
            timeout = longest
            if self._until is not None:
                due = self._until()
                if due is not None:
                    timeout = min(longest, max(0.001, due - time.monotonic()))
            try:
                connection.drain_events(timeout=timeout)
            except TimeoutError:
                pass

    def _on_message(self, message: Any) -> None:
        try:
            data = env.parse(message.body)
        except exc.InvalidFormat as error:
            self._dispatcher.refused["body"] += 1
            LOG.warning("refused message %s: %s", message.delivery_tag, str(error)[:500])
            message.reject()
        else:
            self._dispatcher.on_message(data, message)


def _ack(message: Any) -> None:
    crashpoint("proxy.before-ack")
    try:
        message.ack()
        crashpoint("proxy.after-ack")
    except Exception as error:
        LOG.warning("message %s cannot be acknowledged (%s)", message.delivery_tag, error)


def _with_defaults(given: Mapping[str, Any] | None, defaults: Mapping[str, Any]) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"retry_options must be a dict, not {given!r}")
    for name in given or ():
        if name not in defaults:
            raise ValueError(
                f"retry_options has no {name!r}{_names.hint(str(name), defaults)};"
                f" it knows: {', '.join(defaults)}"
            )
    return {**defaults, **(given or {})}


class _Work:
    """The request queues a worker takes from, on a channel of their own with its own prefetch."""

    def __init__(self, queues: tuple[str, ...], slots: int) -> None:
        self.queues = queues
        self.slots = slots
        self.open = True
        self._consumer: Any = None

    def consume(self, connection: Any, layout: topology.Topology, on_message: Any) -> None:
        if not self.open:
            return
        channel = connection.channel()
        channel.basic_qos(0, self.slots, False)
        bound = self.declare(channel, layout)
        self._consumer = kombu.Consumer(channel, bound, on_message=on_message, auto_declare=False)
        self._consumer.consume()

    def declare(self, channel: Any, layout: topology.Topology) -> list[Any]:
        return [layout.declare_shared(channel, name) for name in self.queues]

    def cancel(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.cancel()
