"""What goes out to a Celery broker: task messages, each confirmed, and revocations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import kombu

from wbengine import exceptions
from wbengine.interop.celery import brokers
from wbengine.interop.celery.client import orders
from wbengine.interop.celery.client.orders import Order
from wbengine.interop.celery.clock import Clock
from wbengine.interop.celery.confirms import Confirms
from wbengine.types import failure as ft

__all__ = ["Outlet"]

#: So often an order is written; what breaks the channel each time is refused.
_MOST_TRIES: Final = 3
#: Seconds to wait for the confirmation of one that may break the channel.
_PATIENCE: Final = 10.0


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
        self._channel = connection.channel()
        self._producer = kombu.Producer(self._channel, auto_declare=False)
        self._control = kombu.Exchange(
            f"{control}.pidbox", "fanout", durable=False, delivery_mode="transient"
        )
        self._declared: set[Any] = set()
        self._clock = Clock()
        # Of orders, and of what nobody waits for; None: this broker confirms nothing.
        self._confirms: Confirms[Order | None] | None = None
        # What no queue takes is told before it is confirmed.
        self._returned: set[str] = set()
        if confirms:
            self._confirms = Confirms(self._channel, self._on_settled)
            self._channel.events["basic_return"].add(self._on_return)

    def publish(self, order: Order) -> None:
        """Write an order, and see that its queue is there."""
        if order.tries >= _MOST_TRIES:
            self._refuse(order, f"the broker refused it {order.tries} times")
            return
        order.tries += 1
        order.stage = orders.PUBLISHED
        self._declare(order.route.queue)
        confirms = self._confirms
        number = 0 if confirms is None else confirms.expect(order)
        try:
            self._producer.publish(
                order.wire.body,
                exchange=order.route.exchange,
                routing_key=order.route.routing_key,
                mandatory=confirms is not None,
                **order.wire.arguments(),
            )
        except self._connection.connection_errors + self._connection.channel_errors:
            raise
        except OSError:
            raise
        except Exception as error:  # of this one alone
            if confirms is not None:
                confirms.take_back(number)
            self._failed(order, ft.Failure.from_exception(error))
            return
        if confirms is None:
            self._confirm(order)
        elif order.tries > 1:
            # One of those before broke the channel: alone, it harms no other.
            while number in confirms:
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
        if self._confirms is not None:
            self._confirms.expect(None)
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
        brokers.declare(self._connection, queue)
        self._declared.add(queue.name)

    def _confirm(self, order: Order) -> None:
        order.stage = orders.CONFIRMED
        self._confirmed(order)

    def _on_settled(self, order: Order | None, kept: bool) -> None:
        if order is None:
            return
        if not kept:
            self.publish(order)
        elif order.id in self._returned:
            self._returned.discard(order.id)
            route = order.route
            self._refuse(
                order,
                f"no queue takes what is sent to exchange {route.exchange!r}"
                f" with routing key {route.routing_key!r}",
            )
        else:
            self._confirm(order)

    def _on_return(self, *told: Any) -> None:
        properties = getattr(told[-1], "properties", None) or {}
        self._returned.add(str(properties.get("correlation_id")))

    def _refuse(self, order: Order, why: str) -> None:
        text = f"task {order.id} could not be sent: {why}"
        self._failed(order, ft.Failure.from_exception(exceptions.TransportFailure(text)))
