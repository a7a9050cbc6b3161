"""Consumers of several queues of RabbitMQ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wbengine.transports._amqp import amqp_link
from wbengine.transports._kombu.kombu_link import KombuLink


class Channel:
    """A channel that rejects a second consumer with the same tag, also after its cancellation."""

    channel_id = 1

    def __init__(self) -> None:
        self.queues: dict[str, str] = {}
        self.tags: set[str] = set()
        self.waits: list[bool] = []
        self.rejected: list[int] = []

    def basic_consume(self, queue: str, consumer_tag: str, *, nowait: bool, **kwargs: Any) -> None:
        assert consumer_tag not in self.tags, f"attempt to reuse tag {consumer_tag!r}"
        self.tags.add(consumer_tag)
        self.queues[consumer_tag] = queue
        self.waits.append(not nowait)

    def basic_cancel(self, tag: str, *, nowait: bool) -> None:
        del self.queues[tag]

    def basic_qos(self, size: int, count: int, all_consumers: bool) -> None:
        """Do nothing."""

    def basic_get(self, queue: str) -> None:
        """Return no message: the queue is empty."""

    def basic_reject(self, number: int, *, requeue: bool) -> None:
        self.rejected.append(number)


class StalledChannel(Channel):
    """A channel of a broker that does not reply in time."""

    def basic_get(self, queue: str) -> None:
        raise TimeoutError("timed out")


class Link:
    is_blocked = False
    is_open = True

    def enqueue(self, message: Any) -> None:
        """Do nothing: the tests pass on the messages."""

    def wake(self) -> None:
        """Do nothing: the tests call `run_due`."""


class Message:
    body = b""
    delivery_tag = 1

    def __init__(self, tag: str) -> None:
        self.consumer_tag = tag


class Consuming(amqp_link.AmqpConsumer):
    """Consumes the queues `first` and `second`."""

    def __init__(
        self, channel: Channel | None = None, limit: int = 4, *, takes_requests: bool = True
    ) -> None:
        link: Any = Link()
        connection: Any = SimpleNamespace(raw=SimpleNamespace(frame_max=4096))
        channel = channel or Channel()
        super().__init__(link, [].append, takes_requests, connection, channel, "x")
        self.consume(("first", "second"), limit)

    def resume(self) -> None:
        self.consume(("first", "second"), 4)
        self.run_due(0.0)


def test_message_that_arrives_during_a_pause_leaves_the_later_consumer() -> None:
    work = Consuming()
    work.run_due(0.0)
    message: Any = Message("0.0")
    work._deliver(message)
    work.cancel()
    work.resume()
    work.pass_on(message)
    assert work.admits(message)
    work.run_due(0.0)
    assert work.raw.queues == {"0.2": "first", "1.3": "second"}


def test_consumer_of_admitted_message_is_cancelled_until_the_next_poll() -> None:
    work = Consuming()
    work.run_due(0.0)
    message: Any = Message("1.1")
    work._deliver(message)
    work.pass_on(message)
    assert work.admits(message)
    assert work.raw.queues == {"0.0": "first"}
    work.run_due(0.0)
    assert work.raw.queues == {"0.0": "first", "1.2": "second"}


def test_missing_reply_while_polling_queues_ends_the_connection() -> None:
    """A late reply would be lost with its request, or taken for the reply to the next call."""
    connection: Any = None
    link = KombuLink(connection, None)
    link._add(Consuming(StalledChannel()), None)
    with pytest.raises(ConnectionError, match="does not answer"):
        link.drain(0.0)


def test_consumer_of_private_queue_waits_until_the_broker_accepts_it() -> None:
    assert Consuming(limit=0, takes_requests=False).raw.waits == [True, True]
    assert Consuming(limit=0).raw.waits == [False, False]


@pytest.mark.parametrize("is_open", [True, False])
def test_request_of_a_closed_connection_is_not_requeued(is_open: bool) -> None:
    work = Consuming()
    work.run_due(0.0)
    message: Any = Message("0.0")
    work.deliver(message)
    link: Any = work._link
    link.is_open = is_open
    work.reject(message, requeue=True)
    assert work.raw.rejected == ([1] if is_open else [])
    assert not work.unsettled


def test_request_that_is_being_returned_uses_no_slot() -> None:
    work = Consuming(limit=1)
    work.run_due(0.0)
    messages: list[Any] = [Message("0.0"), Message("1.1")]
    for message in messages:
        work._deliver(message)
    admitted = []
    for message in messages:
        work.pass_on(message)
        admitted.append(work.admits(message))
    assert admitted == [True, False]
    work._free(messages[0])
    work.run_due(0.0)
    assert work.raw.queues == {"0.2": "first", "1.3": "second"}
