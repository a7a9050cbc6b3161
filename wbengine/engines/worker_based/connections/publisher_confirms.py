"""Publishing to RabbitMQ without waiting: what is sent is noted, until the broker confirms it."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from amqp import exceptions as amqp_errors

from wbengine import exceptions as exc
from wbengine.engines.worker_based.connections import topology
from wbengine.transports import _amqp_frames as frames

if TYPE_CHECKING:
    from wbengine.engines.worker_based.connections import amqp_connection
    from wbengine.engines.worker_based.connections.outgoing import OutgoingMessage

#: Seconds that a broker has to confirm what it was sent.
CONFIRM_TIMEOUT: Final = 15.0

#: At most so many messages are on their way at once.
WINDOW: Final = 2000

#: Seconds after which what it confirmed meanwhile is read together: nobody waits for one of them.
_GATHER: Final = 0.02

_TRANSIENT: Final = 1
_PERSISTENT: Final = 2

#: Channel errors that are about what was published, and come again with it.
_REFUSALS: Final = (amqp_errors.PreconditionFailed, amqp_errors.AccessRefused)


class Sent:
    """A message that is written to the broker, or is about to be."""

    __slots__ = ("at", "frames", "message", "name", "number", "returned")

    def __init__(self, message: OutgoingMessage, frames: bytes, name: str | None) -> None:
        self.message = message
        self.frames = frames
        #: What the broker calls it that gives it back.
        self.name = name
        self.number = 0
        self.at = 0.0
        self.returned = False


class PublisherConfirms:
    """What is published on one AMQP channel, in the broker's confirm mode.

    `settle([sent, ...])` is called, in order, for what was confirmed, by `report`.  `window` is how
    many may be on their way at once.  After a connection broke, `unconfirmed` tells of what nobody
    knows whether it arrived.

    Of the thread that reads the connection; `prepare` and `send` of any, where the layout is ours.
    """

    def __init__(
        self,
        channel: amqp_connection.AmqpChannel,
        layout: topology.Topology,
        settle: Callable[[list[Sent]], None],
        window: int,
    ) -> None:
        self.channel = channel
        self._connection = channel.connection
        self._plain = layout.interop is not None
        self._peers = topology.PeerQueues(layout, amqp=True)
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
        # Numbers are given in the order in which frames are written.
        self._lock = threading.Lock()
        self._closed = False
        layout.declare_exchange(self._channel)
        self.unconfirmed: deque[Sent] = deque()

    @property
    def room(self) -> int:
        """How many messages more may be written."""
        if self._connection.is_blocked or self._closed or self._connection.is_stuck:
            return 0
        return self._window - len(self.unconfirmed)

    @property
    def is_idle(self) -> bool:
        """Whether all was confirmed, and whoever wanted to know is told."""
        return not (self.unconfirmed or self._confirmed)

    def prepare(self, message: OutgoingMessage) -> Sent:
        """A message as it is sent.

        :raises Exception: it cannot be sent, now or ever.
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
        said = self.channel.frames(envelope.routing_key, mandatory, head, envelope.encoded)
        return Sent(message, said, name)

    def send(self, sent: Sent, then: bytes = b"") -> bool:
        """Write what was prepared, and `then` right behind it; False: it is too late for that.

        It goes out with the next `flush` of the connection.
        """
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
        """Send nothing more.  Returns what was sent and not confirmed."""
        with self._lock:
            self._closed = True
            return list(self.unconfirmed)

    def widen(self) -> None:
        """Let many be on their way from now on."""
        self._window = WINDOW

    def gather(self) -> None:
        """Let confirms gather for a moment, unless many are waited for, or somebody rings."""
        if self.room > self._window // 2:
            self._connection.wait_for_ring(_GATHER)

    def read(self, timeout: float | None) -> bool:
        """`hear` what the broker says on the connection, and tell of what it confirmed.

        :raises TransportFailure: it does not confirm what it should have by now.  While it takes no
            messages it is waited for: what it was sent arrives when it goes on.
        """
        until = self._until()
        if until < math.inf:
            left = max(0.01, until - time.monotonic())
            timeout = left if timeout is None else min(timeout, left)
        try:
            spoke = self._connection.hear(timeout)
        finally:  # what was confirmed is, whatever became of the connection since
            self.report()
        # Who was stopped for a while has to read first.
        if not spoke and time.monotonic() > self._until():
            raise exc.TransportFailure(f"the broker confirmed nothing for {CONFIRM_TIMEOUT:.0f} s")
        return spoke

    def _until(self) -> float:
        """When the broker should have confirmed something; infinity: there is nothing."""
        try:
            first = self.unconfirmed[0]
        except IndexError:
            return math.inf
        return max(first.at, self._connection.takes_since) + CONFIRM_TIMEOUT

    def report(self) -> None:
        """Tell of what was confirmed until now."""
        if self._confirmed:
            self._settle(self._confirmed)
            self._confirmed.clear()

    # What the broker says, in the midst of reading: nothing may be published here.

    def _on_ack(self, number: int, multiple: bool) -> None:
        waiting = self.unconfirmed
        if multiple or (waiting and waiting[0].number == number):
            while waiting and waiting[0].number <= number:
                self._confirmed.append(waiting[0])  # before it leaves: see `is_idle`
                waiting.popleft()
            return
        with self._lock:
            for sent in waiting:
                if sent.number == number:
                    self._confirmed.append(sent)
                    waiting.remove(sent)
                    return

    def _on_nack(self, number: int, multiple: bool) -> None:
        raise exc.TransportFailure("the broker refused to keep a message")

    def _on_return(self, error: Exception, exchange: str, key: str, message: Any) -> None:
        name = str(message.properties.get("message_id"))
        with self._lock:
            for sent in self.unconfirmed:
                if sent.name == name:
                    sent.returned = True
                    return


def refuses(error: BaseException) -> bool:
    """Whether the broker will refuse the same message for ever."""
    return isinstance(error, _REFUSALS)
