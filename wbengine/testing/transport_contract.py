"""The contract of transports, as tests that pytest runs on any of them.

Derive a class `Test...` from `TransportContract`, and define the fixture `transport_url`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from wbengine import transports
from wbengine.engines.worker_based.connections.outgoing import OutgoingMessage
from wbengine.engines.worker_based.messages import envelope
from wbengine.transports.broker import Broker, Consumer, Delivery, Frame

__all__ = ["TransportContract"]

_EXCHANGE = "contract"
#: Seconds after which a test fails instead of waiting for a message.
_MAX_WAIT_SECONDS = 60.0


class TransportContract:
    """Tests of what engines and workers require from a `Broker`.

    They connect with two connections to the broker at `transport_url`, and use one exchange. Each
    test needs an empty broker.
    """

    @pytest.fixture
    def transport_url(self) -> str:
        """Return the URL of an empty broker. Override this."""
        raise NotImplementedError("define the fixture transport_url")

    @pytest.fixture
    def transport_options(self) -> dict[str, Any]:
        """Return the transport options, by default none."""
        return {}

    @pytest.fixture
    def target(
        self, transport_url: str, transport_options: dict[str, Any]
    ) -> transports.Target:
        target = transports.resolve(transport_url, None, transport_options, exchange=_EXCHANGE)
        assert target.check() is False
        return target

    @pytest.fixture
    def sender(self, target: transports.Target) -> Iterator[Broker]:
        with target.open() as broker:
            broker.declare_exchange(_EXCHANGE)
            yield broker

    @pytest.fixture
    def receiver(self, target: transports.Target, sender: Broker) -> Iterator[Broker]:
        with target.open() as broker:
            broker.declare_exchange(_EXCHANGE)
            yield broker

    def test_message_arrives_with_body_headers_and_properties(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _declare(receiver, "q", "k")
        sent = {"a": [1, "ä", None]}
        assert _send(sender, sent, "k", headers={"h": {"x": 1}}, correlation_id="c")
        (message,) = _receive(receiver, "q")
        assert json.loads(message.body) == sent
        assert message.headers["h"] == {"x": 1}
        assert message.properties["correlation_id"] == "c"
        assert message.delivery_info["routing_key"] == "k"
        assert message.redelivered is False

    def test_wildcard_bindings_match_words_of_keys(self, sender: Broker, receiver: Broker) -> None:
        bindings = {"exact": "a.b", "star": "a.*", "hash": "a.#", "all": "#", "other": "b.*"}
        for queue, key in bindings.items():
            _declare(receiver, queue, key)
        for key, expected in {
            "a.b": {"exact", "star", "hash", "all"},
            "a": {"hash", "all"},
            "a.x.y": {"hash", "all"},
            "b.x": {"other", "all"},
        }.items():
            _send(sender, 1, key)
            assert {queue for queue in bindings if receiver.purge(queue)} == expected

    def test_queue_with_several_matching_bindings_receives_one_copy(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _declare(receiver, "q", "a.*", "*.b", "a.b")
        assert _send(sender, 1, "a.b")
        assert receiver.size("q") == 1

    def test_default_exchange_routes_to_queue_of_same_name(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _declare(receiver, "q")
        assert _send(sender, 1, "q", exchange="")
        assert not _send(sender, 1, "no-such-queue", exchange="")
        assert receiver.size("q") == 1

    def test_unroutable_message_is_reported(self, sender: Broker, receiver: Broker) -> None:
        assert not _send(sender, 1, "k")
        _declare(receiver, "q", "k")
        assert _send(sender, 1, "k")
        receiver.unbind(_EXCHANGE, "k", "q")
        assert not _send(sender, 1, "k")

    def test_bindings_are_listed(self, receiver: Broker) -> None:
        _declare(receiver, "q", "a", "b")
        assert {*receiver.bindings()} == {("q", _EXCHANGE, "a"), ("q", _EXCHANGE, "b")}

    def test_declarations_are_idempotent(self, sender: Broker, receiver: Broker) -> None:
        _declare(receiver, "q", "k")
        _send(sender, 1, "k")
        _declare(sender, "q", "k")
        assert receiver.size("q") == 1

    def test_deleted_queue_reports_its_messages_and_receives_no_more(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _declare(receiver, "q", "k")
        _send(sender, 1, "k")
        assert receiver.delete_queue("q") == 1
        assert not _send(sender, 1, "k")
        assert receiver.delete_queue("q") == 0

    def test_higher_priority_comes_first_and_equal_priority_in_order(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _declare(receiver, "q", "k")
        for body, priority in enumerate((0, 5, 9, 5, 0)):
            _send(sender, body, "k", priority=priority)
        assert [_body(each) for each in _receive(receiver, "q", 5)] == [2, 1, 3, 0, 4]

    def test_consumer_prefers_its_first_queue(self, sender: Broker, receiver: Broker) -> None:
        for queue in ("first", "second"):
            _declare(receiver, queue, queue)
        _send(sender, 2, "second")
        _send(sender, 1, "first")
        assert [_body(each) for each in _receive(receiver, "first", 2, "second")] == [1, 2]

    def test_limit_counts_unacknowledged_messages(self, sender: Broker, receiver: Broker) -> None:
        _declare(receiver, "q", "k")
        for body in range(3):
            _send(sender, body, "k")
        messages: list[Delivery] = []
        consumer = Consumer(receiver, messages.append)
        consumer.consume(("q",), 2)
        _drain(receiver, messages, 2)
        with pytest.raises(TimeoutError):
            receiver.drain(0.1)
        assert messages[0].ack()
        _drain(receiver, messages, 3)

    def test_acknowledged_message_is_gone_and_a_second_acknowledgement_fails(
        self, target: transports.Target, sender: Broker, receiver: Broker
    ) -> None:
        _declare(receiver, "q", "k")
        _send(sender, 1, "k")
        (message,) = _receive(receiver, "q")
        assert message.ack()
        assert not message.ack()
        receiver.release()
        assert sender.size("q") == 0

    def test_requeued_message_returns_to_its_place_and_is_marked(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _declare(receiver, "q", "k")
        for body in range(2):
            _send(sender, body, "k")
        messages: list[Delivery] = []
        consumer = Consumer(receiver, messages.append)
        consumer.consume(("q",), 1)
        _drain(receiver, messages, 1)
        messages[0].requeue()
        _drain(receiver, messages, 2)
        assert (_body(messages[1]), messages[1].redelivered) == (0, True)
        messages[1].ack()
        _drain(receiver, messages, 3)
        assert (_body(messages[2]), messages[2].redelivered) == (1, False)

    def test_unacknowledged_messages_return_when_the_connection_ends(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _declare(receiver, "q", "k")
        _send(sender, 1, "k")
        _receive(receiver, "q")
        assert sender.size("q") == 0
        receiver.release()
        (message,) = _receive(sender, "q")
        assert (_body(message), message.redelivered) == (1, True)

    def test_cancelled_consumer_receives_no_more(self, sender: Broker, receiver: Broker) -> None:
        _declare(receiver, "q", "k")
        messages: list[Delivery] = []
        consumer = Consumer(receiver, messages.append)
        consumer.consume(("q",))
        consumer.cancel()
        _send(sender, 1, "k")
        with pytest.raises(TimeoutError):
            receiver.drain(0.1)
        assert receiver.size("q") == 1

    def test_unreadable_message_is_discarded(self, sender: Broker, receiver: Broker) -> None:
        _declare(receiver, "q", "k")
        assert list(sender.publish_many([Frame("", "q", 0, b"no message")])) == [True]
        _send(sender, 1, "k")
        discarded: list[int] = []
        receiver.on_discard = lambda: discarded.append(1)
        assert [_body(each) for each in _receive(receiver, "q")] == [1]
        assert discarded == [1]

    def test_waiting_consumer_receives_a_message_published_meanwhile(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _declare(receiver, "q", "k")
        messages: list[Delivery] = []
        Consumer(receiver, messages.append).consume(("q",))
        publishing = threading.Timer(0.1, lambda: _send(sender, 1, "k"))
        publishing.start()
        _drain(receiver, messages, 1)
        publishing.join()

    def test_wake_ends_the_wait_of_another_thread(self, receiver: Broker) -> None:
        _declare(receiver, "q", "k")
        Consumer(receiver, lambda message: None).consume(("q",))
        waking = threading.Timer(0.1, receiver.wake)
        waking.start()
        with pytest.raises(TimeoutError, match="woken"):
            receiver.drain(_MAX_WAIT_SECONDS)
        waking.join()

    def test_invalid_names_are_rejected(self, receiver: Broker) -> None:
        for name in ("a/b", "../x", "a\0b", "x" * 121):
            with pytest.raises(ValueError, match="queue"):
                receiver.declare_queue(name)
            with pytest.raises(ValueError, match="exchange"):
                receiver.declare_exchange(name)

    def test_release_is_idempotent(self, receiver: Broker) -> None:
        receiver.release()
        receiver.release()


def _declare(broker: Broker, queue: str, *keys: str) -> None:
    broker.declare_queue(queue)
    for key in keys:
        broker.bind(_EXCHANGE, key, queue)


def _send(
    broker: Broker,
    body: Any,
    key: str,
    *,
    exchange: str = _EXCHANGE,
    headers: dict[str, Any] | None = None,
    correlation_id: str | None = None,
    priority: int = 0,
) -> bool:
    message = OutgoingMessage(
        envelope.Envelope("T", body, key, correlation_id, None, headers or {}, priority)
    )
    message.encode(exchange, broker.labels)
    (routed,) = broker.publish_many([message])
    return routed


def _receive(broker: Broker, queue: str, count: int = 1, *more: str) -> list[Delivery]:
    messages: list[Delivery] = []
    Consumer(broker, messages.append).consume((queue, *more))
    _drain(broker, messages, count)
    return messages


def _drain(broker: Broker, messages: list[Delivery], count: int) -> None:
    while len(messages) < count:
        broker.drain(_MAX_WAIT_SECONDS)
    assert len(messages) == count


def _body(message: Delivery) -> int:
    return int(message.body)
