"""One connection to a Celery broker, from which task messages come."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import kombu
from kombu import asynchronous

from wbengine import exceptions as exc
from wbengine.interop.celery import brokers
from wbengine.interop.celery.protocol import wire

__all__ = ["Amqp", "Awaited", "Line", "Polled", "Receipt"]

LOG = logging.getLogger(__name__)

#: Seconds between two looks at a transport that tells nobody when something comes.
POLL: Final = 0.1

#: What a broker says of a queue that is there, with other arguments.
_PRECONDITION_FAILED: Final = 406


class Receipt:
    """What a message is settled by; `line` is the connection that it came over."""

    __slots__ = ("back", "job", "line", "message", "queue", "redelivered", "settled", "tag")

    def __init__(self, message: Any, queue: str, line: Line) -> None:
        self.message = message
        self.tag = message.delivery_tag
        self.queue = queue
        self.line = line
        info = message.delivery_info or {}
        self.redelivered = bool(info.get("redelivered") or message.headers.get("redelivered"))
        self.settled = False
        #: Not wanted here, and put back as it is.
        self.back = False
        #: What is done when it is settled; the shell's own.
        self.job: Any = None


class Line:
    """A connection that consumes `queues`; all of it belongs to the thread that calls `turn`.

    `deliver(message, receipt)` is called for each message.  `room()` says how many more are wanted.
    What is raised by any method is the end of the line.
    """

    #: Whether what came over another connection can be settled here.
    settles_others = False

    def __init__(
        self,
        broker: brokers.Broker,
        connection: kombu.Connection,
        deliver: Callable[[Any, Receipt], None],
        most: Callable[[], int],
    ) -> None:
        self.broker = broker
        self.connection = connection
        self._deliver = deliver
        self._most = most
        #: Whether anything is wanted at all.
        self.taking = True
        #: What was delivered here and is not settled yet.
        self.unsettled: dict[Any, Receipt] = {}
        self._consumers: dict[str, kombu.Consumer] = {}
        # What kombu's own object replaces by itself, when somebody asks for it.
        self._raw = connection.connection
        self.channel = self._open_channel()

    def _open_channel(self) -> Any:
        channel = self.connection.channel()
        wire.keep_packed(channel)
        return channel

    def check(self) -> None:
        """
        :raises TransportFailure: kombu has made another connection: nothing comes here any more.
        """
        if self.connection._connection is not self._raw:
            raise exc.TransportFailure("the connection was lost")

    @property
    def room(self) -> int:
        """How many more messages may come now."""
        return self._most() - len(self.unsettled) if self.taking else 0

    @property
    def queues(self) -> list[str]:
        """The names of the queues that it consumes."""
        return list(self._consumers)

    def declare(self, name: str) -> None:
        """See that a queue is there; one that is there with other arguments is left as it is."""
        try:
            brokers.queue_named(name)(self.channel).declare()
        except self.connection.channel_errors as error:
            if getattr(error, "reply_code", None) != _PRECONDITION_FAILED:
                raise
            # The broker has closed the channel.
            self.channel = self._open_channel()
            self.channel.queue_declare(queue=name, passive=True)

    def consume(self, name: str) -> None:
        """Take messages from a queue from now on."""
        if name in self._consumers:
            return

        def on_message(message: Any) -> None:
            receipt = Receipt(message, name, self)
            self._note(receipt)
            self._deliver(message, receipt)

        # Not declared with it: a queue may be there with other arguments.
        self._consumers[name] = made = kombu.Consumer(
            self.channel, [kombu.Queue(name)], on_message=on_message, auto_declare=False
        )
        made.consume()

    def cancel(self, name: str) -> None:
        """Take nothing from a queue any more."""
        made = self._consumers.pop(name, None)
        if made is not None:
            made.cancel()

    def stop_taking(self) -> None:
        """Ask for nothing more; what was asked for may still come (see `is_quiet`)."""
        self.taking = False

    def take_again(self) -> None:
        """Undo `stop_taking`."""
        self.taking = True

    def adjust(self) -> None:
        """What is wanted may have changed."""

    def settle(self, receipts: Sequence[tuple[Receipt, bool]]) -> None:
        """Acknowledge messages, or reject them (False): for good, or `back` into their queue."""
        for receipt, acknowledged in receipts:
            if receipt.line is not self or receipt.settled:
                continue  # it comes again
            if acknowledged:
                receipt.message.ack()
            else:
                receipt.message.reject(requeue=receipt.back)
            self._forget(receipt)

    def _note(self, receipt: Receipt) -> None:
        self.unsettled[receipt.tag] = receipt

    def _forget(self, receipt: Receipt) -> None:
        receipt.settled = True
        if self.unsettled.get(receipt.tag) is receipt:
            del self.unsettled[receipt.tag]

    def adopt(self, other: Line) -> None:
        """Take over what is not settled yet of a line that ended."""
        if self.settles_others:
            self.unsettled.update(other.unsettled)

    def renew(self) -> None:
        """Say that what is not settled is still being worked on."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing comes any more that was asked for before it stopped taking."""
        return True

    def turn(self, timeout: float) -> None:
        """Take in what comes, for so long if nothing does."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave; what is not settled stays as it is, or goes back, as the broker has it."""
        try:
            self.connection.release()
        except Exception as error:  # another one takes its place
            LOG.debug("a connection was not closed in order (%s)", error)


class Polled(Line):
    """A transport that has to be asked, such as memory and filesystem."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.channel.qos.can_consume = lambda: self.room > 0

    def turn(self, timeout: float) -> None:
        if not (self._consumers and self.room > 0):
            time.sleep(min(timeout, POLL))
            return
        try:
            self.connection.drain_events(timeout=min(timeout, POLL))
        except TimeoutError:
            pass


class Awaited(Line):
    """A transport whose sockets can be waited for, together with whoever rings `bell`."""

    def __init__(self, *given: Any, bell: socket.socket) -> None:
        super().__init__(*given)
        self._hub = asynchronous.Hub()
        self._hub.propagate_errors = (
            *self.connection.connection_errors,
            *self.connection.channel_errors,
            OSError,
        )
        self._hub.add_reader(bell, _silence, bell)
        self.connection.transport.register_with_event_loop(self._raw, self._hub)
        self._loop: Any = None
        self._timer: Any = None

    def turn(self, timeout: float) -> None:
        if self._timer is None or timeout < self._timer[1] - time.monotonic():
            if self._timer is not None:
                self._timer[0].cancel()
            entry = self._hub.call_later(timeout, _nothing)
            self._timer = entry, time.monotonic() + timeout
        if self._loop is None:
            self._loop = self._hub.create_loop()
        try:
            next(self._loop)
        except StopIteration:
            self._loop = None
        if self._timer is not None and time.monotonic() >= self._timer[1]:
            self._timer = None

    def close(self) -> None:
        super().close()
        try:
            self._hub.close()
        except Exception as error:  # of what was still to be read
            LOG.debug("a connection was not left in order (%s)", error)


class Amqp(Awaited):
    """A RabbitMQ: it sends as many as it was asked for, and takes back what is not settled."""

    def __init__(
        self, *given: Any, bell: socket.socket, ring: Callable[[], None], shared: bool
    ) -> None:
        """`ring` rings the bell.  `shared`: all queues share what was asked for; quorum queues do
        not know that."""
        super().__init__(*given, bell=bell)
        self._ring = ring
        self._shared = shared
        self._asked = 0
        # Of what was asked for last, what came and is not settled.
        self._counted: set[Any] = set()
        beat = self.connection.get_heartbeat_interval()
        if beat:
            check = self.connection.transport.heartbeat_check
            self._hub.call_repeatedly(beat / 2, check, self._raw, 2)

    def consume(self, name: str) -> None:
        self.adjust()
        super().consume(name)
        self._read_on()

    def cancel(self, name: str) -> None:
        super().cancel(name)
        self._read_on()

    def stop_taking(self) -> None:
        super().stop_taking()
        for consumer in self._consumers.values():
            consumer.cancel()  # what comes meanwhile is delivered
        self._read_on()

    def take_again(self) -> None:
        if not self.taking:
            super().take_again()
            self._begin(max(1, self._most()))

    def adjust(self) -> None:
        if not self.taking:
            return
        wanted = max(1, self._most())
        if self._shared:
            if wanted != self._asked:
                self.channel.basic_qos(0, wanted, True)
                self._asked = wanted
                self._read_on()
            return
        # It is asked of each consumer, and counts anew for one that begins.
        wanted -= len(self.unsettled)
        if self._asked == 0:
            self._ask(max(1, wanted))
        elif wanted > 0 and len(self._counted) >= self._asked:
            for consumer in self._consumers.values():
                consumer.cancel()
            self._begin(max(1, self._most() - len(self.unsettled)))

    def _begin(self, wanted: int) -> None:
        self._ask(wanted)
        for consumer in self._consumers.values():
            consumer.consume()
        self._read_on()

    def _ask(self, wanted: int) -> None:
        self.channel.basic_qos(0, wanted, self._shared)
        self._asked = wanted
        self._counted.clear()

    def _note(self, receipt: Receipt) -> None:
        super()._note(receipt)
        self._counted.add(receipt.tag)
        self._ring()  # more may be wanted now, and nothing else may come to wake the hub

    def _forget(self, receipt: Receipt) -> None:
        super()._forget(receipt)
        self._counted.discard(receipt.tag)

    def _read_on(self) -> None:
        # Who waits for the answer to an order may take in more than that.
        self._hub.call_soon(self.connection.transport.on_readable, self._raw, self._hub)


def _silence(bell: socket.socket) -> None:
    try:
        bell.recv(4096)
    except BlockingIOError:
        pass


def _nothing() -> None:
    """Wakes whoever waits."""
