"""What a link has as long as its connection lasts: where it writes, and where results come in."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, Final

import kombu
from kombu import asynchronous

from wbengine import exceptions
from wbengine.engines.worker_based.connections import connecting
from wbengine.interop.celery import brokers
from wbengine.interop.celery.client import orders, outlet, replies, stored
from wbengine.interop.celery.client.addresses import Address
from wbengine.interop.celery.client.orders import Order
from wbengine.interop.celery.protocol import serializers
from wbengine.types import failure as ft

__all__ = ["READY", "Session", "ended"]

LOG: Final = logging.getLogger(__name__)

#: The states of a result that does not change any more.
READY: Final = frozenset({"SUCCESS", "FAILURE", "REVOKED"})

#: So much is read from a RabbitMQ before anything else gets its turn.
_MOST_EVENTS: Final = 1000


def ended(value: Any) -> bool:
    """Whether what was told of a task is the end of it."""
    return not isinstance(value, dict) or value["status"] in READY


class Session:
    """One connection to the broker of an address, and one to the Redis of its results, if it has
    one; all of it belongs to the thread that calls `turn`.

    `waiting` holds the orders that nothing is known of yet, by id; whoever ends is taken out.
    What any method raises, but `close`, is the end of the session.
    """

    def __init__(
        self,
        connection: kombu.Connection,
        address: Address,
        reply_to: str,
        waiting: MutableMapping[str, Order],
        *,
        amqp: bool,
    ) -> None:
        self._connection = connection
        self._waiting = waiting
        self._hub = asynchronous.Hub()
        self._loop: Any = None
        self._replies: replies.Replies | None = None
        self._stored: stored.Stored | None = None
        # What has to be looked for, and whose results nobody waits for any more.
        self._doubtful: list[Order] = []
        self._over: list[str] = []
        # What an earlier run may have sent, and nobody goes on with.
        self._lost: list[str] = []
        try:
            self._open(address, reply_to, amqp)
        except BaseException:
            self.close()
            raise

    def _open(self, address: Address, reply_to: str, amqp: bool) -> None:
        accepted = serializers.Accepted(
            dict.fromkeys(("json", serializers.name_of(address.content_type) or "json"))
        )
        lost: tuple[type[BaseException], ...] = (
            *self._connection.connection_errors,
            *self._connection.channel_errors,
            OSError,
        )
        if address.stores:
            made = stored.Stored(address, accepted, self._on_listening, self._on_result)
            self._stored = made
            lost += stored.errors()
            self._hub.add_reader(made.fileno(), made.read)
            self._hub.call_repeatedly(stored.PULSE, made.pulse)
        elif address.answers:
            self._replies = replies.Replies(
                self._connection, reply_to, accepted, self._on_result, acknowledges=amqp
            )
        self._outlet = outlet.Outlet(
            self._connection, address.control, self._on_confirmed, self._end, confirms=amqp
        )
        self._hub.propagate_errors = lost
        inner = self._connection.connection
        self._drain: Callable[[], None] | None = None
        if amqp:
            self._drain = self._read_amqp
            self._hub.add_reader(inner.sock, self._drain)
            beat = self._connection.get_heartbeat_interval()
            if beat:
                self._hub.call_repeatedly(beat / 2, self._connection.heartbeat_check, 2)
        else:
            self._connection.transport.register_with_event_loop(inner, self._hub)

    def listen_to(self, bell: socket.socket, rung: Callable[[], None]) -> None:
        """Call `rung` whenever somebody rings."""

        def hear() -> None:
            try:
                bell.recv(4096)
            except BlockingIOError:
                pass
            rung()

        self._hub.add_reader(bell, hear)

    def begin(self, found: Iterable[Order]) -> None:
        """Send orders, and wait for their results; those that were sent before are only waited for,
        unless it is not certain that the broker has them.
        """
        heard = []
        for order in found:
            if self._stored is not None and (order.waits or order.recovered):
                heard.append(order.id)
            elif order.recovered and not order.again:
                self._lose(order)
            elif order.stage != orders.CONFIRMED:
                self._outlet.publish(order)
        if heard and self._stored is not None:
            self._stored.listen(heard)
        self._read_on()

    def revoke(self, ids: list[str], signal: str | None) -> None:
        """Tell Celery's workers that these are not to run."""
        self._outlet.revoke(ids, signal)
        self._read_on()

    def ignore(self, name: str) -> None:
        """Nobody waits for this result any more."""
        if self._stored is not None:
            self._over.append(name)

    def turn(self) -> None:
        """Take in what comes; waits for up to a second."""
        if self._loop is None:
            self._loop = self._hub.create_loop()
        try:
            next(self._loop)
        except StopIteration:
            self._loop = None
        self.flush()

    def flush(self) -> None:
        """Do what has gathered."""
        if self._replies is not None:
            self._replies.flush()
        if self._lost:
            lost, self._lost = self._lost, []
            self.revoke(lost, None)
        if self._stored is None:
            return
        if self._doubtful:
            doubtful, self._doubtful = self._doubtful, []
            self._look(doubtful)
        self._stored.flush()
        if self._over:
            over, self._over = self._over, []
            self._stored.ignore(over)

    def leave(self) -> None:
        """Remove what nobody needs any more, before `close`; never raises."""
        try:
            if self._replies is not None:
                self._replies.remove()
        except Exception as error:
            LOG.debug("the queue of results was not removed (%s)", error)

    def close(self) -> None:
        """Give back what it has; never raises."""
        if self._stored is not None:
            self._stored.close()
        connecting.release(self._connection)
        brokers.close_hub(self._hub)

    # What came.

    def _on_listening(self, name: str) -> None:
        """From now on nothing is missed of this one."""
        order = self._waiting.get(name)
        if order is None:
            return
        if order.recovered or order.stage != orders.NEW:
            self._doubtful.append(order)
        else:
            self._outlet.publish(order)

    def _look(self, doubtful: list[Order]) -> None:
        assert self._stored is not None
        looked = self._stored.look([order.id for order in doubtful])
        for order, (value, known) in zip(doubtful, looked, strict=True):
            if self._waiting.get(order.id) is not order:
                continue
            if value is not None and ended(value):
                self._end(order, value)
            elif known or value is not None or order.stage == orders.CONFIRMED:
                order.stage = orders.CONFIRMED
                if not order.waits:
                    self._end(order, order.id)
            elif order.recovered and not order.again and order.stage == orders.NEW:
                self._lose(order)
            else:
                self._outlet.publish(order)
        self._read_on()

    def _on_confirmed(self, order: Order) -> None:
        if self._stored is not None:
            self._stored.note(order.id)
        if not order.waits:
            self._end(order, order.id)

    def _on_result(self, name: str, value: Any) -> None:
        order = self._waiting.get(name)
        if order is not None and ended(value):
            self._end(order, value)

    def _lose(self, order: Order) -> None:
        self._lost.append(order.id)
        text = f"nobody can tell whether an earlier run sent task {order.id}"
        self._end(order, ft.Failure.from_exception(exceptions.WorkerLost(text)))

    def _end(self, order: Order, value: Any) -> None:
        if self._waiting.get(order.id) is order:
            del self._waiting[order.id]
            if order.waits or order.recovered:
                self.ignore(order.id)
            order.tell(value)

    # Reading from a RabbitMQ.

    def _read_amqp(self) -> None:
        """All that is there: what TLS has decrypted is not seen by who waits for the socket."""
        inner = self._connection.connection
        for _ in range(_MOST_EVENTS):
            if not inner.connected:
                raise ConnectionResetError("the broker closed the connection")
            try:
                inner.drain_events(timeout=0)
            except TimeoutError:
                return
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EINTR):
                    return
                raise
        self._read_on()

    def _read_on(self) -> None:
        """Who waited for an answer may have read more than that."""
        if self._drain is not None:
            self._hub.call_soon(self._drain)
