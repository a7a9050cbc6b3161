"""What is declared on the broker: an exchange, a queue of one's own, and queues that are shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import kombu

from wbengine import _names

#: Interoperation with peers that run OpenStack TaskFlow.
TASKFLOW: Final = "taskflow"

#: Seconds after which a broker that can do so removes a queue nobody has touched.
QUEUE_EXPIRES: Final = 7 * 24 * 3600


def check_interop(interop: str | None) -> str | None:
    """`interop`, if it names a way to speak that this version knows."""
    if interop not in (None, TASKFLOW):
        raise ValueError(f"interop must be {TASKFLOW!r} or nothing, not {interop!r}")
    return interop


class Topology:
    """Durable queues on a topic exchange: one private queue, and shared ones for requests.

    With `interop='taskflow'` everything is declared as TaskFlow's peers declare it: a direct
    exchange, transient queues that vanish with their last consumer, one queue for each topic.
    """

    def __init__(
        self, exchange: str, topic: str, bindings: Sequence[str], interop: str | None
    ) -> None:
        self.interop = check_interop(interop)
        self._name = _names.check_label("exchange", exchange)
        self._topic = topic
        self._bindings = tuple(bindings)
        if interop:
            self.exchange = kombu.Exchange(exchange, durable=False, auto_delete=True)
        else:
            self.exchange = kombu.Exchange(exchange, type="topic", durable=True)

    def declare_exchange(self, channel: Any) -> Any:
        exchange = self.exchange(channel)
        exchange.declare()
        return exchange

    def declare_own(self, channel: Any, ours: bool) -> Any:
        """Declare and bind this side's own queue; `ours`: the transport has its own clean-up."""
        if self.interop:
            return self.declare_shared(channel, self._topic)
        exchange = self.declare_exchange(channel)
        queue = kombu.Queue(
            self._topic,
            exchange,
            routing_key=self._topic,
            durable=True,
            exclusive=ours,  # elsewhere that would mean: gone with the connection
            expires=None if ours else QUEUE_EXPIRES,
        )(channel)
        queue.declare()
        for key in self._bindings:
            queue.bind_to(exchange, routing_key=key)
        return queue

    def declare_shared(self, channel: Any, name: str) -> Any:
        """Declare and bind a queue that several processes take from."""
        exchange = self.declare_exchange(channel)
        if self.interop:
            queue = kombu.Queue(
                f"{self._name}_{name}",
                exchange,
                routing_key=name,
                durable=False,
                auto_delete=True,
            )
        else:
            queue = kombu.Queue(name, exchange, routing_key=name, durable=True)
        queue = queue(channel)
        queue.declare()
        return queue
