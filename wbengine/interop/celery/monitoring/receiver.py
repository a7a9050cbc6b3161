"""Hearing what Celery's workers, and ours, tell of themselves and of their tasks."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import kombu
from kombu import pidbox

from wbengine import exceptions
from wbengine.interop.celery import brokers
from wbengine.interop.celery import clock as clocks
from wbengine.interop.celery.monitoring import events
from wbengine.interop.celery.monitoring import state as states
from wbengine.interop.celery.protocol import wire
from wbengine.transports import reasons

__all__ = ["EventReceiver", "Handler"]

LOG = logging.getLogger(__name__)

Handler = Callable[[events.Event], Any]

#: Seconds between two looks at whether to go on, and whether the broker is still there.
_LOOK: Final = 1.0

#: Seconds for what takes no time.
_MOMENT: Final = 0.01

#: Seconds before a broken connection is replaced: what broke it may last.
_PAUSE: Final = 0.5

#: Seconds that an event waits in a queue that nobody reads, and that such a queue lives.
_EVENT_TTL: Final = 5.0
_QUEUE_TTL: Final = 60.0

#: Seconds of silence after which a Redis is asked whether it is there, and how many questions in a
#: row, one with each look, may be without an answer.
_QUIET: Final = 3
_MOST_UNANSWERED: Final = 5

#: So many of them are worth a warning.
_MOST_TOLD: Final = 20

#: So many deliveries that a transport cannot make sense of, one after the other, are a broken
#: connection.
_MOST_BROKEN: Final = 1000


class EventReceiver:
    """Hear the events at the broker `url`, one after the other, until `stop`.

    Either iterate over it, or call `run`; once, from one thread.  `handlers` are called with each
    event, by its type (`task-succeeded`); that of `*` with those that have none.  `state` is the
    picture that they make, and may be read from any thread.

    Nothing that comes ends it: what is no event is left out, counted, and logged; so is what a
    handler raises.  When the connection breaks it connects again for as long as it takes; what is
    told meanwhile is lost.  Whenever it has connected, all workers are asked for a heartbeat.

    `routing_key` says which events are wanted, as in `task.#` (lists have `task.multi`); Redis
    sends all.  The `clock` moves on with what comes, except by what clients say (`task-sent`),
    who hear of nobody.  `exchange` is Celery's `event_exchange`.

    :raises ValueError: the URL or an option makes no sense.
    """

    def __init__(
        self,
        url: str,
        handlers: Mapping[str, Handler] | None = None,
        *,
        routing_key: str = "#",
        state: states.State | None = None,
        clock: clocks.Clock | None = None,
        exchange: str = events.EXCHANGE,
        transport_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.handlers: dict[str, Handler] = dict(handlers or {})
        self.state = state or states.State()
        self.clock = clock or clocks.Clock()
        #: How many events were `received`; how many messages or events were `refused`; how many
        #: calls of handlers `failed`; how often it `connected`.
        self.counts: Counter[str] = Counter()
        self._broker = brokers.Broker(url, transport_options)
        if self._broker.is_redis:
            options = {"health_check_interval": _QUIET, **(transport_options or {})}
            self._broker = brokers.Broker(url, options)
        self._routing_key = routing_key
        self._exchange = exchange
        self._came: deque[events.Event] = deque()
        self._away = False
        self._broken = 0
        self._stopping = threading.Event()
        self._ready = threading.Event()

    def stop(self) -> None:
        """End it, within a second.  From any thread; idempotent."""
        self._stopping.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it hears what is told; False if time ran out."""
        return self._ready.wait(timeout)

    def run(self) -> None:
        """Call the handlers, and keep the state, until `stop`."""
        for _ in self:
            pass

    def __iter__(self) -> Iterator[events.Event]:
        """Each event, when it is in the state, and its handler was called."""
        while not self._stopping.is_set():
            try:
                with self._connect() as (connection, channel):
                    yield from self._listen(connection, channel)
            except Exception as error:  # whatever it is, it is the connection's end
                self._fail(reasons.explain(error))
                self._stopping.wait(_PAUSE)
            finally:
                self._ready.clear()

    def _fail(self, why: str) -> None:
        """Once for each time that the broker is away."""
        if not self._away and not self._stopping.is_set():
            LOG.warning("events cannot be heard from %s: %s", self._broker.shown, why)
        self._away = True

    @contextlib.contextmanager
    def _connect(self) -> Iterator[tuple[Any, Any]]:
        with self._broker.reach(self._stopping, on_failure=self._fail) as connection:
            channel = connection.default_channel
            wire.keep_packed(channel)
            consumer = kombu.Consumer(
                channel,
                [self._queue(connection)],
                no_ack=True,
                on_message=self._on_message,
            )
            with consumer:
                self._drain(connection, _MOMENT)  # Redis is asked for it when it is waited for
                pidbox.Mailbox("celery", type="fanout")(connection).cast(None, "heartbeat")
                self.counts["connected"] += 1
                self._away = False
                self._ready.set()
                yield connection, channel

    def _queue(self, connection: Any) -> kombu.Queue:
        kind = events.exchange_type(connection.transport.driver_type)
        return kombu.Queue(
            f"{events.EXCHANGE}.{uuid.uuid4()}",
            exchange=kombu.Exchange(self._exchange, type=kind),
            routing_key=self._routing_key,
            auto_delete=True,
            durable=False,
            exclusive=True,
            message_ttl=_EVENT_TTL,
            expires=_QUEUE_TTL,
        )

    def _listen(self, connection: Any, channel: Any) -> Iterator[events.Event]:
        """What comes over this channel; ends when it is to stop."""
        look = 0.0  # it may have been lost already
        while not self._stopping.is_set():
            if time.monotonic() >= look:
                look = time.monotonic() + _LOOK
                _check(connection, channel)
            self._drain(connection, _LOOK)
            while self._came:
                yield self._came.popleft()

    def _drain(self, connection: Any, timeout: float) -> None:
        """Wait for something to come.

        :raises Exception: the connection is of no use any more.
        """
        try:
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=timeout)
        except Exception as error:
            # With Redis, a delivery in which something is missing passes for a broken connection.
            lost = connection.connection_errors + connection.channel_errors
            if isinstance(error, lost) and not isinstance(error, LookupError):
                raise
            self._broken += 1
            if self._broken >= _MOST_BROKEN:
                raise
            self._refuse(error)
        else:
            self._broken = 0

    # What comes.

    def _on_message(self, message: Any) -> None:
        try:
            came = events.decode(wire.Wire.of(message), self._refuse)
        except events.MalformedEvent as error:
            self._refuse(error)
            return
        for event in came:
            self._on_event(event)

    def _refuse(self, error: Exception) -> None:
        self.counts["refused"] += 1
        often = self.counts["refused"] > _MOST_TOLD
        LOG.log(logging.DEBUG if often else logging.WARNING, "what came is no event: %s", error)

    def _on_event(self, event: events.Event) -> None:
        self.counts["received"] += 1
        if event.type == "task-sent":
            self.clock.forward()
        else:
            self.clock.adjust(event.clock)
        self.state.on(event)
        handler = self.handlers.get(event.type) or self.handlers.get("*")
        if handler is not None:
            try:
                handler(event)
            except Exception:
                self.counts["failed"] += 1
                LOG.exception("a handler of %.100s events failed", event.type)
        self._came.append(event)


def _check(connection: Any, channel: Any) -> None:
    """See that something would be heard if it came.

    :raises Exception: it would not.
    """
    if connection.supports_heartbeats:
        connection.heartbeat_check()
    if connection.default_channel is not channel:
        raise exceptions.TransportFailure("kombu has replaced the connection")
    # Of Redis, kombu may also wait for another connection than its client has by now.
    client = vars(channel).get("subclient")
    if client is not None:
        client.check_health()
        if getattr(client, "health_check_response_counter", 0) > _MOST_UNANSWERED:
            raise exceptions.TransportFailure("it does not answer")
