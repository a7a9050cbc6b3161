"""One connection to a Celery broker, from which task messages come."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import kombu
from kombu import asynchronous

from wbengine import exceptions as exc
from wbengine.interop.celery import brokers
from wbengine.interop.celery.protocol import wire
from wbengine.interop.celery.worker.jobs import Past

__all__ = ["Awaited", "Line", "Marked", "Polled", "Receipt"]

LOG = logging.getLogger(__name__)

#: Seconds between two looks at a transport that tells nobody when something comes.
POLL: Final = 0.1

#: What a broker says of a queue that is there, with other arguments.
_PRECONDITION_FAILED: Final = 406


class Marked(Protocol):
    """Hears which tasks the broker has noted as begun (True), or has not, for somebody else
    began them."""

    def __call__(self, receipts: Sequence[Receipt], noted: bool) -> None: ...


class Receipt:
    """What a message is settled by; `line` is the connection that it came over."""

    __slots__ = (
        "back", "copy", "job", "line", "message", "note", "noted", "past", "queue", "settled",
        "tag", "wire",
    )  # fmt: skip

    def __init__(self, message: Any, queue: str, line: Line) -> None:
        self.message = message
        self.tag = message.delivery_tag
        self.queue = queue
        self.line = line
        info = message.delivery_info or {}
        given = info.get("redelivered") or message.headers.get("redelivered")
        self.past = Past.GIVEN if given else Past.NONE
        #: The name of the note that its task begins or began by, and the shell's own part of that.
        self.note = ""
        self.noted: Any = None
        #: What its message says, once somebody has read that.
        self.wire: wire.Wire | None = None
        self.settled = False
        #: Not wanted here, and put back as it is.
        self.back = False
        #: What takes its place in its queue when it is settled: the same, as a new message.
        self.copy: wire.Wire | None = None
        #: What is done when it is settled; the shell's own.
        self.job: Any = None

    @property
    def lost(self) -> bool:
        """Whether its message comes again, here or elsewhere: nobody can settle it any more."""
        return self.line.closed and not self.line.settles_others


class Line:
    """A connection that consumes `queues`; all of it belongs to the thread that calls `turn`.

    `deliver(message, receipt)` is called for each message, and `marked` once for each that `mark`
    was called with.  `most` says how many may be unsettled.  What is raised by any method is the
    end of the line.
    """

    #: Whether what came over another connection can be settled here.
    settles_others = False

    #: Whether it puts a `copy` in the place of a message in one step with settling that.
    copies = False

    def __init__(
        self,
        broker: brokers.Broker,
        connection: kombu.Connection,
        deliver: Callable[[Any, Receipt], None],
        marked: Marked,
        most: Callable[[], int],
    ) -> None:
        self.broker = broker
        self.connection = connection
        self._deliver = deliver
        self._marked = marked
        self._most = most
        #: Whether anything is wanted at all.
        self.taking = True
        self.closed = False
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
            self._take(message, Receipt(message, name, self))

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

    def _take(self, message: Any, receipt: Receipt) -> None:
        self._note(receipt)
        self._deliver(message, receipt)

    def _note(self, receipt: Receipt) -> None:
        self.unsettled[receipt.tag] = receipt

    def _forget(self, receipt: Receipt) -> None:
        receipt.settled = True
        if self.unsettled.get(receipt.tag) is receipt:
            del self.unsettled[receipt.tag]

    def mark(self, receipts: Sequence[Receipt]) -> None:
        """Have the broker note that the tasks of these begin, each under the name `note`.

        A transport that knows nothing of the kind takes note of nothing.
        """
        self._marked(receipts, True)

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

    def finish(self, timeout: float) -> None:
        """Wait until all is settled that `settle` was called with, for so long at most."""

    def close(self) -> None:
        """Leave; what is not settled stays as it is, or goes back, as the broker has it."""
        self.closed = True
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
    """A transport whose sockets can be waited for, together with whoever rings `bell`, as `ring`
    does."""

    def __init__(self, *given: Any, bell: socket.socket, ring: Callable[[], None]) -> None:
        super().__init__(*given)
        self._ring = ring
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
            # It rings, as kombu calls what is due, and only then waits for what is not.
            entry = self._hub.call_later(timeout, self._ring)
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
        brokers.close_hub(self._hub)


def _silence(bell: socket.socket) -> None:
    try:
        bell.recv(4096)
    except BlockingIOError:
        pass
