"""kombu alone: one process sends bodies, another sends them back.  The floor for its transports.

As kombu does by default: persistent messages, durable queues, no confirms, no limit to what a
consumer is handed; acknowledged once the answer was sent.  Each process has a connection for each
direction: publishing in a callback of the same AMQP connection may nest without end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import kombu
import payloads
import place

PACKAGES = ["kombu", "amqp", "redis"]
#: Seconds after which what was not heard of is lost.
SILENCE = 10
ASKED, ANSWERED = (kombu.Queue(name, durable=True) for name in ("bench.asked", "bench.answered"))


def _connection() -> kombu.Connection:
    if place.MEDIUM == "filesystem":
        return kombu.Connection("filesystem://", transport_options=place.folders())
    return kombu.Connection(place.URL)


class Post:
    """Bodies out to one queue, and in from another."""

    def __init__(self, out: kombu.Queue, into: kombu.Queue, heard: Any) -> None:
        self._sending, self._hearing = _connection(), _connection()
        self._out = out.name
        out(self._sending).declare()
        self._producer = kombu.Producer(self._sending, auto_declare=False)
        self._consumer = kombu.Consumer(self._hearing, [into], accept=["json"], callbacks=[heard])
        self._consumer.consume()

    def send(self, body: Any) -> None:
        self._producer.publish(body, routing_key=self._out, serializer="json")

    def hear(self, timeout: float) -> None:
        try:
            self._hearing.drain_events(timeout=timeout)
        except TimeoutError:
            pass

    def close(self) -> None:
        self._hearing.release()
        self._sending.release()


class Driver:
    def __init__(self) -> None:
        self._answers: list[Any] = []
        self._post = Post(ASKED, ANSWERED, self._hear)
        self._workers = place.Workers(["on_kombu.py"])

    def _hear(self, body: Any, message: Any) -> None:
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
        heard, last = 0, time.monotonic()
        while len(self._answers) < sent:
            self._post.hear(timeout=1)
            if len(self._answers) > heard:
                heard, last = len(self._answers), time.monotonic()
            elif time.monotonic() > last + SILENCE:
                raise RuntimeError(f"{sent - heard} of {sent} messages are lost")
        found, self._answers = self._answers, []
        return found

    def close(self) -> None:
        self._workers.close()
        self._post.close()


def _work() -> None:
    def echo(body: Any, message: Any) -> None:
        post.send(body)
        message.ack()

    post = Post(ANSWERED, ASKED, echo)
    while True:
        post.hear(timeout=1)


if __name__ == "__main__":
    _work()
