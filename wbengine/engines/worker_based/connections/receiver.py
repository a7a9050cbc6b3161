"""One connection that receives: what is consumed on it, from its beginning to its end."""

from __future__ import annotations

import abc
import contextlib
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import kombu

from wbengine import exceptions as exc
from wbengine import transports
from wbengine.engines.worker_based.connections import (
    amqp_connection,
    connecting,
    prefetcher,
    reply_publisher,
    topology,
)
from wbengine.engines.worker_based.connections.outgoing import DeliveryHooks, OutgoingMessage
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.transports import safe_message
from wbengine.transports.broker import Broker, Consumer

#: Seconds after which a queue is declared again: what cleans temporary folders of old files may
#: have taken it, or its bindings; and a broker counts the days in which nobody used a queue.
DECLARE_PERIOD: Final = 60.0
LONG_DECLARE_PERIOD: Final = 3600.0

#: Seconds at least between two times, where there is reason to think that it is gone.
DECLARE_PAUSE: Final = 1.0

#: Seconds of silence after which a consumer speaks to itself, and after which it is deaf if it does
#: not hear that.
QUIET: Final = 10.0
DEAF: Final = 15.0

#: What the broker calls the consumer of one's own queue.
_OWN: Final = "own"

#: Type of the message that one sends to oneself.
PING: Final = "WBE_PING"

Consume = Callable[[Any], None]


class Receiver(abc.ABC):
    """Consume one's own queue, and shared ones, on one connection; of one thread.

    Messages are given to `on_own(message)` and `on_work(message)`.  What no message can be read
    from is counted in `refused`.  `due` is when to call `turn`; `wake`, if there is one, ends a
    `drain` from any thread.
    """

    wake: Callable[[], None] | None = None
    #: Where requests that came here are answered, on a RabbitMQ.
    replies: reply_publisher.ReplyPublisher | None = None
    #: Whether the broker reads nothing on this connection for now.
    is_blocked = False

    def __init__(
        self, target: transports.Target, layout: topology.Topology, refused: Counter[str]
    ) -> None:
        self._layout = layout
        self._refused = refused
        self._echo: connecting.Echo | None = None
        self._can_fall_silent = not target.is_local
        self._send: Callable[[OutgoingMessage], None] = _nowhere
        self._declare_due = 0.0
        self._declared = -math.inf
        self._mistrusts = False
        #: What comes here is acknowledged on it, or never.
        self.channel: Any = None
        self.due = 0.0

    def begin(
        self,
        on_own: Consume,
        on_work: Consume,
        send: Callable[[OutgoingMessage], None],
        replies_from: float = 0.0,
    ) -> None:
        """Declare and consume; `send` publishes.  From `replies_from` on requests may be answered
        here.
        """
        self._send = send
        if self._can_fall_silent:
            self._echo = connecting.Echo(QUIET, DEAF, time.monotonic())
        self._begin(self._heard(on_own), self._heard(on_work), replies_from)
        self._plan(time.monotonic())

    @abc.abstractmethod
    def _begin(self, on_own: Consume, on_work: Consume, replies_from: float) -> None: ...

    @abc.abstractmethod
    def _declare(self) -> None:
        """Declare all queues, again."""

    @abc.abstractmethod
    def drain(self, timeout: float) -> None:
        """Wait for messages, and hand over what came.

        :raises TimeoutError: nothing came.
        """

    def _heard(self, handle: Consume) -> Consume:
        """What handles a message that came."""
        echo = self._echo
        if echo is None:
            return handle

        def hear(message: Any) -> None:
            echo.heard(time.monotonic())
            if message.properties.get("type") == PING:
                message.ack()
            else:
                handle(message)

        return hear

    # In turn.

    def turn(self, now: float) -> None:
        """What is to be done from time to time.

        :raises TransportFailure: the connection is deaf.
        """
        mistrusts = self._mistrusts and now >= self._declared + DECLARE_PAUSE
        if self.is_blocked:
            pass  # it would not answer
        elif mistrusts or now >= self._declare_due:
            self._mistrusts = False  # before: what is gone after that is to be declared again
            if mistrusts or self._declare_due:
                self._declare()
            self._declared = now
            self._declare_due = now + self._declare_period
        if self._echo is not None:
            self._check(self._echo, now)
        self._plan(now)

    @property
    def _declare_period(self) -> float:
        """Seconds after which all is declared again."""
        return LONG_DECLARE_PERIOD

    @property
    def heard(self) -> float:
        """When the broker was heard last, on the monotonic clock; what cannot fall silent: now."""
        return time.monotonic() if self._echo is None else self._echo.last

    def mistrust(self) -> None:
        """Somebody may have removed what was declared: declare it soon; any thread."""
        self._mistrusts = True
        self.due = self._declared + DECLARE_PAUSE

    def _plan(self, now: float) -> None:
        # Elsewhere what is due may change with every message.
        self.due = self._declare_due if self._echo is None else now
        if self._mistrusts:  # perhaps just now, so that it is not forgotten
            self.due = min(self.due, self._declared + DECLARE_PAUSE)

    def _check(self, echo: connecting.Echo, now: float) -> None:
        if echo.asks(now):
            ping = env.Envelope(PING, {}, routing_key=self._layout.topic)
            self._send(OutgoingMessage(ping, _Pinging(echo)))
        if echo.is_deaf(now):
            raise exc.TransportFailure("it delivers nothing, not even what was sent to oneself")

    def together(self) -> contextlib.AbstractContextManager[None]:
        """What is acknowledged meanwhile is told in one go, where that is of use."""
        return contextlib.nullcontext()

    def bury(self, name: str) -> None:  # noqa: B027 - most go by themselves
        """Remove the queue of somebody who is gone; where queues do not do so by themselves."""

    # The end.

    @abc.abstractmethod
    def end(self, remove: bool) -> None:
        """Stop consuming; `remove`: nobody is to read the own queue any more."""

    def drop(self) -> None:  # noqa: B027 - it is closed anyway
        """The connection is of no use any more."""

    @abc.abstractmethod
    def close(self) -> None:
        """Forget the connection; somebody else closes it."""


class BrokerReceiver(Receiver):
    """From a broker of ours."""

    def __init__(
        self,
        broker: Broker,
        target: transports.Target,
        layout: topology.Topology,
        work: prefetcher.BrokerPrefetcher,
        refused: Counter[str],
    ) -> None:
        super().__init__(target, layout, refused)
        self._broker = broker
        self._work = work
        self.wake = broker.wake
        broker.on_discard = self._discarded

    def _begin(self, on_own: Consume, on_work: Consume, replies_from: float) -> None:
        self._declare()
        self.channel = Consumer(self._broker, on_own)
        self.channel.consume((self._layout.topic,))
        self._work.begin(self._broker, on_work)

    @property
    def _declare_period(self) -> float:
        return DECLARE_PERIOD

    def _discarded(self) -> None:
        self._refused["unreadable"] += 1

    def _declare(self) -> None:
        self._layout.declare_queues_on(self._broker, self._work.queues)

    def drain(self, timeout: float) -> None:
        self._broker.drain(timeout)

    def end(self, remove: bool) -> None:
        self._work.pause()
        self.channel.cancel()
        if remove:
            self._broker.delete_queue(self._layout.topic)

    def close(self) -> None:
        self._work.end()


class KombuReceiver(Receiver):
    """From a transport of kombu's own."""

    def __init__(
        self,
        connection: kombu.Connection,
        target: transports.Target,
        layout: topology.Topology,
        work: prefetcher.KombuPrefetcher,
        refused: Counter[str],
    ) -> None:
        super().__init__(target, layout, refused)
        self._connection = connection
        self._work = work
        self._own: Any = None
        self._consumer: Any = None

    def _begin(self, on_own: Consume, on_work: Consume, replies_from: float) -> None:
        self.channel = safe_message.channel_of(self._connection)
        self._own = self._layout.declare_own(self.channel)
        queues = [self._own, *self._layout.declare_common(self.channel)]
        self._consumer = kombu.Consumer(self.channel, queues, on_message=on_own, auto_declare=False)
        self._consumer.consume()
        self._work.begin(self._connection, self._layout, on_work)
        self.wake = getattr(self._connection.transport, "wake", None)

    def _declare(self) -> None:
        self._own = self._layout.declare_own(self.channel)
        self._layout.declare_common(self.channel)
        self._work.declare()

    def turn(self, now: float) -> None:
        super().turn(now)
        if self._work.queues:
            self._work.turn(now)

    def drain(self, timeout: float) -> None:
        self._connection.drain_events(timeout=timeout)

    def _stop(self) -> None:
        self._consumer.cancel()

    def end(self, remove: bool) -> None:
        self._work.pause()
        self._stop()
        if remove and not self._layout.interop:
            self._own.delete()

    def close(self) -> None:
        self._work.end()


class AmqpReceiver(KombuReceiver):
    """From a RabbitMQ.

    Messages are handed over when nothing is being read: whoever publishes or acknowledges in the
    midst of reading goes astray.
    """

    def __init__(
        self,
        connection: kombu.Connection,
        target: transports.Target,
        layout: topology.Topology,
        work: prefetcher.AmqpPrefetcher,
        refused: Counter[str],
    ) -> None:
        super().__init__(connection, target, layout, work, refused)
        self._amqp = amqp_connection.AmqpConnection(connection)
        # Delivered, and not handed over.
        self._inbox: deque[tuple[Consume, Any]] = deque()
        self.wake = self._amqp.ring

    def _begin(self, on_own: Consume, on_work: Consume, replies_from: float) -> None:
        channel = self._amqp.channel()
        self.channel = channel.raw
        self._own = self._layout.declare_own(self.channel)
        channel.consume(self._own.name, _OWN, self._later(on_own))
        work = self._work
        work.begin(self._amqp, self._layout, self._later(on_work))
        assert isinstance(work, prefetcher.AmqpPrefetcher)
        # With TaskFlow's peers one may have to ask the broker first.
        if work.amqp is not None and not self._layout.interop:
            self.replies = reply_publisher.ReplyPublisher(
                work.amqp, self._layout, self._send, replies_from
            )

    def _later(self, handle: Consume) -> Consume:
        return lambda message: self._inbox.append((handle, message))

    @property
    def is_blocked(self) -> bool:  # type: ignore[override]
        return self._amqp.is_blocked

    def drain(self, timeout: float) -> None:
        """Wait, read what is there, and hand it over when nothing is being read."""
        assert self._echo is not None
        due = self._echo.next_due()
        if self._work.queues:
            due = min(due, self._work.next_due() or due)
            self._work.blocked = self.is_blocked
        timeout = min(timeout, max(0.001, due - time.monotonic()))
        hear = self._amqp.hear if self.replies is None else self.replies.confirms.read
        hear(0 if self._inbox else timeout)
        if self._inbox:
            with self._amqp.together():
                while self._inbox:
                    handle, message = self._inbox.popleft()
                    handle(message)

    def together(self) -> contextlib.AbstractContextManager[None]:
        return self._amqp.together()

    def bury(self, name: str) -> None:
        if not self._layout.interop:
            self._layout.bury(self._connection, name)

    def _stop(self) -> None:
        while self._inbox:  # delivered meanwhile, and handed to nobody
            _, message = self._inbox.popleft()
            message.requeue()
        self.channel.basic_cancel(_OWN)

    def end(self, remove: bool) -> None:
        if self.is_blocked:
            return  # nothing of this would be read
        super().end(remove)
        # To a broker, a queue is empty of which all is taken and nothing acknowledged.
        self._layout.clear(self._connection, () if self._work.held else self._work.queues)

    def drop(self) -> None:
        self._amqp.drop()

    def close(self) -> None:
        self._inbox.clear()
        super().close()
        if self.replies is not None:
            self.replies.close()
        self._amqp.close()


class _Pinging(DeliveryHooks):
    """Tells an echo when its call went out."""

    mandatory = True

    def __init__(self, echo: connecting.Echo) -> None:
        self._echo = echo

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        self._echo.published(time.monotonic())


def _nowhere(message: OutgoingMessage) -> None:
    raise AssertionError("nothing was begun")
