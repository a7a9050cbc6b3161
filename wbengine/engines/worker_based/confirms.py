"""Publishing to RabbitMQ without waiting: what is sent is noted, until the broker confirms it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from amqp import exceptions as amqp_errors
from amqp import spec

from wbengine import exceptions as exc
from wbengine.engines.worker_based import connecting, topology, writing

if TYPE_CHECKING:
    from wbengine.engines.worker_based.parcels import Parcel

LOG = logging.getLogger(__name__)

#: Seconds that a broker has to confirm what it was sent.
CONFIRM_TIMEOUT: Final = 15.0

#: At most so many parcels are on their way at once.
WINDOW: Final = 2000

#: After so many the answers are looked at, if there are any.
_GLANCE: Final = 16

_TRANSIENT: Final = 1
_PERSISTENT: Final = 2

#: Channel errors that are about what was published, and come again with it.
_REFUSALS: Final = (amqp_errors.PreconditionFailed, amqp_errors.AccessRefused)


class Sent:
    """A parcel that was written to the broker."""

    __slots__ = ("at", "number", "parcel", "returned")

    def __init__(self, parcel: Parcel, number: int, at: float) -> None:
        self.parcel = parcel
        self.number = number
        self.at = at
        self.returned = False


class Post:
    """One AMQP channel that publishes, in the broker's confirm mode; of one thread.

    `settle([sent, ...])` is called, in order, for what was confirmed.  `window` is how many may be
    on their way at once.  A connection that breaks, or a broker that confirms nothing in time, is
    raised to whoever calls; `unconfirmed` then tells of what nobody knows whether it arrived.
    """

    def __init__(
        self,
        line: connecting.Line,
        layout: topology.Topology,
        settle: Callable[[list[Sent]], None],
        window: int,
    ) -> None:
        self._line = line
        self._exchange = layout.exchange.name
        self._plain = layout.interop is not None
        self._introductions = writing.Introductions(layout, amqp=True)
        self._settle = settle
        self._window = window
        self._channel = line.raw.channel()
        self._channel.confirm_select()
        self._channel.events["basic_ack"].add(self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        line.raw.on_blocked = self._on_blocked
        line.raw.on_unblocked = self._on_unblocked
        self._blocked = False
        self._number = 0
        self._confirmed: list[Sent] = []
        layout.declare_exchange(self._channel)
        self.unconfirmed: deque[Sent] = deque()

    @property
    def room(self) -> int:
        """How many parcels more may be written."""
        return 0 if self._blocked else self._window - len(self.unconfirmed)

    @property
    def is_idle(self) -> bool:
        """Whether all was confirmed, and whoever wanted to know is told."""
        return not (self.unconfirmed or self._confirmed)

    def prepare(self, parcel: Parcel) -> Any:
        """The message of a parcel.

        :raises Exception: it cannot be sent, now or ever.
        """
        envelope = parcel.envelope
        self._introductions.make(self._channel, envelope)
        properties = {
            "type": envelope.type,
            "correlation_id": envelope.correlation_id,
            "reply_to": envelope.reply_to,
            "delivery_mode": _PERSISTENT if self._plain or envelope.persistent else _TRANSIENT,
        }
        if parcel.errand.mandatory:
            properties["message_id"] = str(self._number + 1)
        message = self._channel.prepare_message(
            envelope.encoded,
            priority=envelope.priority,
            content_type="application/json",
            content_encoding="utf-8",
            headers=envelope.headers,
            properties={key: value for key, value in properties.items() if value is not None},
        )
        message._serialize_properties()
        return message

    def send(self, parcel: Parcel, message: Any) -> None:
        """Send what was prepared last."""
        self._number += 1
        self.unconfirmed.append(Sent(parcel, self._number, time.monotonic()))
        mandatory = parcel.errand.mandatory
        # Not `basic_publish`: that drains the connection each time, and may spin in it for ever.
        self._channel.send_method(
            spec.Basic.Publish,
            "Bssbb",
            (0, self._exchange, parcel.envelope.routing_key, mandatory, False),
            message,
        )
        if self._number % _GLANCE == 0:
            self.read(0)

    def widen(self) -> None:
        """Let many be on their way from now on."""
        self._window = WINDOW

    def read(self, timeout: float | None) -> None:
        """Take in what the broker says; wait for it, or for a ring, so long if it says nothing."""
        if timeout is None or timeout > 0:
            timeout = self._patience(timeout)
        try:
            while self._line.wait(timeout):
                self._line.read()
                timeout = 0
        finally:  # what was confirmed is, whatever became of the connection since
            self._report()
        if self.unconfirmed and time.monotonic() - self.unconfirmed[0].at > CONFIRM_TIMEOUT:
            why = " (it blocks publishers: an alarm)" if self._blocked else ""
            raise exc.TransportFailure(
                f"the broker confirmed nothing for {CONFIRM_TIMEOUT:.0f} s{why}"
            )

    def _patience(self, timeout: float | None) -> float | None:
        if not self.unconfirmed:
            return timeout
        left = max(0.01, self.unconfirmed[0].at + CONFIRM_TIMEOUT - time.monotonic())
        return left if timeout is None else min(timeout, left)

    def _report(self) -> None:
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
        for sent in waiting:
            if sent.number == number:
                self._confirmed.append(sent)
                waiting.remove(sent)
                return

    def _on_nack(self, number: int, multiple: bool) -> None:
        raise exc.TransportFailure("the broker refused to keep a message")

    def _on_return(self, error: Exception, exchange: str, key: str, message: Any) -> None:
        name = str(message.properties.get("message_id"))
        for sent in self.unconfirmed:
            if str(sent.number) == name:
                sent.returned = True
                return

    def _on_blocked(self, reason: str) -> None:
        self._blocked = True
        LOG.warning("the broker takes no messages for now: it is short of memory or disk")

    def _on_unblocked(self) -> None:
        self._blocked = False
        LOG.warning("the broker takes messages again")


def refuses(error: BaseException) -> bool:
    """Whether the broker will refuse the same message for ever."""
    return isinstance(error, _REFUSALS)
