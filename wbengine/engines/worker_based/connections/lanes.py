"""One channel of an AMQP connection: what is consumed, acknowledged and published on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from wbengine.transports import _amqp_frames as frames
from wbengine.transports._amqp_delivery import Delivery

if TYPE_CHECKING:
    from wbengine.engines.worker_based.connections import lines

__all__ = ["Lane"]

Handle = Callable[[Delivery], None]


class Lane:
    """A channel of a line.

    Its thread consumes; any thread may acknowledge and publish.  Each delivery is acknowledged once
    at most, whoever tries: a broker closes a channel for the second time.
    """

    def __init__(self, line: lines.Line, channel: Any, exchange: str, frame_max: int) -> None:
        self.line = line
        #: The same channel, of py-amqp, for what is said seldom; of the line's thread.
        self.channel = channel
        channel.auto_decode = False  # by whatever codec a message names
        self.number: int = channel.channel_id
        #: Told of what the broker confirmed: `(number, multiple)`; of the line's thread.
        self.on_receipt: Callable[[int, bool], None] | None = None
        self._frames = frames.Frames(self.number, exchange, frame_max)
        self._handlers: dict[str, Handle] = {}
        # What is not acknowledged, in order.
        self._owed: dict[int, None] = {}

    # Consuming.

    def consume(self, queue: str, tag: str, handle: Handle, *, nowait: bool = False) -> None:
        """Let `handle(delivery)` be called for what comes; while something is being read."""
        self._handlers[tag] = handle
        self.channel.basic_consume(queue, consumer_tag=tag, callback=self._read, nowait=nowait)

    def get(self, queue: str) -> Delivery | None:
        """The next message of a queue, if there is one."""
        raw = self.channel.basic_get(queue)
        if raw is None:
            return None
        found = Delivery.of(raw, self)
        self._owed[found.delivery_tag] = None
        return found

    def _read(self, raw: Any) -> None:
        self.deliver(Delivery.of(raw, self))

    def deliver(self, delivery: Delivery) -> None:
        """It came."""
        self._owed[delivery.delivery_tag] = None
        self._handlers[delivery.consumer_tag](delivery)

    # Acknowledging.

    def claim(self, delivery: Delivery) -> bool:
        """Whether it is the caller's to acknowledge from now on; nobody else's."""
        if self._owed.pop(delivery.delivery_tag, self) is self:
            return False
        delivery.acknowledged = True
        return True

    def receipt(self, delivery: Delivery) -> bytes:
        """What tells the broker that it was taken; by whom claimed it."""
        return self._frames.ack(delivery.delivery_tag)

    def ack(self, delivery: Delivery) -> None:
        if self.claim(delivery):
            self.line.put(self.receipt(delivery))
            self.line.flush()

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """`ack` each, those at the front of the line with one word; of the line's thread."""
        taken = {each.delivery_tag: each for each in deliveries}
        front = []
        for tag in self._owed:
            if tag not in taken:
                break
            front.append(taken.pop(tag))
        for each in front:
            self.claim(each)
        if front:
            self.line.put(self._frames.ack(front[-1].delivery_tag, multiple=True))
        for each in taken.values():
            if self.claim(each):
                self.line.put(self.receipt(each))
        self.line.flush()

    def reject(self, delivery: Delivery, requeue: bool) -> None:
        """Of the line's thread."""
        if self.claim(delivery):
            self.channel.basic_reject(delivery.delivery_tag, requeue=requeue)

    # Publishing.

    def frames(self, key: str, mandatory: bool, head: bytes, body: bytes) -> bytes:
        """What publishes a message.

        :raises Exception: it cannot be written.
        """
        return self._frames.publish(key, mandatory, head, body)
