"""Consume on one connection: the private queue, and shared queues of requests.

At most one request for each slot is taken, from the first queue that has one.
"""

from __future__ import annotations

import abc
import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine import transports
from wbengine.engines.worker_based._connections import topology
from wbengine.engines.worker_based._connections.sender import DeliveryHooks, OutgoingMessage
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.transports._broker import Broker, Consumer

#: Seconds after which queues are declared again: a cleaner of temporary files may have removed
#: them, or a broker after days without use.
DECLARE_SECONDS: Final = 60.0
LONG_DECLARE_SECONDS: Final = 3600.0

#: Minimum seconds between two declarations if queues may be missing.
DECLARE_PAUSE_SECONDS: Final = 1.0

#: Seconds without a message after which a consumer sends an echo message to itself, and seconds in
#: which that message must arrive.
ECHO_AFTER_SECONDS: Final = 10.0
DEAF_AFTER_SECONDS: Final = 15.0

#: Consumer tag of the private queue.
OWN_TAG: Final = "own"

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


class Prefetcher(abc.ABC):
    """The requests of a process, over all of its connections.

    `held` are the requests that were passed on and not completed. Each uses a slot, even after
    the loss of its connection or an early acknowledgement. `slots` = 0: no limit.

    Call methods only in the consumer's thread; any thread may read and change `held`.
    """

    def __init__(self, queues: Sequence[str], slots: int) -> None:
        self.queues = tuple(queues)
        self.slots = slots
        self.open = True
        self.channel: Any = None
        #: Arrival time of each request, oldest first.
        self.held: dict[Any, float] = {}

    def end(self) -> None:
        self.channel = None

    def pause(self) -> None:
        """Stop consuming. Messages that were delivered before are still passed on."""
        self.open = False
        self._cancel()

    def resume(self) -> None:
        self.open = True
        self.adjust()

    def adjust(self) -> None:
        """Consume as many requests as there are free slots."""
        if self.channel is None or not self.open:
            return
        # The channel counts only its own unacknowledged messages.
        room = self.slots - self._uncounted()
        if self.slots and room <= 0:
            self._cancel()  # For the channel, 0 means no limit.
        else:
            self._take(max(0, room))

    @abc.abstractmethod
    def _take(self, max_requests: int) -> None:
        """Consume at most this number of unacknowledged requests (0: no limit)."""

    @abc.abstractmethod
    def _cancel(self) -> None:
        """Stop consuming until the next `_take`."""

    def _uncounted(self) -> int:
        return sum(message.channel is not self.channel for message in tuple(self.held))

    def is_on_channel(self, message: Any) -> bool:
        return message.channel is self.channel

    def admits(self, message: Any) -> bool:
        """Return whether a delivered message may be passed on; else it is requeued."""
        return self.open

    def free(self, message: Any) -> None:
        if self.held.pop(message, None) is not None and not self.is_on_channel(message):
            self.adjust()


class BrokerPrefetcher(Prefetcher):
    """The prefetcher for a broker of wbengine, which serves queues in order."""

    channel: Consumer | None

    def begin(self, broker: Broker, callback: Callable[[Any], None]) -> None:
        """Consume on a connection; `callback(message)` receives each request."""
        if self.queues:
            self.channel = Consumer(broker, callback)
            self.adjust()

    def _take(self, max_requests: int) -> None:
        assert self.channel is not None
        self.channel.consume(self.queues, max_requests)

    def _cancel(self) -> None:
        if self.channel is not None:
            self.channel.cancel()


class Receiver(abc.ABC):
    """Consumes the private queue and shared queues on one connection. Not thread-safe.

    It passes messages to `on_own(message)` and `on_work(message)`, and counts unreadable ones in
    `refused`. Call `run_due` at `due`. Any thread may call `wake`, which interrupts `drain`.
    """

    wake: Callable[[], None] | None = None
    #: Waits for messages, at most these seconds, and passes them on. Raises TimeoutError if no
    #: message arrived.
    drain: Callable[[float], None]
    #: Whether the broker currently reads nothing from this connection.
    is_blocked = False

    def __init__(
        self, target: transports.Target, layout: topology.Topology, refused: Counter[str]
    ) -> None:
        self._layout = layout
        self._refused = refused
        self._echo: Echo | None = None
        self._can_fall_silent = not target.is_local
        self._send: Callable[[OutgoingMessage], None] = _cannot_send
        self._declare_due = 0.0
        self._declared = -math.inf
        self._must_declare = False
        self.channel: Any = None
        self.due = 0.0

    def begin(
        self,
        on_own: Consume,
        on_work: Consume,
        send: Callable[[OutgoingMessage], None],
    ) -> None:
        """Declare queues and consume. `send` publishes."""
        self._send = send
        if self._can_fall_silent:
            self._echo = Echo(ECHO_AFTER_SECONDS, DEAF_AFTER_SECONDS, time.monotonic())
        self._begin(self._recording(on_own), self._recording(on_work))
        self._set_due(time.monotonic())

    @abc.abstractmethod
    def _begin(self, on_own: Consume, on_work: Consume) -> None: ...

    @abc.abstractmethod
    def _declare(self) -> None:
        """Declare all queues again."""

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

    def run_due(self, now: float) -> None:
        """Do the periodic work.

        :raises TransportFailure: if the echo message is overdue.
        """
        mistrusts = self._must_declare and now >= self._declared + DECLARE_PAUSE_SECONDS
        if self.is_blocked:
            pass  # The broker would not reply.
        elif mistrusts or now >= self._declare_due:
            self._must_declare = (
                False  # Reset first, so that a later loss causes another declaration.
            )
            if mistrusts or self._declare_due:
                self._declare()
            self._declared = now
            self._declare_due = now + self._declare_period
        if self._echo is not None:
            self._check_echo(self._echo, now)
        self._set_due(now)

    @property
    def _declare_period(self) -> float:
        return LONG_DECLARE_SECONDS

    @property
    def last_message_at(self) -> float:
        """Time of the broker's last message (monotonic clock); now, if there are no echoes."""
        return time.monotonic() if self._echo is None else self._echo.last_message_at

    def declare_soon(self) -> None:
        """Declare queues again soon because they may be missing. Thread-safe."""
        self._must_declare = True
        self.due = self._declared + DECLARE_PAUSE_SECONDS

    def _set_due(self, now: float) -> None:
        # With echoes, each message may change the time.
        self.due = self._declare_due if self._echo is None else now
        # Read this after the assignment: `declare_soon` may run at the same time.
        if self._must_declare:
            self.due = min(self.due, self._declared + DECLARE_PAUSE_SECONDS)

    def _check_echo(self, echo: Echo, now: float) -> None:
        if echo.begins_ping(now):
            ping = env.Envelope(PING, {}, routing_key=self._layout.topic)
            self._send(OutgoingMessage(ping, _Pinging(echo)))
        if echo.is_deaf(now):
            raise exc.TransportFailure(
                "the broker delivers no messages: a message from this process to itself did"
                " not arrive"
            )

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Send the acknowledgements of this context together, where possible."""
        return contextlib.nullcontext()

    def delete_private_queue(self, name: str) -> None:  # noqa: B027 - most go by themselves
        """Remove the queue of a stopped process, if the broker does not remove it."""

    @abc.abstractmethod
    def end(self, remove: bool) -> None:
        """Stop consuming. If `remove`, also delete the private queue."""

    def drop(self) -> None:  # noqa: B027 - it is closed anyway
        """Discard a broken connection."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release the resources of this receiver, but not the connection."""


class BrokerReceiver(Receiver):
    def __init__(
        self,
        broker: Broker,
        target: transports.Target,
        layout: topology.Topology,
        work: BrokerPrefetcher,
        refused: Counter[str],
    ) -> None:
        super().__init__(target, layout, refused)
        self._broker = broker
        self._work = work
        self.wake, self.drain = broker.wake, broker.drain
        broker.on_discard = self._count_discarded

    def _begin(self, on_own: Consume, on_work: Consume) -> None:
        self._declare()
        self.channel = Consumer(self._broker, on_own)
        self.channel.consume((self._layout.topic,))
        self._work.begin(self._broker, on_work)

    @property
    def _declare_period(self) -> float:
        return DECLARE_SECONDS

    def _count_discarded(self) -> None:
        self._refused["unreadable"] += 1

    def _declare(self) -> None:
        self._layout.declare_queues_on(self._broker, self._work.queues)

    def end(self, remove: bool) -> None:
        self._work.pause()
        self.channel.cancel()
        if remove:
            self._broker.delete_queue(self._layout.topic)

    def close(self) -> None:
        self._work.end()


class _Pinging(DeliveryHooks):
    mandatory = True

    def __init__(self, echo: Echo) -> None:
        self._echo = echo

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        self._echo.record_ping(time.monotonic())


def _cannot_send(message: OutgoingMessage) -> None:
    raise AssertionError("no publishing has begun")
