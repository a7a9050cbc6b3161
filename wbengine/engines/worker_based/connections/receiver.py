"""One connection that receives: what is consumed on it, from its beginning to its end."""

from __future__ import annotations

import contextlib
import functools
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


class Receiver:
    """Consume one's own queue, and shared ones, on one connection; of one thread.

    Messages are given to `on_own(message)` and `on_work(message)`: on an AMQP connection, where
    whoever publishes or acknowledges in the midst of reading goes astray, when nothing is being
    read.  What no message can be read from is counted in `refused`.  `due` is when to call `turn`;
    `wake`, if there is one, ends a `drain` from any thread.
    """

    def __init__(
        self,
        target: transports.Target,
        layout: topology.Topology,
        connection: kombu.Connection,
        work: prefetcher.Prefetcher | None,
        refused: Counter[str],
    ) -> None:
        self._target = target
        self._local = target.is_local
        self._layout = layout
        self._connection = connection
        self._work = work
        self._refused = refused
        self._amqp = amqp_connection.AmqpConnection(connection) if target.amqp else None
        # Delivered, and not handed over.
        self._inbox: deque[tuple[Consume, Any]] = deque()
        self._echo: connecting.Echo | None = None
        self._send: Callable[[OutgoingMessage], None] = _nowhere
        self._own: Any = None
        self._stop: Callable[[], object] = _nothing
        #: Where requests that came here are answered, on a RabbitMQ.
        self.replies: reply_publisher.ReplyPublisher | None = None
        self._declare_due = 0.0
        self._declared = -math.inf
        self._mistrusts = False
        self.channel: Any = None
        self.due = 0.0
        self.wake: Callable[[], None] | None = None
        self.drain: Callable[..., object]
        self.drain = connection.drain_events if self._amqp is None else self._listen

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
        if not self._local:
            self._echo = connecting.Echo(QUIET, DEAF, time.monotonic())
        if self._amqp is not None:
            self._begin_on(self._amqp, on_own, on_work, replies_from)
        else:
            self._begin_with_kombu(on_own, on_work)
        self._plan(time.monotonic())

    def _begin_on(
        self,
        connection: amqp_connection.AmqpConnection,
        on_own: Consume,
        on_work: Consume,
        replies_from: float,
    ) -> None:
        channel = connection.channel()
        self.channel = channel.raw
        self._declare_own()
        channel.consume(self._own.name, _OWN, self._later(on_own))
        self._stop = functools.partial(channel.raw.basic_cancel, _OWN)
        work = self._work
        if work is not None:
            work.begin(connection, self._layout, self._later(on_work))
            assert isinstance(work, prefetcher.AmqpPrefetcher) and work.amqp is not None
            if not self._layout.interop:  # there one may have to ask the broker first
                self.replies = reply_publisher.ReplyPublisher(
                    work.amqp, self._layout, self._send, replies_from
                )
        self.wake = connection.ring

    def _begin_with_kombu(self, on_own: Consume, on_work: Consume) -> None:
        if not self._local:
            on_own, on_work = self._heard(on_own), self._heard(on_work)
        if self._target.ours:
            self._connection.transport.on_discard = self._discarded
        self.channel = safe_message.channel_of(self._connection)
        self._declare_own()
        queues = [self._own, *self._layout.declare_common(self.channel)]
        consumer = kombu.Consumer(self.channel, queues, on_message=on_own, auto_declare=False)
        consumer.consume()
        self._stop = consumer.cancel
        if self._work is not None:
            self._work.begin(self._connection, self._layout, on_work)
        self.wake = getattr(self._connection.transport, "wake", None)

    def _discarded(self) -> None:
        self._refused["unreadable"] += 1

    def _declare_own(self) -> None:
        self._own = self._layout.declare_own(self.channel, self._target.ours)

    def _later(self, handle: Consume) -> Consume:
        return lambda message: self._inbox.append((handle, message))

    def _heard(self, handle: Consume) -> Consume:
        def hear(message: Any) -> None:
            assert self._echo is not None
            self._echo.heard(time.monotonic())
            if message.properties.get("type") == PING:
                message.ack()
            else:
                handle(message)

        return hear

    def bury(self, name: str) -> None:
        """Remove the queue of somebody who is gone; where queues do not do so by themselves."""
        if self._target.amqp and not self._layout.interop:
            self._layout.bury(self._connection, name)

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
                self._declare_again()
            self._declared = now
            ours = self._target.ours
            self._declare_due = now + (DECLARE_PERIOD if ours else LONG_DECLARE_PERIOD)
        if self._work is not None and not self._target.ours:
            self._work.turn(now)
        if self._echo is not None:
            self._check(self._echo, now)
        self._plan(now)

    def _declare_again(self) -> None:
        self._declare_own()
        self._layout.declare_common(self.channel)
        if self._work is not None:
            self._work.declare()

    @property
    def heard(self) -> float:
        """When the broker was heard last, on the monotonic clock; what cannot fall silent: now."""
        return time.monotonic() if self._echo is None else self._echo.last

    @property
    def is_blocked(self) -> bool:
        """Whether the broker reads nothing on this connection for now."""
        return self.replies is not None and self.replies.is_blocked

    def mistrust(self) -> None:
        """Somebody may have removed what was declared: declare it soon; any thread."""
        self._mistrusts = True
        self.due = self._declared + DECLARE_PAUSE

    def _plan(self, now: float) -> None:
        # Elsewhere what is due may change with every message.
        self.due = self._declare_due if self._local else now
        if self._mistrusts:  # perhaps just now, so that it is not forgotten
            self.due = min(self.due, self._declared + DECLARE_PAUSE)

    def _check(self, echo: connecting.Echo, now: float) -> None:
        if echo.asks(now):
            ping = env.Envelope(PING, {}, routing_key=self._layout.topic)
            self._send(OutgoingMessage(ping, _Pinging(echo)))
        if echo.is_deaf(now):
            raise exc.TransportFailure("it delivers nothing, not even what was sent to oneself")

    def _listen(self, timeout: float) -> None:
        """Wait, read what is there, and hand it over when nothing is being read."""
        assert self._amqp is not None and self._echo is not None
        due = self._echo.next_due()
        if self._work is not None:
            due = min(due, self._work.next_due() or due)
            self._work.blocked = self.is_blocked
        timeout = min(timeout, max(0.001, due - time.monotonic()))
        try:
            spoke = self._amqp.wait(0 if self._inbox else timeout)
            if spoke:
                self._amqp.read()
        finally:
            if self.replies is not None:
                self.replies.report()
        if self.replies is not None and not spoke:
            self.replies.check(time.monotonic())
        if self._inbox:
            self._echo.heard(time.monotonic())
            with self._amqp.together():
                self._hand_over()

    def _hand_over(self) -> None:
        while self._inbox:
            handle, message = self._inbox.popleft()
            if message.properties.get("type") == PING:
                message.ack()
            else:
                handle(message)

    def together(self) -> contextlib.AbstractContextManager[None]:
        """What is acknowledged meanwhile is told in one go, where that is of use."""
        return contextlib.nullcontext() if self._amqp is None else self._amqp.together()

    # The end.

    def end(self, remove: bool) -> None:
        """Stop consuming; `remove`: nobody is to read the own queue any more."""
        work = self._work
        if work is not None:
            work.pause()
        while self._inbox:  # delivered meanwhile, and handed to nobody
            _, message = self._inbox.popleft()
            message.requeue()
        self._stop()
        if remove and not self._layout.interop:
            self._own.delete()
        if self._target.amqp or getattr(self.channel, "deletes_unused", False):
            # To a broker, a queue is empty of which all is taken and nothing acknowledged.
            queues = work.queues if work is not None and not work.held else ()
            self._layout.clear(self._connection, queues, exchange=self._target.ours)

    def drop(self) -> None:
        """The connection is of no use any more."""
        if self._amqp is not None:
            self._amqp.drop()

    def close(self) -> None:
        """Forget the connection; somebody else closes it."""
        self._inbox.clear()
        if self._work is not None:
            self._work.end()
        if self.replies is not None:
            self.replies.close()
        if self._amqp is not None:
            self._amqp.close()


class _Pinging(DeliveryHooks):
    """Tells an echo when its call went out."""

    mandatory = True

    def __init__(self, echo: connecting.Echo) -> None:
        self._echo = echo

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        self._echo.published(time.monotonic())


def _nothing() -> None:
    """Nothing was begun."""


def _nowhere(message: OutgoingMessage) -> None:
    raise AssertionError("nothing was begun")
