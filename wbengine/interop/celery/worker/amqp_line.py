"""A connection to a Celery broker that is a RabbitMQ."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import amqp
from amqp import spec

from wbengine import exceptions as exc
from wbengine.interop.celery.protocol.wire import Wire
from wbengine.interop.celery.worker import lines, notes
from wbengine.interop.celery.worker.jobs import Past

__all__ = ["Amqp"]

LOG = logging.getLogger(__name__)

#: Seconds that a broker has to commit a transaction; heartbeats tell before that it is gone.
_COMMIT_TIMEOUT: Final = 60.0

#: So many tasks begin in one transaction at most: a broker holds messages back, for longer than
#: notes may wait, where a channel has some hundreds to write.
_TOGETHER: Final = 100


class Amqp(lines.Awaited):
    """A RabbitMQ: it sends as many as it was asked for, and takes back what is not settled.

    Messages come over one channel, in transactions: in each a number of them are settled, or
    exchanged for copies or notes (see `notes`).  While one is committed, the next is gathered.
    Notes, and what has begun elsewhere, come over another channel.
    """

    copies = True

    def __init__(self, *given: Any, shared: bool, **others: Any) -> None:
        """`shared`: all queues share what was asked for; quorum queues do not know that."""
        super().__init__(*given, **others)
        self._shared = shared
        self._notes = notes.Notes(self.connection)
        #: What came over the first channel, and is neither settled nor exchanged.
        self._here: dict[Any, lines.Receipt] = {}
        # What the next transactions do, what the one under way exchanges for notes, whose notes
        # it makes needless, and when it is late.
        self._marks: list[lines.Receipt] = []
        self._ends: list[tuple[lines.Receipt, bool]] = []
        self._committing: list[lines.Receipt] | None = None
        self._needless: list[notes.Note] = []
        self._late = 0.0
        self._asked = -1
        # Of what was asked for last, what came and is not settled; whether nothing is asked for.
        self._counted: set[Any] = set()
        self._idle = False
        if shared:
            self._place_ballast()
        beat = self.connection.get_heartbeat_interval()
        if beat:
            check = self.connection.transport.heartbeat_check
            self._hub.call_repeatedly(beat / 2, check, self._raw, 2)

    def _open_channel(self) -> Any:
        channel = super()._open_channel()
        channel.tx_select()
        # There is a `tx_commit`, which waits for this.
        channel._callbacks[spec.Tx.CommitOk] = self._on_committed
        return channel

    # What is asked for.

    def _place_ballast(self) -> None:
        """Have one message that is never settled: a limit of none cannot be asked for."""
        channel = self.connection.channel()
        name = channel.queue_declare("", exclusive=True, auto_delete=True).queue
        channel.basic_publish(amqp.Message(b""), routing_key=name)
        came: list[Any] = []
        self.channel.basic_consume(name, callback=came.append)
        until = time.monotonic() + _COMMIT_TIMEOUT
        while not came:
            self.connection.drain_events(timeout=max(0.01, until - time.monotonic()))
        channel.close()

    @property
    def _free(self) -> int:
        return max(0, self._most() - len(self.unsettled))

    def adjust(self) -> None:
        if not self.taking or self._committing is not None:
            return
        free = self._free
        if self._shared:
            wanted = 1 + len(self._here) + free
            if wanted != self._asked:
                self._asked = wanted
                self.channel.send_method(spec.Basic.Qos, "lBb", (0, wanted, True))
            return
        # It is asked of each consumer, counts what is not settled, and begins anew with another.
        left = self._asked - len(self._counted)
        if self._idle and free:
            self._begin(free)
        elif not self._idle and (left > free or (free and not left)):
            for consumer in self._consumers.values():
                consumer.cancel()
            self._idle = True
            self._begin(free)

    def _begin(self, free: int) -> None:
        if free:
            self.channel.basic_qos(0, free, False)
            self._asked, self._idle = free, False
            self._counted.clear()
            for consumer in self._consumers.values():
                consumer.consume()
        self._read_on()

    # Queues.

    def declare(self, name: str) -> None:
        super().declare(name)
        self._notes.declare(name)
        self._read_on()

    def consume(self, name: str) -> None:
        self._wait_committed()
        if not self._shared and not self._consumers:
            self._asked = max(1, self._free)
            self.channel.basic_qos(0, self._asked, False)
        self.adjust()
        super().consume(name)
        self._consume_begun(name)
        self._read_on()

    def _consume_begun(self, name: str) -> None:
        def on_message(message: Any) -> None:
            try:
                wire = notes.read(message)
            except Exception as error:  # whatever somebody put there
                LOG.error("dropped what is no note, from queue %r: %s", name, error)
                message.channel.basic_ack(message.delivery_tag)
                return
            receipt = lines.Receipt(message, name, self)
            receipt.past, receipt.note = Past.BEGUN, message.properties.get("message_id", "")
            receipt.tag = "begun", message.delivery_tag  # the other channel has such numbers, too
            receipt.noted = notes.Note(message.delivery_tag)
            self._take(wire, receipt)

        self._notes.consume(name, on_message)

    def cancel(self, name: str) -> None:
        self._wait_committed()
        super().cancel(name)
        self._notes.cancel([name])
        self._read_on()

    def stop_taking(self) -> None:
        self._wait_committed()
        super().stop_taking()
        for consumer in self._consumers.values():
            consumer.cancel()  # what comes meanwhile is delivered
        self._notes.cancel(self._consumers)
        self._read_on()

    def take_again(self) -> None:
        if self.taking:
            return
        self._wait_committed()
        super().take_again()
        for name in self._consumers:
            self._consume_begun(name)
        if self._shared:
            self.adjust()
            for consumer in self._consumers.values():
                consumer.consume()
            self._read_on()
        else:
            self._idle = True
            self.adjust()

    # Messages.

    def _note(self, receipt: lines.Receipt) -> None:
        super()._note(receipt)
        if receipt.noted is None:
            self._here[receipt.tag] = receipt
            self._counted.add(receipt.tag)
        self._ring()  # it may come just before others are waited for: there may be more room

    def settle(self, receipts: Sequence[tuple[lines.Receipt, bool]]) -> None:
        for receipt, acknowledged in receipts:
            if receipt.line is not self or receipt.settled:
                continue  # it comes again
            if receipt.noted is None or receipt.copy is not None:
                self._ends.append((receipt, acknowledged))
            else:
                self._notes.settle(receipt.noted, receipt.back)
            self._forget(receipt)

    def mark(self, receipts: Sequence[lines.Receipt]) -> None:
        # Others come again, and are forgotten here.
        self._marks += [receipt for receipt in receipts if receipt.line is self]

    def _commit(self) -> None:
        """Do what was gathered, unless a transaction is under way."""
        if self._committing is not None:
            self._check_commit()
            return
        if not (self._marks or self._ends):
            return
        marks, self._marks = self._marks[:_TOGETHER], self._marks[_TOGETHER:]
        ends, self._ends = self._ends[:_TOGETHER], self._ends[_TOGETHER:]
        for receipt in (*marks, *(receipt for receipt, _ in ends)):
            self._here.pop(receipt.tag, None)
            self._counted.discard(receipt.tag)
        self.adjust()  # before they make room
        with self._together():
            self._send(marks, ends)
        self._committing, self._late = marks, time.monotonic() + _COMMIT_TIMEOUT

    def _send(
        self, marks: Sequence[lines.Receipt], ends: Sequence[tuple[lines.Receipt, bool]]
    ) -> None:
        """One transaction."""
        channel = self.channel
        for receipt in marks:
            wire = receipt.wire or Wire.of(receipt.message)
            receipt.noted = self._notes.publish(channel, receipt.queue, receipt.note, wire)
            channel.basic_ack(receipt.tag)
        for receipt, acknowledged in ends:
            if receipt.copy is not None:
                # `basic_publish` would read what comes first.
                arguments = (0, "", receipt.queue, False, False)
                channel.send_method(spec.Basic.Publish, "Bssbb", arguments, _raw(receipt.copy))
            if receipt.noted is not None:
                self._needless.append(receipt.noted)
            elif acknowledged:
                channel.basic_ack(receipt.tag)
            else:
                channel.basic_reject(receipt.tag, receipt.back)
        channel.send_method(spec.Tx.Commit)

    def _check_commit(self) -> None:
        if time.monotonic() > self._late:
            raise exc.TransportFailure(f"it committed nothing for {_COMMIT_TIMEOUT:.0f} s")

    def _wait_committed(self) -> None:
        """Until the channel takes orders: meanwhile a broker wants none."""
        while self._committing is not None:
            self._check_commit()
            try:
                self.connection.drain_events(timeout=1.0)
            except TimeoutError:
                continue

    def _on_committed(self) -> None:
        marks, self._committing = self._committing, None
        self._ring()  # for the next one, likewise
        while self._needless:
            self._notes.settle(self._needless.pop(), False)
        if marks:
            self._marked(marks, True)

    def turn(self, timeout: float) -> None:
        self._commit()
        super().turn(timeout)

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Write what is written meanwhile in one go."""
        transport, parts = self._raw.transport, list[bytes]()
        write, transport._write = transport._write, lambda data: parts.append(bytes(data))
        try:
            yield
        finally:
            transport._write = write
            if parts:
                write(b"".join(parts))

    def finish(self, timeout: float) -> None:
        until = time.monotonic() + timeout
        while (self._ends or self._committing is not None) and time.monotonic() < until:
            self.turn(0.1)

    def _read_on(self) -> None:
        # Who waits for the answer to an order may take in more than that.
        self._hub.call_soon(self.connection.transport.on_readable, self._raw, self._hub)


def _raw(wire: Wire) -> amqp.Message:
    """A message as it came."""
    return amqp.Message(
        wire.body,
        content_type=wire.content_type,
        content_encoding=wire.content_encoding,
        application_headers=wire.headers,
        **wire.properties,
    )
