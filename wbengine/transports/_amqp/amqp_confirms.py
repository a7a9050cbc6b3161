"""Publish to RabbitMQ without waiting for the broker's confirm of each message."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from amqp import exceptions as amqp_errors

from wbengine import exceptions as exc
from wbengine._concurrency.crash_points import crashpoint
from wbengine.transports._amqp import amqp_frames as frames
from wbengine.transports._amqp.amqp_connection import AmqpChannel

LOG: Final = logging.getLogger(__name__)

CONFIRM_TIMEOUT_SECONDS: Final = 15.0

MAX_UNCONFIRMED: Final = 2000

#: Seconds for which confirms are collected, unless a thread waits for one.
_GATHER_SECONDS: Final = 0.02

_TRANSIENT: Final = 1
_PERSISTENT: Final = 2

#: Channel errors that the same message always causes.
_REFUSAL_ERRORS: Final = (amqp_errors.PreconditionFailed, amqp_errors.AccessRefused)


class Outbox(Protocol):
    """The sender of a process, as writers use it. Its messages are `OutgoingMessage` objects."""

    def send(self, message: Any, *, defer: bool) -> None:
        """Publish a message."""

    def report_sent(self, messages: Iterable[Any], unrouted: Iterable[Any] = ()) -> None:
        """Report that the broker confirmed messages, and that `unrouted` ones have no queue."""

    def report_replies(self, messages: Iterable[Any]) -> None:
        """Report that the broker confirmed messages of a receiving connection."""

    def report_missing_queue(self) -> None:
        """Report that an exchange or a queue is missing."""

    def fail(self, message: Any, error: Exception) -> None:
        """Report that a message can never be published."""


class Sent:
    __slots__ = ("at", "frames", "message", "name", "number", "returned")

    def __init__(self, message: Any, frames: bytes, name: str | None) -> None:
        self.message = message
        self.frames = frames
        #: The message id that identifies it when the broker returns it.
        self.name = name
        self.number = 0
        self.at = 0.0
        self.returned = False


class PublisherConfirms:
    """Messages that are published on one AMQP channel in confirm mode.

    `report` calls `settle([sent, ...])`, in order, with the confirmed messages. `window` limits
    the number of unconfirmed messages. After the loss of the connection, the broker may or may not
    have the `unconfirmed` messages.

    Only the thread that reads the connection may call methods, except `prepare` and `send`, which
    are thread-safe (not with TaskFlow's layout).
    """

    def __init__(
        self,
        channel: AmqpChannel,
        layout: Any,
        settle: Callable[[list[Sent]], None],
        window: int,
    ) -> None:
        self.channel = channel
        self._connection = channel.connection
        self._plain = layout.interop is not None
        self._peers = layout.peer_queues(amqp=True)
        self._settle = settle
        self._window = window
        self._channel = channel.raw
        self._channel.confirm_select()
        self._channel.events["basic_ack"].add(self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        channel.on_receipt = self._on_ack
        self._number = 0
        self._names = itertools.count(1)
        self._confirmed: list[Sent] = []
        # Numbers must follow the order in which frames are written.
        self._lock = threading.Lock()
        self._closed = False
        layout.declare_exchange(self._channel)
        self.unconfirmed: deque[Sent] = deque()

    @property
    def room(self) -> int:
        if self._connection.is_blocked or self._closed or self._connection.is_stuck:
            return 0
        return self._window - len(self.unconfirmed)

    @property
    def is_idle(self) -> bool:
        return not (self.unconfirmed or self._confirmed)

    def prepare(self, message: Any) -> Sent:
        """Encode a message.

        :raises Exception: if it cannot be sent.
        """
        envelope = message.envelope
        if self._plain:
            self._peers.declare(self._channel, envelope)
        mandatory = message.hooks.mandatory
        name = str(next(self._names)) if mandatory else None
        head = frames.properties(
            envelope.type,
            envelope.signed_headers,
            _PERSISTENT if self._plain or envelope.persistent else _TRANSIENT,
            envelope.priority,
            envelope.correlation_id,
            envelope.reply_to,
            name,
        )
        data = self.channel.encoder.publish(envelope.routing_key, mandatory, head, envelope.encoded)
        return Sent(message, data, name)

    def send(self, sent: Sent, then: bytes = b"") -> bool:
        """Write a prepared message, then the frames `then`; return False if this is closed."""
        with self._lock:
            if self._closed:
                return False
            self._number += 1
            sent.number = self._number
            sent.at = time.monotonic()
            self.unconfirmed.append(sent)
            self._connection.put(sent.frames + then if then else sent.frames)
        sent.frames = b""
        return True

    def close(self) -> list[Sent]:
        with self._lock:
            self._closed = True
            return list(self.unconfirmed)

    def widen(self) -> None:
        self._window = MAX_UNCONFIRMED

    def gather(self) -> None:
        """Wait shortly, so that more confirms arrive, unless many messages are unconfirmed."""
        if self.room > self._window // 2:
            self._connection.wait_for_wake_up(_GATHER_SECONDS)

    def read(self, timeout: float | None) -> bool:
        """`receive` the connection and report confirmed messages.

        :raises TransportFailure: if a confirm is overdue although the broker accepts messages.
        """
        deadline = self._confirm_deadline()
        if deadline < math.inf:
            remaining = max(0.01, deadline - time.monotonic())
            timeout = remaining if timeout is None else min(timeout, remaining)
        try:
            has_data = self._connection.receive(timeout)
        finally:  # The confirms count even if the connection is lost.
            self.report()
        # Check after reading: after a pause of the process, confirms may be unread.
        if not has_data and time.monotonic() > self._confirm_deadline():
            raise exc.TransportFailure(
                f"the broker confirmed no message for {CONFIRM_TIMEOUT_SECONDS:.0f} s"
            )
        return has_data

    def _confirm_deadline(self) -> float:
        try:
            first = self.unconfirmed[0]
        except IndexError:
            return math.inf
        return max(first.at, self._connection.accepting_since) + CONFIRM_TIMEOUT_SECONDS

    def report(self) -> None:
        if self._confirmed:
            self._settle(self._confirmed)
            self._confirmed.clear()

    # Called during a read, in which publishing is not permitted.

    def _on_ack(self, number: int, multiple: bool) -> None:
        waiting = self.unconfirmed
        if multiple or (waiting and waiting[0].number == number):
            while waiting and waiting[0].number <= number:
                self._confirmed.append(waiting[0])  # Append before popleft: see `is_idle`.
                waiting.popleft()
            return
        with self._lock:
            for sent in waiting:
                if sent.number == number:
                    self._confirmed.append(sent)
                    waiting.remove(sent)
                    return

    def _on_nack(self, number: int, multiple: bool) -> None:
        raise exc.TransportFailure("the broker refused to store a message")

    def _on_return(self, error: Exception, exchange: str, key: str, message: Any) -> None:
        name = str(message.properties.get("message_id"))
        with self._lock:
            for sent in self.unconfirmed:
                if sent.name == name:
                    sent.returned = True
                    return


def refuses(error: BaseException) -> bool:
    """Return whether the broker will always refuse the same message."""
    return isinstance(error, _REFUSAL_ERRORS)


class ReplyPublisher:
    """Publishes replies on the channel on which their requests were delivered.

    A reply and the acknowledgement of its request are written together. The broker processes them
    in this order, so the worker need not wait for the confirm of the reply. If the connection is
    lost, unconfirmed replies are published again by the `outbox`.

    `answer` is thread-safe; other methods belong to the thread of the connection.
    """

    def __init__(self, channel: AmqpChannel, layout: Any, outbox: Outbox, since: float) -> None:
        """Create a publisher that publishes no replies before `since` (monotonic clock)."""
        self._channel = channel
        self._since = since
        self._outbox = outbox
        self.confirms = PublisherConfirms(channel, layout, self._confirmed, MAX_UNCONFIRMED)

    def answer(
        self,
        message: Any,
        request: frames.Delivery,
        freed: Callable[[frames.Delivery], None],
        soon: bool,
    ) -> bool:
        """Publish a reply and acknowledge its request; see `MessageConsumer.answer`."""
        confirms, channel = self.confirms, self._channel
        if confirms.room <= 0:
            return False
        if self._since and time.monotonic() < self._since:
            return False
        try:
            sent = confirms.prepare(message)
        except Exception:
            return False  # The sender then reports the error.
        if not channel.claim(request):
            return False
        freed(request)
        message.sent = True
        crashpoint("sender.before-publish")
        if not confirms.send(sent, then=channel.receipt(request)):
            # The connection is closed.
            self._resend(message)
            return True
        if not soon:
            channel.connection.flush()
        crashpoint("sender.after-publish")
        return True

    # Methods for the connection's thread.

    def close(self) -> None:
        """Close the publisher and resend unconfirmed replies."""
        unconfirmed = self.confirms.close()
        self.confirms.report()
        if unconfirmed:
            LOG.debug(
                "resending %d replies that were unconfirmed when their connection closed",
                len(unconfirmed),
            )
        for sent in unconfirmed:
            self._resend(sent.message)

    def _resend(self, message: Any) -> None:
        message.sent = False
        self._outbox.send(message, defer=True)

    def _confirmed(self, confirmed: Sequence[Sent]) -> None:
        self._outbox.report_replies(sent.message for sent in confirmed)
