"""Consumers of several queues of RabbitMQ."""

from __future__ import annotations

from typing import Any

from wbengine.engines.worker_based._connections import amqp_receiver


class Channel:
    """A channel that, like the broker, rejects a second consumer with the same tag."""

    def __init__(self) -> None:
        self.queues: dict[str, str] = {}

    def consume(self, queue: str, tag: str, handle: Any, *, nowait: bool) -> None:
        assert tag not in self.queues, f"attempt to reuse consumer tag {tag!r}"
        self.queues[tag] = queue

    def basic_cancel(self, tag: str, *, nowait: bool) -> None:
        del self.queues[tag]

    def basic_qos(self, size: int, count: int, all_consumers: bool) -> None:
        """Do nothing."""

    def get(self, queue: str) -> None:
        """Return no message: the queue is empty."""


class Layout:
    def shared_name(self, name: str) -> str:
        return name


class Message:
    def __init__(self, tag: str) -> None:
        self.consumer_tag = tag
        self.delivery_info = {"consumer_tag": tag}


class Consuming(amqp_receiver.AmqpPrefetcher):
    """Consumes the queues `first` and `second`."""

    def __init__(self) -> None:
        super().__init__(("first", "second"), 4)
        self.channel: Any = Channel()
        self.amqp = self.channel
        self._layout: Any = Layout()
        self._callback = [].append
        self.adjust()
        self.run_due(0.0)


def test_message_that_arrives_during_a_pause_leaves_the_later_consumer() -> None:
    work = Consuming()
    message: Any = Message("0")
    work._deliver(message)
    work.pause()
    work.resume()
    work.run_due(0.0)
    assert work.admits(message)
    work.run_due(0.0)
    assert work.channel.queues == {"0": "first", "1": "second"}


def test_consumer_of_admitted_message_is_cancelled_until_the_next_poll() -> None:
    work = Consuming()
    message: Any = Message("1")
    work._deliver(message)
    assert work.admits(message)
    assert work.channel.queues == {"0": "first"}
    work.run_due(0.0)
    assert work.channel.queues == {"0": "first", "1": "second"}
