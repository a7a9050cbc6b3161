"""Consume on one connection: the private queue, and shared queues of requests.

At most one request for each slot is taken, from the first queue that has one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine import transports
from wbengine.engines.worker_based._connections import topology
from wbengine.engines.worker_based._connections.sender import (
    DeliveryHooks,
    OutgoingMessage,
    Sender,
)
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.transports._receiving import MessageConsumer, ReceivingLink

#: Minimum seconds between two declarations if queues may be missing.
DECLARE_PAUSE_SECONDS: Final = 1.0

#: Seconds without a message after which a consumer sends an echo message to itself, and seconds in
#: which that message must arrive.
ECHO_AFTER_SECONDS: Final = 10.0
DEAF_AFTER_SECONDS: Final = 15.0

#: Type of the message that a consumer sends to itself.
PING: Final = "WBE_PING"

Consume = Callable[[Any], None]


class Echo:
    """Detects a consumer that no longer receives, by means of messages that it sends to itself.

    The owner publishes these messages and reports received ones. All times are on the same
    monotonic clock.
    """

    def __init__(self, quiet: float, grace: float, now: float) -> None:
        self._quiet = quiet
        self._grace = grace
        self.last_message_at = self._last_check = now
        self._is_pinging = False
        self._pinged_at: float | None = None

    def record_message(self, now: float) -> None:
        self.last_message_at = now
        self._is_pinging = False
        self._pinged_at = None

    def record_ping(self, now: float) -> None:
        if self._is_pinging:
            self._pinged_at = now

    def begins_ping(self, now: float) -> bool:
        """Return whether an echo message must be published now; True once per silence."""
        if self._is_pinging or now - self.last_message_at < self._quiet:
            return False
        self._is_pinging = True
        return True

    def is_deaf(self, now: float) -> bool:
        """Return whether the echo message is overdue. Call this after each read.

        If the calls themselves are late, nothing is overdue: messages may be unread.
        """
        late, self._last_check = now - self._last_check > self._grace / 2, now
        if self._pinged_at is None:
            return False
        if late:
            self._pinged_at = now
        return now - self._pinged_at > self._grace

    def next_due(self) -> float:
        if self._is_pinging:
            return self._last_check + self._grace / 4
        return self.last_message_at + self._quiet


class Prefetcher:
    """The requests of a process, over all of its connections.

    `held` are the requests that were passed on and not completed. Each uses a slot, even after
    the loss of its connection or an early acknowledgement. `slots` = 0: no limit.

    Call methods only in the consumer's thread; any thread may read and change `held`.
    """

    def __init__(self, queues: Sequence[str], slots: int) -> None:
        self.queues = tuple(queues)
        self.slots = slots
        self.open = True
        self.channel: MessageConsumer | None = None
        self.held: dict[Any, None] = {}
        self._names: list[str] = []

    def begin(self, consumer: MessageConsumer, names: list[str]) -> None:
        """Consume on a connection, where the queues have these names."""
        self.channel, self._names = consumer, names
        self.adjust()

    def end(self) -> None:
        self.channel = None

    def pause(self) -> None:
        """Stop consuming. Messages that were delivered before are still passed on."""
        self.open = False
        if self.channel is not None:
            self.channel.cancel()

    def resume(self) -> None:
        self.open = True
        self.adjust()

    def adjust(self) -> None:
        """Consume as many requests as there are free slots."""
        if self.channel is None or not self.open:
            return
        # The channel counts only its own unsettled messages.
        room = self.slots - sum(each.channel is not self.channel for each in tuple(self.held))
        if self.slots and room <= 0:
            self.channel.cancel()  # For the channel, 0 means no limit.
        else:
            self.channel.consume(self._names, max(0, room))


class Receiver:
    """Consumes the private queue and shared queues on one connection. Not thread-safe.

    It passes messages to `on_own(message)` and `on_work(message)`.
    """

    def __init__(
        self,
        link: ReceivingLink,
        target: transports.Target,
        layout: topology.Topology,
        work: Prefetcher,
        sender: Sender,
    ) -> None:
        self.link = link
        self._layout = layout
        self._work = work
        self._sender = sender
        self._echo: Echo | None = None
        if not target.is_local:
            self._echo = Echo(ECHO_AFTER_SECONDS, DEAF_AFTER_SECONDS, time.monotonic())
        self._declared = self._declare_due = -math.inf
        self.channel: MessageConsumer | None = None

    def begin(self, on_own: Consume, on_work: Consume) -> None:
        """Declare queues and consume."""
        own = self.link.consumer(self._recording(on_own), None)
        work = None
        if self._work.queues:
            work = self.link.consumer(self._recording(on_work), self._sender)
        self._declare()
        own.consume(self._layout.own_queues)
        self.channel = own
        if work is not None:
            self._work.begin(work, [*map(self._layout.shared_name, self._work.queues)])

    def _declare(self) -> None:
        """Declare all queues."""
        # Set first, so that a queue that is lost meanwhile causes another declaration.
        self._declared = time.monotonic()
        self._declare_due = self._declared + self.link.declare_seconds
        self.link.declare(self._layout, self._work.queues)

    def _recording(self, handle: Consume) -> Consume:
        echo = self._echo
        if echo is None:
            return handle

        def handle_recorded(message: Any) -> None:
            echo.record_message(time.monotonic())
            if message.properties.get("type") == PING:
                message.ack()
            else:
                handle(message)

        return handle_recorded

    # Periodic work.

    def run_due(self, now: float) -> float:
        """Do the periodic work. Return the time at which the echo must be checked again.

        :raises TransportFailure: if the echo message is overdue.
        """
        # A broker that reads nothing would not reply.
        if now >= self._declare_due and not self.link.is_blocked:
            self._declare()
        echo = self._echo
        if echo is None:
            return math.inf
        if echo.begins_ping(now):
            ping = env.Envelope(PING, {}, routing_key=self._layout.topic)
            self._sender.send(OutgoingMessage(ping, _Pinging(echo)), defer=True)
        if echo.is_deaf(now):
            raise exc.TransportFailure(
                "the broker delivers no messages: a message from this process to itself did"
                " not arrive"
            )
        return echo.next_due()

    @property
    def last_message_at(self) -> float:
        """Time of the broker's last message (monotonic clock); now, if there are no echoes."""
        return time.monotonic() if self._echo is None else self._echo.last_message_at

    def declare_soon(self) -> None:
        """Declare queues again soon because they may be missing. Thread-safe."""
        self._declare_due = min(self._declare_due, self._declared + DECLARE_PAUSE_SECONDS)

    def end(self, remove: bool) -> None:
        """Stop consuming. If `remove`, also delete the private queue."""
        if self.link.is_blocked:
            return  # The broker would not read the commands.
        self._work.pause()
        if self.channel is not None:
            self.channel.cancel()
        self.link.end(self._layout, remove, () if self._work.held else self._work.queues)

    def close(self) -> None:
        """Release the resources of this receiver, but not the connection."""
        self._work.end()
        self.link.detach()


class _Pinging(DeliveryHooks):
    mandatory = True

    def __init__(self, echo: Echo) -> None:
        self._echo = echo

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        self._echo.record_ping(time.monotonic())
