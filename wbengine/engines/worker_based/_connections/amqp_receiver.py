"""Consume from RabbitMQ: take requests for free slots, and receive messages.

The broker delivers a message that is not yet acknowledged to no other worker, so a delivery takes a
request. With a ledger, the row of the request decides who runs it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final

import kombu

from wbengine import transports
from wbengine.engines.worker_based._connections import topology
from wbengine.engines.worker_based._connections.amqp_confirms import ReplyPublisher, refuses
from wbengine.engines.worker_based._connections.consumer_loop import grouped, settle_all
from wbengine.engines.worker_based._connections.kombu_connection import (
    KombuConsumerLoop,
    KombuPrefetcher,
    KombuReceiver,
)
from wbengine.engines.worker_based._connections.receiver import (
    OWN_TAG,
    Consume,
    Prefetcher,
    Receiver,
)
from wbengine.engines.worker_based._connections.sender import DEFERRED_SECONDS, OutgoingMessage
from wbengine.transports import _reasons
from wbengine.transports._amqp.amqp_connection import AmqpChannel, AmqpConnection
from wbengine.transports._amqp.amqp_frames import Delivery
from wbengine.transports._broker import MAX_BATCH_BYTES

LOG = logging.getLogger(__name__)

#: After a refused operation, seconds in which replies use another channel.
REFUSED_PAUSE_SECONDS: Final = 60.0

#: Non-urgent acknowledgements are sent after this time or this number of messages.
ACK_DELAY_SECONDS: Final = 0.05
MAX_DELAYED_ACKS: Final = 64


class AmqpPrefetcher(KombuPrefetcher):
    """The prefetcher for RabbitMQ: each free slot is a separate consumer.

    Requests are delivered only to free slots. The others remain in the broker, where other workers
    can consume them and the broker orders them by priority.

    RabbitMQ serves the consumers of several queues without an order. Therefore the queues are
    polled in order for each request. This costs a round trip for each empty queue. While all queues
    are empty and slots are free, all queues are consumed until a request arrives.
    """

    def __init__(self, queues: Sequence[str], slots: int) -> None:
        super().__init__(queues, slots)
        #: The channel for acknowledgements, thread-safe; None if it is closed.
        self.amqp: AmqpChannel | None = None
        # The last message of each consumer, by its tag.
        self._last_by_consumer: dict[str, Any] = {}
        self._arrived: set[Any] = set()
        self._must_poll = False

    def _open(self, connection: AmqpConnection) -> Any:
        assert self._layout is not None
        self.amqp = connection.channel(self._layout.exchange.name)
        return self.amqp.raw

    @property
    def _in_order(self) -> bool:
        return len(self.queues) > 1 and self.slots > 0

    def end(self) -> None:
        super().end()
        self.amqp = None
        self._last_by_consumer.clear()
        self._arrived.clear()

    def adjust(self) -> None:
        if self.channel is None or not self.open:
            return
        if self._in_order:
            self._must_poll = True
            return
        consumer_count = max(0, self.slots - self._uncounted()) if self.slots else len(self.queues)
        if not self._last_by_consumer and consumer_count:
            self.channel.basic_qos(0, 1 if self.slots else 0, False)
        names = self._names()
        for number in itertools.count():
            if len(self._last_by_consumer) >= consumer_count:
                break
            self._consume(f"{number}", names[number % len(names)])

    def _uncounted(self) -> int:
        held, arrived = self.held, self._arrived
        counted = sum(
            each in held or each in arrived for each in tuple(self._last_by_consumer.values())
        )
        return len(held) + len(arrived) - counted

    def run_due(self, now: float) -> None:
        super().run_due(now)
        if self._must_poll and self.channel is not None and self.open:
            self._must_poll = False
            self._poll_queues()

    def _poll_queues(self) -> None:
        """Receive requests while slots are free, each from the first queue that has one."""
        names = self._names()
        while (room := self._free_slots()) > 0:
            assert self.amqp is not None
            message = next(filter(None, map(self.amqp.get, names)), None)
            if message is None:
                break
            self._pass_on(message)
        if room <= 0:
            self._cancel()
            return
        if not self._last_by_consumer:
            self.channel.basic_qos(0, 1, False)
        for number, name in enumerate(names):
            self._consume(f"{number}", name)

    def _free_slots(self) -> int:
        return self.slots - len(self.held) - len(self._arrived)

    def _names(self) -> list[str]:
        assert self._layout is not None
        return [self._layout.shared_name(name) for name in self.queues]

    def _consume(self, tag: str, name: str) -> None:
        if tag not in self._last_by_consumer:
            assert self.amqp is not None
            self._last_by_consumer[tag] = None
            self.amqp.consume(name, tag, self._deliver, nowait=True)

    def _deliver(self, message: Delivery) -> None:
        if message.consumer_tag in self._last_by_consumer:
            self._last_by_consumer[message.consumer_tag] = message
        self._pass_on(message)

    def _pass_on(self, message: Any) -> None:
        self._arrived.add(message)
        assert self._callback is not None
        self._callback(message)

    def _cancel(self) -> None:
        for tag in tuple(self._last_by_consumer):
            # A pause waits for the reply: no delivery follows it.
            self.channel.basic_cancel(tag, nowait=self.open or self.blocked)
        self._last_by_consumer.clear()

    def admits(self, message: Any) -> bool:
        self._arrived.discard(message)
        if self._in_order:
            # The preceding queues must be polled before this consumer gets another request.
            self._cancel_consumer_of(message)
            self._must_poll = True
        return self.open and (not self.slots or len(self.held) < self.slots)

    def free(self, message: Any) -> None:
        if self.held.pop(message, None) is None:
            return
        self._acknowledged_early.discard(message)
        # Otherwise the acknowledgement makes the broker deliver the next request.
        if self._in_order or self._last_by_consumer.get(_tag(message), self) is not message:
            self.adjust()

    def free_acknowledged(self, message: Delivery) -> bool:
        """`free` an acknowledged request in any thread; return whether `adjust` must be called."""
        self.held.pop(message, None)
        return self._in_order or self._last_by_consumer.get(message.consumer_tag) is not message

    def _acknowledge(self, message: Any) -> bool:
        channel = self.amqp
        if channel is None or not channel.claim(message):
            return False
        self._keep_slot(message)
        channel.connection.put(channel.receipt(message))
        channel.connection.flush()
        return True

    def _keep_slot(self, message: Any) -> None:
        if self.slots:
            self._cancel_consumer_of(message)

    def _cancel_consumer_of(self, message: Any) -> None:
        """Cancel the consumer of a message, unless a later one has its tag."""
        tag = _tag(message)
        if self._last_by_consumer.get(tag, self) is message:
            del self._last_by_consumer[tag]
            self.channel.basic_cancel(tag, nowait=True)


def _tag(message: Any) -> str:
    return str((message.delivery_info or {}).get("consumer_tag"))


class AmqpReceiver(KombuReceiver):
    """Consumes from RabbitMQ.

    Messages are passed on after a read: publishing or acknowledging during a read would
    misdirect frames.
    """

    def __init__(
        self,
        connection: kombu.Connection,
        target: transports.Target,
        layout: topology.Topology,
        work: AmqpPrefetcher,
        refused: Counter[str],
        replies_from: float,
    ) -> None:
        """Create a receiver.

        :param replies_from: time after which replies are published on its channel.
        """
        super().__init__(connection, target, layout, work, refused)
        self._amqp = AmqpConnection(connection)
        self._replies_from = replies_from
        #: Publishes replies.
        self.replies: ReplyPublisher | None = None
        # Delivered messages that are not passed on yet, and their size in bytes.
        self._inbox: deque[tuple[Consume, Any]] = deque()
        self._inbox_bytes = 0
        self.wake = self._amqp.wake_up

    def _begin(self, on_own: Consume, on_work: Consume) -> None:
        channel = self._amqp.channel()
        self.channel = channel.raw
        self._own = self._layout.declare_own(self.channel)
        channel.consume(self._own.name, OWN_TAG, lambda message: self._enqueue_own(on_own, message))
        work = self._work
        work.begin(self._amqp, self._layout, lambda message: self._enqueue(on_work, message))
        assert isinstance(work, AmqpPrefetcher)
        # For TaskFlow's peers, publishing may first need a request to the broker.
        if work.amqp is not None and not self._layout.interop:
            self.replies = ReplyPublisher(work.amqp, self._layout, self._send, self._replies_from)

    def _enqueue(self, handle: Consume, message: Any) -> None:
        self._inbox.append((handle, message))
        self._inbox_bytes += len(message.body)

    def _enqueue_own(self, handle: Consume, message: Any) -> None:
        # Several messages arrive only while an AMQP method waits for its reply.
        if self._inbox and self._inbox_bytes + len(message.body) > MAX_BATCH_BYTES:
            message.requeue()
        else:
            self._enqueue(handle, message)

    def _next(self) -> tuple[Consume, Any]:
        handle, message = self._inbox.popleft()
        self._inbox_bytes -= len(message.body)
        return handle, message

    @property
    def is_blocked(self) -> bool:  # type: ignore[override]
        return self._amqp.is_blocked

    def drain(self, timeout: float) -> None:
        assert self._echo is not None
        due = self._echo.next_due()
        if self._work.queues:
            due = min(due, self._work.next_due() or due)
            self._work.blocked = self.is_blocked
        timeout = min(timeout, max(0.001, due - time.monotonic()))
        receive = self._amqp.receive if self.replies is None else self.replies.confirms.read
        receive(0 if self._inbox else timeout)
        if self._inbox:
            with self._amqp.together():
                while self._inbox:
                    handle, message = self._next()
                    handle(message)

    def together(self) -> contextlib.AbstractContextManager[None]:
        return self._amqp.together()

    def delete_private_queue(self, name: str) -> None:
        if not self._layout.interop:
            self._layout.delete_private_queue(self._connection, name)

    def _stop(self) -> None:
        while self._inbox:  # These were delivered, but not passed on.
            _, message = self._next()
            message.requeue()
        self.channel.basic_cancel(OWN_TAG)

    def end(self, remove: bool) -> None:
        if self.is_blocked:
            return  # The broker would not read the commands.
        super().end(remove)
        # The broker regards a queue as empty if all its messages are delivered.
        self._layout.delete_unused(self._connection, () if self._work.held else self._work.queues)

    def drop(self) -> None:
        self._amqp.drop()

    def close(self) -> None:
        self._inbox.clear()
        super().close()
        if self.replies is not None:
            self.replies.close()
        self._amqp.close()


class AmqpConsumerLoop(KombuConsumerLoop):
    """Consumes from RabbitMQ, and publishes replies together with their acknowledgements."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # Time after which replies are published on the receiving channel.
        self._replies_from = 0.0
        self._receipts: deque[Any] = deque()
        self._receipts_due = 0.0

    def _receiver_of(self, connection: Any) -> Receiver:
        return AmqpReceiver(
            connection, self._target, self._topology, self.work, self._refused, self._replies_from
        )

    def _prefetcher(self, queues: Sequence[str], slots: int) -> Prefetcher:
        return AmqpPrefetcher(queues, slots)

    def _on_error(self, error: BaseException) -> None:
        if refuses(error):
            # The sender can identify the reply that is the cause.
            self._replies_from = time.monotonic() + REFUSED_PAUSE_SECONDS
            LOG.warning(
                "the broker refused an operation on the receiving channel (%s): for"
                " %.0f s replies use another channel",
                _reasons.explain(error),
                REFUSED_PAUSE_SECONDS,
            )

    def ack_later(self, *messages: Any) -> None:
        if self.work.queues:
            self._ack_soon(messages)
        else:
            self._receipts.extend(messages)  # This does not wake the thread.

    def _acknowledge(self, now: float) -> float | None:
        if not self._receipts:
            return None
        self._receipts_due = self._receipts_due or now + ACK_DELAY_SECONDS
        if now < self._receipts_due and len(self._receipts) < MAX_DELAYED_ACKS:
            return self._receipts_due
        self._receipts_due = 0.0
        self._acknowledge_now([self._receipts.popleft() for _ in range(len(self._receipts))])
        return None

    def _acknowledge_now(self, messages: list[Any]) -> None:
        for channel, group in grouped(messages, "amqp_channel").items():
            settle_all(channel, group)

    def answer(self, message: OutgoingMessage, request: Any, soon: bool) -> bool:
        receiver = self._receiver  # Read once: the consumer's thread may reset it at any time.
        replies = receiver.replies if isinstance(receiver, AmqpReceiver) else None
        if replies is None or not replies.answer(message, request, self._free_acknowledged, soon):
            return False
        if soon:
            self.wake_by(time.monotonic() + DEFERRED_SECONDS)
        return True

    def _free_acknowledged(self, request: Any) -> None:
        work = self.work
        if isinstance(work, AmqpPrefetcher) and work.free_acknowledged(request):
            self.call_soon(work.adjust)
