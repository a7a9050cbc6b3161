"""kombu alone: a process sends bodies and another one returns them. The lower limit of the costs.

The settings are kombu's defaults: persistent messages, durable queues, no confirms, unlimited
prefetch, acknowledgement after the answer. Each process has a connection for each direction,
because publishing in a callback of the same AMQP connection can recurse without limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import kombu
import payloads
import place

PACKAGES = ["kombu", "amqp", "redis"]
#: Seconds without a message after which missing messages count as lost.
SILENCE_SECONDS = 10
REQUESTS, REPLIES = (kombu.Queue(name, durable=True) for name in ("bench.asked", "bench.answered"))


def _connection() -> kombu.Connection:
    if place.MEDIUM == "filesystem":
        return kombu.Connection("filesystem://", transport_options=place.folders())
    return kombu.Connection(place.URL)


class Post:
    """A producer for one queue and a consumer of another."""

    def __init__(self, out: kombu.Queue, into: kombu.Queue, on_message: Any) -> None:
        self._sending, self._receiving = _connection(), _connection()
        self._out = out.name
        out(self._sending).declare()
        self._producer = kombu.Producer(self._sending, auto_declare=False)
        self._consumer = kombu.Consumer(
            self._receiving, [into], accept=["json"], callbacks=[on_message]
        )
        self._consumer.consume()

    def send(self, body: Any) -> None:
        self._producer.publish(body, routing_key=self._out, serializer="json")

    def receive(self, timeout: float) -> None:
        try:
            self._receiving.drain_events(timeout=timeout)
        except TimeoutError:
            pass

    def close(self) -> None:
        self._receiving.release()
        self._sending.release()


class Driver:
    def __init__(self) -> None:
        self._answers: list[Any] = []
        self._post = Post(REQUESTS, REPLIES, self._on_reply)
        self._workers = place.Workers(["on_kombu.py"])

    def _on_reply(self, body: Any, message: Any) -> None:
        message.ack()
        self._answers.append(body)

    def wide(self, tasks: int) -> None:
        self._all([None] * tasks)

    def chain(self, tasks: int) -> None:
        value = 0
        for _ in range(tasks):
            (value,) = self._all([value + 1])
        place.check(value, tasks)

    def diamond(self, layers: int, width: int) -> None:
        for _ in range(layers):
            self._all([None] * width)

    def payload(self, tasks: int, size: int) -> None:
        sent = payloads.texts(tasks, size)
        place.check(sorted(self._all(sent)), sent)

    def _all(self, bodies: Iterable[Any]) -> list[Any]:
        sent = 0
        for body in bodies:
            self._post.send(body)
            sent += 1
        received, last = 0, time.monotonic()
        while len(self._answers) < sent:
            self._post.receive(timeout=1)
            if len(self._answers) > received:
                received, last = len(self._answers), time.monotonic()
            elif time.monotonic() > last + SILENCE_SECONDS:
                raise RuntimeError(f"{sent - received} of {sent} messages are lost")
        bodies_received, self._answers = self._answers, []
        return bodies_received

    def close(self) -> None:
        self._workers.close()
        self._post.close()


def _work() -> None:
    def echo(body: Any, message: Any) -> None:
        post.send(body)
        message.ack()

    post = Post(REPLIES, REQUESTS, echo)
    while True:
        post.receive(timeout=1)


if __name__ == "__main__":
    _work()
