"""Receive with a transport of kombu."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import kombu

from wbengine.transports._kombu import safe_message
from wbengine.transports._receiving import MessageConsumer, ReceivingLink

LOG = logging.getLogger(__name__)

#: Seconds after which a running request is acknowledged. RabbitMQ closes a channel whose messages
#: are not acknowledged within 30 minutes.
ACK_AFTER_SECONDS: Final = 600.0


class PushConsumer(MessageConsumer):
    """A consumer to which the broker pushes messages, up to a limit of the broker.

    A message that was acknowledged early, because its task runs for a long time, counts as
    unsettled until it is acknowledged again.
    """

    def __init__(self, handle: Callable[[Any], object], takes_requests: bool) -> None:
        self._handle = handle
        self._takes_requests = takes_requests
        self.queues: tuple[str, ...] = ()
        self._limit = 0
        #: Arrival time of each message that was delivered and not settled, oldest first.
        self.unsettled: dict[Any, float] = {}
        self.acknowledged_early: set[Any] = set()

    def consume(self, queues: Iterable[str], limit: int = 0) -> None:
        self.queues, self._limit = tuple(queues), limit
        self._adjust()

    def _adjust(self) -> None:
        """Let the broker push as many messages as the limit permits."""
        raise NotImplementedError

    def admits(self, message: Any) -> bool:
        return bool(self.queues)

    def run_due(self, now: float) -> float:
        """Acknowledge requests that run for a long time, before the broker closes the channel.

        :returns: the time of the next call.
        """
        if self._takes_requests:
            for message, arrived_at in tuple(self.unsettled.items()):
                if message in self.acknowledged_early:
                    continue
                if now - arrived_at < ACK_AFTER_SECONDS:
                    return arrived_at + ACK_AFTER_SECONDS
                self._acknowledge_early(message)
        return math.inf

    def _acknowledge_early(self, message: Any) -> None:
        raise NotImplementedError


class KombuDelivery:
    """A message of kombu whose channel is its consumer."""

    def __init__(self, raw: Any, consumer: KombuConsumer) -> None:
        self.raw = raw
        self.channel = consumer
        self.body, self.headers, self.properties = raw.body, raw.headers, raw.properties
        self.delivery_info, self.delivery_tag = raw.delivery_info, raw.delivery_tag
        self.compressed = getattr(raw, "compressed", False)
        self.acknowledged = False

    def ack(self) -> None:
        self.channel.ack_many((self,))

    def reject(self, requeue: bool = False) -> None:
        self.channel.settle(self, self.raw.requeue if requeue else self.raw.reject)

    def requeue(self) -> None:
        self.reject(requeue=True)


class KombuConsumer(PushConsumer):
    """A consumer on a channel of kombu. The thread of the link settles messages."""

    def __init__(
        self, link: KombuLink, channel: Any, handle: Callable[[Any], object], takes_requests: bool
    ) -> None:
        super().__init__(handle, takes_requests)
        self._link = link
        self._channel = channel
        self._consumer: Any = None

    def _adjust(self) -> None:
        room = self._limit - len(self.acknowledged_early)
        if not self.queues or (self._limit and room <= 0):  # For the channel, 0 means no limit.
            self._stop()
            return
        if self._takes_requests:
            self._channel.basic_qos(0, max(0, room), False)
        if self._consumer is None:
            queues = [kombu.Queue(name)(self._channel) for name in self.queues]
            self._consumer = kombu.Consumer(
                self._channel, queues, on_message=self._deliver, auto_declare=False
            )
            self._consumer.consume()

    def cancel(self) -> None:
        self.queues = ()
        self._stop()

    def _stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.cancel()

    def _deliver(self, raw: Any) -> None:
        message = KombuDelivery(raw, self)
        self.unsettled[message] = time.monotonic()
        self._handle(message)

    def _acknowledge_early(self, message: KombuDelivery) -> None:
        self.acknowledged_early.add(message)
        self._adjust()  # First, so that the broker delivers no other request for it.
        message.raw.ack()

    def ack_many(self, messages: Sequence[KombuDelivery]) -> None:
        for message in messages:
            self.settle(message, message.raw.ack)

    def settle(self, message: KombuDelivery, how: Callable[[], None]) -> None:
        """Settle a message with `how()`, now or in the thread of the link."""
        message.acknowledged = True
        self._link.call(functools.partial(self._settle, message, how))

    def _settle(self, message: KombuDelivery, how: Callable[[], None]) -> None:
        if self.unsettled.pop(message, None) is None or not self._link.is_open:
            return
        if message in self.acknowledged_early:
            self.acknowledged_early.remove(message)
            self._adjust()
        else:
            how()


class KombuLink(ReceivingLink):
    """A connection of kombu that receives.

    :param connection: an open connection.
    :param layout: the `Topology` of this process.
    """

    can_wake = False

    def __init__(self, connection: kombu.Connection, layout: Any) -> None:
        self._connection = connection
        self._layout = layout
        self._thread = threading.get_ident()
        self._calls: deque[Callable[[], None]] = deque()
        self._consumers: list[Any] = []
        self.is_open = True
        self._own: Any = None
        # The channel for declarations: that of the first consumer.
        self._channel: Any = None

    def consumer(self, handle: Callable[[Any], object], outbox: Any) -> MessageConsumer:
        channel = safe_message.channel_of(self._connection)
        consumer = KombuConsumer(self, channel, handle, outbox is not None)
        self._add(consumer, channel)
        return consumer

    def _add(self, consumer: Any, channel: Any) -> None:
        self._consumers.append(consumer)
        self._channel = self._channel or channel

    def declare(self, layout: Any, shared: Sequence[str]) -> None:
        self._own = layout.declare_own(self._channel)
        layout.declare_common(self._channel)
        for name in shared:
            layout.declare_shared(self._channel, name)

    def drain(self, timeout: float | None = None) -> None:
        self._run_calls()
        self._run_due(time.monotonic())
        self._connection.drain_events(timeout=timeout)

    def _run_due(self, now: float) -> float:
        """Do the periodic work of all consumers. Return the time of the next call.

        :raises ConnectionError: if the broker does not reply in time. `drain` raises a
            `TimeoutError` only if no message arrived, and may be called again after it.
        """
        try:
            return min((each.run_due(now) for each in self._consumers), default=math.inf)
        except TimeoutError as error:
            raise ConnectionError("it does not answer") from error

    def call(self, function: Callable[[], None]) -> None:
        """Call `function` in the thread of the link, now if this is it."""
        if threading.get_ident() == self._thread:
            function()
        else:
            self._calls.append(function)

    def _run_calls(self) -> None:
        while self._calls:
            try:
                self._calls.popleft()()
            except OSError as error:
                LOG.debug("a message cannot be acknowledged (%s)", error)
            except Exception as error:
                LOG.warning("a message cannot be acknowledged (%s)", error)

    def end(self, layout: Any, remove: bool, unused: Sequence[str]) -> None:
        self._run_calls()
        if remove and not layout.interop:
            self._own.delete()

    def detach(self) -> None:
        self.is_open = False
