"""What goes out to a Celery broker: task messages, each confirmed, and revocations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import kombu

from wbengine import exceptions
from wbengine.interop.celery.client import orders
from wbengine.interop.celery.client.orders import Order
from wbengine.interop.celery.clock import Clock
from wbengine.types import failure as ft

__all__ = ["Outlet"]

#: So often an order is written; what breaks the channel each time is refused.
_MOST_TRIES: Final = 3
#: Seconds to wait for the confirmation of one that may break the channel.
_PATIENCE: Final = 10.0
#: A queue that is there, with other arguments.
_PRECONDITION_FAILED: Final = 406


class Outlet:
    """Publishes over a connection; all of it belongs to the thread that reads from that.

    `confirmed(order)` and `failed(order, failure)` are called for each order, perhaps before
    `publish` returns.  What the connection raises passes through.
    """

    def __init__(
        self,
        connection: kombu.Connection,
        control: str,
        confirmed: Callable[[Order], None],
        failed: Callable[[Order, ft.Failure], None],
        *,
        confirms: bool,
    ) -> None:
        self._connection = connection
        self._confirmed = confirmed
        self._failed = failed
        self._confirms = confirms
        self._channel = connection.channel()
        self._producer = kombu.Producer(self._channel, auto_declare=False)
        self._control = kombu.Exchange(
            f"{control}.pidbox", "fanout", durable=False, delivery_mode="transient"
        )
        self._declared: set[Any] = set()
        self._clock = Clock()
        # By the number that the broker gives to what is published.
        self._unconfirmed: dict[int, Order] = {}
        self._number = 0
        # What no queue takes is told before it is confirmed.
        self._returned: set[str] = set()
        if confirms:
            self._channel.confirm_select()
            self._channel.events["basic_ack"].add(self._on_ack)
            self._channel.events["basic_nack"].add(self._on_nack)
            self._channel.events["basic_return"].add(self._on_return)

    def publish(self, order: Order) -> None:
        """Write an order, and see that its queue is there."""
        if order.tries >= _MOST_TRIES:
            self._refuse(order, f"the broker refused it {order.tries} times")
            return
        order.tries += 1
        order.stage = orders.PUBLISHED
        self._declare(order.route.queue)
        if self._confirms:
            self._number += 1
            self._unconfirmed[self._number] = order
        number = self._number
        try:
            self._producer.publish(
                order.wire.body,
                exchange=order.route.exchange,
                routing_key=order.route.routing_key,
                mandatory=self._confirms,
                **order.wire.arguments(),
            )
        except self._connection.connection_errors + self._connection.channel_errors:
            raise
        except OSError:
            raise
        except Exception as error:  # of this one alone
            self._unconfirmed.pop(number, None)
            self._number = number - self._confirms
            self._failed(order, ft.Failure.from_exception(error))
            return
        if not self._confirms:
            self._confirm(order)
        elif order.tries > 1:
            # One of those before broke the channel: alone, it harms no other.
            while number in self._unconfirmed:
                self._connection.drain_events(timeout=_PATIENCE)

    def revoke(self, ids: Sequence[str], signal: str | None) -> None:
        """Tell all workers that these are not to run; with a signal, to end what runs by it."""
        arguments: dict[str, Any] = {"task_id": list(ids), "terminate": signal is not None}
        if signal is not None:
            arguments["signal"] = signal
        message = {
            "method": "revoke",
            "arguments": arguments,
            "destination": None,
            "pattern": None,
            "matcher": None,
        }
        if self._confirms:
            self._number += 1  # it is confirmed too, and nobody waits for that
        self._producer.publish(
            message,
            serializer="json",
            exchange=self._control.name,
            routing_key="",
            declare=[self._control],
            headers={"clock": self._clock.forward(), "expires": 0},
            delivery_mode=1,
        )

    def _declare(self, queue: kombu.Queue | None) -> None:
        if queue is None or queue.name in self._declared:
            return
        # On a channel of its own: it is closed when the queue is there with other arguments.
        spare = self._connection.channel()
        try:
            queue(spare).declare()
        except self._connection.channel_errors as error:
            if getattr(error, "reply_code", None) != _PRECONDITION_FAILED:
                raise
        else:
            with contextlib.suppress(*self._connection.channel_errors):
                spare.close()
        self._declared.add(queue.name)

    def _confirm(self, order: Order) -> None:
        order.stage = orders.CONFIRMED
        self._confirmed(order)

    def _on_ack(self, number: int, multiple: bool) -> None:
        for order in self._answered(number, multiple):
            if order.id in self._returned:
                self._returned.discard(order.id)
                route = order.route
                self._refuse(
                    order,
                    f"no queue takes what is sent to exchange {route.exchange!r}"
                    f" with routing key {route.routing_key!r}",
                )
            else:
                self._confirm(order)

    def _on_nack(self, number: int, multiple: bool) -> None:
        for order in self._answered(number, multiple):
            self.publish(order)

    def _on_return(self, *told: Any) -> None:
        properties = getattr(told[-1], "properties", None) or {}
        self._returned.add(str(properties.get("correlation_id")))

    def _answered(self, number: int, multiple: bool) -> Iterable[Order]:
        if not multiple:
            order = self._unconfirmed.pop(number, None)
            return () if order is None else (order,)
        found = []
        for known in list(self._unconfirmed):  # in their order
            if known > number:
                break
            found.append(self._unconfirmed.pop(known))
        return found

    def _refuse(self, order: Order, why: str) -> None:
        text = f"task {order.id} could not be sent: {why}"
        self._failed(order, ft.Failure.from_exception(exceptions.TransportFailure(text)))
