"""Consumers of several queues of RabbitMQ."""

from __future__ import annotations

from typing import Any

from wbengine.transports._amqp import amqp_link


class Channel:
    """A channel that, like the broker, rejects a second consumer with the same tag."""

    channel_id = 1

    def __init__(self) -> None:
        self.queues: dict[str, str] = {}

    def basic_consume(self, queue: str, consumer_tag: str, **kwargs: Any) -> None:
        assert consumer_tag not in self.queues, f"attempt to reuse tag {consumer_tag!r}"
        self.queues[consumer_tag] = queue

    def basic_cancel(self, tag: str, *, nowait: bool) -> None:
        del self.queues[tag]

    def basic_qos(self, size: int, count: int, all_consumers: bool) -> None:
        """Do nothing."""

    def basic_get(self, queue: str) -> None:
        """Return no message: the queue is empty."""


class Link:
    is_blocked = False

    def enqueue(self, message: Any) -> None:
        """Do nothing: the tests pass on the messages."""


class Message:
    body = b""

    def __init__(self, tag: str) -> None:
        self.consumer_tag = tag


class Consuming(amqp_link.AmqpConsumer):
    """Consumes the queues `first` and `second`."""

    def __init__(self) -> None:
        link: Any = Link()
        connection: Any = None
        super().__init__(link, [].append, True, connection, Channel(), "x", 4096)
        self.resume()

    def resume(self) -> None:
        self.consume(("first", "second"), 4)
        self.run_due(0.0)


def test_message_that_arrives_during_a_pause_leaves_the_later_consumer() -> None:
    work = Consuming()
    message: Any = Message("0")
    work._deliver(message)
    work.cancel()
    work.resume()
    work.pass_on(message)
    assert work.admits(message)
    work.run_due(0.0)
    assert work.raw.queues == {"0": "first", "1": "second"}


def test_consumer_of_admitted_message_is_cancelled_until_the_next_poll() -> None:
    work = Consuming()
    message: Any = Message("1")
    work._deliver(message)
    work.pass_on(message)
    assert work.admits(message)
    assert work.raw.queues == {"0": "first"}
    work.run_due(0.0)
    assert work.raw.queues == {"0": "first", "1": "second"}
