"""The contract of transports, as tests that pytest runs on any of them.

Derive a class `Test...` from `TransportContract`, and define the fixture `transport_url`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import random
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from wbengine import engines, exceptions, task, transports
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based._connections.sender import OutgoingMessage
from wbengine.engines.worker_based._messages import envelope, request_messages
from wbengine.patterns import linear_flow
from wbengine.testing._workers import worker_in_thread
from wbengine.transports._broker import MAX_BATCH_BYTES, Broker, Consumer, Delivery, Finish, Frame
from wbengine.transports._ledger import NO_FENCE, Fence, Opening

__all__ = ["TransportContract"]

_EXCHANGE = "contract"
#: Seconds after which a test fails instead of waiting for a message.
_MAX_WAIT_SECONDS = 60.0
#: Seconds within which the messages of a killed process are redelivered.
_MAX_REDELIVERY_SECONDS = 10.0

#: A process that consumes two messages and acknowledges none.
_HOARDER = """
import json, sys
from wbengine import transports
from wbengine.transports._broker import Consumer
broker = transports.resolve(sys.argv[1], None, json.loads(sys.argv[2]), exchange="contract").open()
messages = []
Consumer(broker, messages.append).consume(("q",), 2)
while len(messages) < 2:
    broker.drain(60)
print("full", flush=True)
while True:
    try:
        broker.drain(1)
    except TimeoutError:
        pass
"""


class _ReturnsEpoch(task.Task):
    """Returns the number of the copy of its request."""

    def execute(self) -> int:
        assert self.request is not None
        return self.request.epoch


class TransportContract:
    """Tests of what engines and workers require from a `Broker`.

    They connect with two connections to the broker at `transport_url`, and use one exchange. Each
    test needs an empty broker. The death of a process is tested unless the kind is `is_in_process`;
    choose `transport_options` with which the broker detects it within seconds. If the kind
    `has_rows`, random calls are compared with the same calls of `memory://`.
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
    def target(self, transport_url: str, transport_options: dict[str, Any]) -> transports.Target:
        target = transports.resolve(transport_url, None, transport_options, exchange=_EXCHANGE)
        assert target.check() is False
        return target

    @pytest.fixture
    def sender_target(self, target: transports.Target) -> transports.Target:
        """Return the target of the publishing connection."""
        return target

    @pytest.fixture
    def sender(self, sender_target: transports.Target) -> Iterator[Broker]:
        with sender_target.open() as broker:
            broker.declare_exchange(_EXCHANGE)
            yield broker

    @pytest.fixture
    def receiver(self, target: transports.Target, sender: Broker) -> Iterator[Broker]:
        with target.open() as broker:
            broker.declare_exchange(_EXCHANGE)
            yield broker

    # -- routing

    def test_message_arrives_with_body_headers_and_properties(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _declare(receiver, "q", "k")
        sent = {"a": [1, "ä", None]}
        assert _send(
            sender, sent, "k", headers={"h": {"x": 1}}, correlation_id="c", reply_to="back"
        )
        (message,) = _receive(receiver, "q")
        assert json.loads(message.body) == sent
        assert message.headers["h"] == {"x": 1}
        assert message.properties["correlation_id"] == "c"
        assert message.properties["reply_to"] == "back"
        assert message.delivery_info["exchange"] == _EXCHANGE
        assert message.delivery_info["routing_key"] == "k"
        assert message.delivery_info["redelivered"] is message.redelivered is False

    @pytest.mark.parametrize("size", [0, 1, 300_000, 1_000_000])
    def test_body_of_any_size_arrives(self, sender: Broker, receiver: Broker, size: int) -> None:
        _declare(receiver, "q", "k")
        body = "\0ä" * size
        _send(sender, body, "k")
        (message,) = _receive(receiver, "q")
        assert json.loads(message.body) == body
        assert message.ack()

    def test_body_of_any_bytes_arrives(self, sender: Broker, receiver: Broker) -> None:
        _declare(receiver, "q", "k")
        for body in (b"", b"\x00\xff\n{}", b"x" * 300_000):
            _send(sender, body, "k")
        received = [message.body for message in _receive(receiver, "q", 3)]
        assert received == [b"", b"\x00\xff\n{}", b"x" * 300_000]

    def test_wildcard_bindings_match_words_of_keys(self, sender: Broker, receiver: Broker) -> None:
        bindings = {
            "exact": "a.b.c", "star": "a.*.c", "hash": "a.#", "middle": "a.#.c", "all": "#",
            "other": "b.*",
        }  # fmt: skip
        for name, key in bindings.items():
            _declare(receiver, name, key)
        for key, expected in {
            "a.b.c": {"exact", "star", "hash", "middle", "all"},
            "a.c": {"hash", "middle", "all"},
            "a": {"hash", "all"},
            "a.x.y.c": {"hash", "middle", "all"},
            "b.x": {"other", "all"},
            "b.x.y": {"all"},
            "a.*.c": {"star", "hash", "middle", "all"},
        }.items():
            _send(sender, 1, key)
            assert {name for name in bindings if receiver.purge(name)} == expected

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

    def test_unroutable_message_is_dropped_and_reported(
        self, sender: Broker, receiver: Broker
    ) -> None:
        assert not _send(sender, 1, "k")
        assert not _send(sender, 1, "k", exchange="no-such-exchange")
        _declare(receiver, "q", "k")
        assert receiver.size("q") == 0

    def test_batch_is_published_in_order_with_a_result_for_each_message(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _declare(receiver, "q", "k")
        keys = ("k", "nowhere", "k")
        frames = [_frame(sender, number, key) for number, key in enumerate(keys)]
        assert list(sender.publish_many(frames)) == [True, False, True]
        assert [_body(message) for message in _receive(receiver, "q", 2)] == [0, 2]

    def test_changed_bindings_apply_at_once(self, sender: Broker, receiver: Broker) -> None:
        for number in range(10):
            key = f"k{number}"
            assert not _send(sender, number, key)
            _declare(receiver, f"q{number}", key)
            assert _send(sender, number, key)
        receiver.unbind(_EXCHANGE, "k3", "q3")
        receiver.unbind(_EXCHANGE, "k3", "q3")
        assert not _send(sender, 3, "k3")
        assert _send(sender, 4, "k4")

    def test_bindings_are_listed(self, receiver: Broker) -> None:
        _declare(receiver, "q", "a", "b")
        assert {*receiver.bindings()} == {("q", _EXCHANGE, "a"), ("q", _EXCHANGE, "b")}

    def test_declarations_are_idempotent(self, sender: Broker, receiver: Broker) -> None:
        _declare(receiver, "q", "k")
        _send(sender, 1, "k")
        _declare(receiver, "q", "k")
        assert receiver.size("q") == 1
        assert len([*receiver.bindings()]) == 1

    @pytest.mark.parametrize(
        "name", ["../../x", "a/b", "", ".", "..", "a\0b", "x" * 121, "ü", "a=b"]
    )
    def test_invalid_queue_and_exchange_names_are_rejected(
        self, receiver: Broker, name: str
    ) -> None:
        with pytest.raises(ValueError, match="queue"):
            receiver.declare_queue(name)
        with pytest.raises(ValueError, match="exchange"):
            receiver.declare_exchange(name)

    # -- order

    def test_messages_are_delivered_in_published_order(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _fill(sender, receiver, 300)
        assert [_body(message) for message in _receive(receiver, "q", 300)] == [*range(300)]

    def test_higher_priority_comes_first_and_equal_priority_in_order(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _declare(receiver, "q", "k")
        for number, priority in enumerate((0, 9, 5, 0, 9, 5)):
            _send(sender, number, "k", priority=priority)
        assert [_body(message) for message in _receive(receiver, "q", 6)] == [1, 4, 2, 5, 0, 3]

    def test_one_queue_is_emptied_before_the_next(self, sender: Broker, receiver: Broker) -> None:
        names = ("second", "third", "first")
        for name in names:
            _declare(receiver, name, name)
        for number in range(5):
            for name in ("third", "first", "second"):
                _send(sender, number, name)
        messages: list[Delivery] = []
        consumer = Consumer(receiver, _acknowledging(messages))
        consumer.consume(names, 1)
        _drain(receiver, messages, 15)
        assert [message.queue for message in messages] == [n for n in names for _ in range(5)]
        assert [_body(message) for message in messages] == [*range(5)] * 3

    # -- capacity

    def test_limit_of_unacknowledged_messages_is_never_exceeded(
        self, sender: Broker, receiver: Broker
    ) -> None:
        for name in ("q", "r"):
            _declare(receiver, name, "k")
        for number in range(10):
            _send(sender, number, "k")
        messages: list[Delivery] = []
        Consumer(receiver, messages.append).consume(("q", "r"), 3)
        for count in (3, 4):
            _drain(receiver, messages, count)
            _assert_no_message(receiver)
            assert len(messages) == count
            assert messages[count - 2].ack()
        messages[0].reject()
        _drain(receiver, messages, 6)
        _assert_no_message(receiver)
        assert [_body(message) for message in messages] == [0, 1, 2, 3, 4, 5]

    def test_batches_from_several_queues_are_limited_by_bytes(
        self, sender: Broker, receiver: Broker
    ) -> None:
        for name in ("a", "b"):
            _declare(receiver, name, "k")
            receiver.watch(name)
        for _ in range(6):
            _send(sender, "x" * 1_000_000, "k")
        sizes = []
        for _ in range(12):
            receiver.refresh()
            taken = [each for _, each in receiver.take_many([(64, ("a",)), (64, ("b",))])]
            receiver.fetch(taken)
            sizes.append([len(each.data or b"") + len(each.body) for each in taken])
        assert sum(map(len, sizes)) == 12
        assert max(map(sum, sizes)) <= MAX_BATCH_BYTES

    def test_acknowledgement_in_another_thread_wakes_full_consumer(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _fill(sender, receiver, 200)
        received: list[Delivery] = []
        unsettled: queue.SimpleQueue[Delivery | None] = queue.SimpleQueue()

        def acknowledge() -> None:
            while (message := unsettled.get()) is not None:
                message.ack()

        def receive(message: Delivery) -> None:
            received.append(message)
            unsettled.put(message)

        with ThreadPoolExecutor(3) as threads:
            for _ in range(3):
                threads.submit(acknowledge)
            try:
                Consumer(receiver, receive).consume(("q",), 2)
                _drain(receiver, received, 200)
            finally:
                for _ in range(3):
                    unsettled.put(None)
        assert [_body(message) for message in received] == [*range(200)]

    # -- settling

    def test_acknowledged_message_is_deleted_and_a_second_acknowledgement_fails(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _fill(sender, receiver, 1)
        (message,) = _receive(receiver, "q")
        assert message.ack()
        assert not message.ack()
        receiver.release()
        assert sender.size("q") == 0

    def test_settling_a_lost_message_returns_false(self, sender: Broker, receiver: Broker) -> None:
        _fill(sender, receiver, 2)
        lost, own = _receive(receiver, "q", 2)
        assert receiver.settle_many((lost,))
        assert not receiver.settle_many((lost, own))
        assert sender.size("q") == 0

    def test_rejected_message_is_deleted(self, sender: Broker, receiver: Broker) -> None:
        _fill(sender, receiver, 1)
        (message,) = _receive(receiver, "q")
        message.reject()
        receiver.release()
        assert sender.size("q") == 0

    def test_requeued_message_keeps_its_place_and_is_marked_redelivered(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _fill(sender, receiver, 3)
        messages: list[Delivery] = []
        consumer = Consumer(receiver, messages.append)
        consumer.consume(("q",), 2)
        _drain(receiver, messages, 2)
        consumer.cancel()
        messages[1].requeue()
        messages[0].reject(requeue=True)
        again = _receive(receiver, "q", 3)
        assert [_body(message) for message in again] == [0, 1, 2]
        assert [message.redelivered for message in again] == [True, True, False]

    def test_undelivered_message_is_requeued_with_an_unchanged_mark(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _fill(sender, receiver, 1)
        receiver.watch("q")
        marks = []
        for delivered in (False, True, False, False):
            (taken,) = _take(receiver)
            marks.append(taken.redelivered)
            receiver.requeue(taken, delivered=delivered)
        assert marks == [False, False, True, True]

    def test_repeatedly_requeued_message_is_not_duplicated(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _fill(sender, receiver, 1)
        messages: list[Delivery] = []
        Consumer(receiver, messages.append).consume(("q",), 1)
        for count in (1, 2, 3):
            _drain(receiver, messages, count)
            messages[-1].requeue()
        _drain(receiver, messages, 4)
        assert messages[-1].ack()
        assert receiver.size("q") == 0

    @pytest.mark.parametrize("closes_connection", [False, True])
    def test_closing_requeues_unacknowledged_messages(
        self, target: transports.Target, sender: Broker, receiver: Broker, closes_connection: bool
    ) -> None:
        _fill(sender, receiver, 3)
        with target.open() as other:
            messages = _receive(other, "q", 3)
            messages[1].ack()
            if closes_connection:
                other.release()
            else:
                other.consumers[0].close()
            again = _receive(receiver, "q", 2)
        assert [_body(message) for message in again] == [0, 2]
        assert all(message.redelivered for message in again)
        assert not messages[0].ack()

    def test_closing_requeues_messages_taken_without_a_consumer(
        self, target: transports.Target, sender: Broker, receiver: Broker
    ) -> None:
        _fill(sender, receiver, 1)
        other = target.open()
        other.watch("q")
        ((_, taken),) = other.take_many([(1, ("q",))])
        other.close()
        (again,) = _receive(receiver, "q")
        assert (taken.queue, _body(again), again.ack()) == ("q", 0, True)
        assert not receiver.settle_many((again,))

    def test_messages_of_killed_process_are_redelivered(
        self,
        target: transports.Target,
        transport_url: str,
        transport_options: dict[str, Any],
        sender: Broker,
        receiver: Broker,
    ) -> None:
        if target.kind.is_in_process:
            pytest.skip("another process cannot connect")
        _fill(sender, receiver, 3)
        words = [sys.executable, "-c", _HOARDER, transport_url, json.dumps(transport_options)]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"full\n"
            assert receiver.size("q") == 1
            process.kill()
        deadline = time.monotonic() + _MAX_REDELIVERY_SECONDS
        messages: list[Delivery] = []
        Consumer(receiver, messages.append).consume(("q",))
        while len(messages) < 3 and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):
                receiver.drain(1)  # as engines and workers do
        assert {_body(message): message.redelivered for message in messages} == {
            0: True, 1: True, 2: False,
        }  # fmt: skip

    def test_cancelled_consumer_receives_no_more(self, sender: Broker, receiver: Broker) -> None:
        _declare(receiver, "q", "k")
        messages: list[Delivery] = []
        consumer = Consumer(receiver, messages.append)
        consumer.consume(("q",))
        consumer.cancel()
        _send(sender, 1, "k")
        _assert_no_message(receiver)
        assert receiver.size("q") == 1
        consumer.consume(("q",))
        _drain(receiver, messages, 1)

    def test_callback_may_publish_acknowledge_and_cancel(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _declare(receiver, "q", "k")
        _send(sender, 3, "k")
        received: list[Delivery] = []

        def receive(message: Delivery) -> None:
            received.append(message)
            message.ack()
            if _body(message):
                _send(sender, _body(message) - 1, "k")
            else:
                consumer.cancel()

        consumer = Consumer(receiver, receive)
        consumer.consume(("q",))
        _drain(receiver, received, 4)
        assert [_body(message) for message in received] == [3, 2, 1, 0]

    def test_unreadable_message_is_discarded(self, sender: Broker, receiver: Broker) -> None:
        _declare(receiver, "q", "k")
        assert list(sender.publish_many([Frame("", "q", 0, b"no message")])) == [True]
        _send(sender, 1, "k")
        discarded: list[int] = []
        receiver.on_discard = lambda: discarded.append(1)
        (message,) = _receive(receiver, "q")
        assert (_body(message), message.ack(), discarded) == (1, True, [1])
        receiver.release()
        assert sender.size("q") == 0

    # -- waiting

    def test_drain_without_a_message_raises_timeout(self, receiver: Broker) -> None:
        _declare(receiver, "q", "k")
        Consumer(receiver, lambda message: None).consume(("q",))
        for seconds in (0.05, 0):
            with pytest.raises(TimeoutError, match="timed out"):
                receiver.drain(seconds)

    def test_waiting_consumer_receives_message(self, sender: Broker, receiver: Broker) -> None:
        _declare(receiver, "q", "k")
        messages: list[Delivery] = []
        Consumer(receiver, messages.append).consume(("q",))
        for number in range(20):
            with ThreadPoolExecutor(1) as threads:
                threads.submit(_send, sender, number, "k")
                _drain(receiver, messages, number + 1)

    def test_messages_and_wake_ups_end_a_wait_without_polling(
        self, sender: Broker, receiver: Broker
    ) -> None:
        """Polling each second would take longer than the limit of this test."""
        _declare(receiver, "q", "k")
        messages: list[Delivery] = []
        Consumer(receiver, messages.append).consume(("q",))
        deadline = time.monotonic() + _MAX_WAIT_SECONDS
        asks: queue.Queue[Callable[[], object] | None] = queue.Queue()
        with ThreadPoolExecutor(1) as threads:
            threads.submit(_call_all, asks)
            try:
                for number in range(150):
                    asks.put(functools.partial(_send, sender, number, "k"))
                    while len(messages) <= number:
                        receiver.drain(max(0.0, deadline - time.monotonic()))
                    asks.put(receiver.wake)
                    with pytest.raises(TimeoutError, match="woken"):
                        receiver.drain(max(0.0, deadline - time.monotonic()))
            finally:
                asks.put(None)

    def test_events_before_a_wait_end_it(
        self, target: transports.Target, sender: Broker, receiver: Broker
    ) -> None:
        """A lost event would take longer than the limit of this test."""
        _declare(receiver, "q", "k")
        for change in (receiver.watch, receiver.watch, receiver.unwatch):
            change("q")
        deadline = time.monotonic() + _MAX_WAIT_SECONDS
        with target.open() as other:
            other.watch("q")
            assert _take(receiver) == []
            receiver.nudge()
            receiver.wait(_MAX_WAIT_SECONDS, ("q",))
            assert _take(receiver) == []
            _send(sender, 1, "k")
            assert receiver.settle_many(_await_messages(receiver, deadline))
            _send(sender, 2, "k")
            (taken,) = _take(other)
            assert _take(receiver) == []
            other.requeue(taken)
            assert receiver.settle_many(_await_messages(receiver, deadline))
            assert receiver.size("q") == 0
        assert time.monotonic() < deadline

    def test_wake_from_another_thread_ends_drain(self, sender: Broker, receiver: Broker) -> None:
        _declare(receiver, "q", "k")
        messages: list[Delivery] = []
        Consumer(receiver, messages.append).consume(("q",))
        with ThreadPoolExecutor(1) as threads, pytest.raises(TimeoutError, match="woken"):
            threads.submit(receiver.wake)
            receiver.drain(_MAX_WAIT_SECONDS)
        # An earlier wake-up is not lost, and counts once.
        receiver.wake()
        with pytest.raises(TimeoutError, match="woken"):
            receiver.drain(_MAX_WAIT_SECONDS)
        _send(sender, 1, "k")
        _drain(receiver, messages, 1)

    # -- deleting

    def test_owned_queue_survives_the_last_connection(self, target: transports.Target) -> None:
        if target.kind.is_in_process:
            pytest.skip("the broker ends with its last connection")
        for count in range(2):
            with target.open() as broker:
                broker.declare_queue("own", owned=True)
                assert broker.size("own") == count
                assert _send(broker, 1, "own", exchange="")

    def test_size_and_purge_count_only_waiting_messages(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _fill(sender, receiver, 4)
        messages: list[Delivery] = []
        Consumer(receiver, messages.append).consume(("q",), 1)
        _drain(receiver, messages, 1)
        assert receiver.size("q") == 3
        assert receiver.purge("q") == 3
        assert receiver.size("q") == 0
        assert messages[0].ack()
        assert receiver.size("none") == 0

    def test_deleted_queue_drops_messages_and_bindings(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _declare(receiver, "q", "k")
        messages: list[Delivery] = []
        Consumer(receiver, messages.append).consume(("q",))
        _send(sender, 1, "k")
        _send(sender, 2, "k")
        assert receiver.delete_queue("q") == 2
        assert receiver.delete_queue("q") == 0
        assert not _send(sender, 3, "k")
        _assert_no_message(receiver)
        assert [*receiver.bindings()] == []
        # The consumer is still registered when the queue is declared again.
        _declare(receiver, "q", "k")
        _send(sender, 4, "k")
        _drain(receiver, messages, 1)
        assert _body(messages[0]) == 4

    def test_requeue_into_deleted_queue_has_no_effect(
        self, sender: Broker, receiver: Broker
    ) -> None:
        _fill(sender, receiver, 1)
        (message,) = _receive(receiver, "q")
        receiver.delete_queue("q")
        message.requeue()
        assert receiver.delete_queue("q") == 0

    def test_release_is_idempotent(self, receiver: Broker) -> None:
        receiver.release()
        receiver.release()

    # -- concurrency

    def test_messages_of_connections_in_many_threads_all_arrive(
        self, sender_target: transports.Target, receiver: Broker
    ) -> None:
        _declare(receiver, "q", "k")

        def publish(number: int) -> None:
            with sender_target.open() as broker:
                broker.declare_exchange(_EXCHANGE)
                _publish_stream(broker, number)

        _check_streams(receiver, publish)

    def test_threads_may_publish_on_one_connection(self, sender: Broker, receiver: Broker) -> None:
        _declare(receiver, "q", "k")
        _check_streams(receiver, lambda number: _publish_stream(sender, number))

    def test_two_consumers_share_a_queue(
        self, target: transports.Target, sender: Broker, receiver: Broker
    ) -> None:
        _declare(receiver, "q", "k")
        count = 300
        mine: list[Delivery] = []
        others: list[Delivery] = []
        stopping = threading.Event()

        def receive(broker: Broker) -> None:
            while not stopping.is_set():
                try:
                    broker.drain(_MAX_WAIT_SECONDS)
                except TimeoutError:
                    pass

        def both(messages: list[Delivery]) -> Callable[[Delivery], None]:
            def handle(message: Delivery) -> None:
                message.ack()
                messages.append(message)
                if len(mine) + len(others) == count:
                    stopping.set()

            return handle

        with target.open() as other, ThreadPoolExecutor(2) as threads:
            for broker, messages in ((receiver, mine), (other, others)):
                Consumer(broker, both(messages)).consume(("q",), 5)
            draining = [threads.submit(receive, each) for each in (receiver, other)]
            try:
                for number in range(count):
                    _send(sender, number, "k")
                assert stopping.wait(_MAX_WAIT_SECONDS)
            finally:
                stopping.set()
                receiver.wake()
                other.wake()
            for each in draining:
                each.result()
        bodies = [[_body(message) for message in part] for part in (mine, others)]
        assert sorted(bodies[0] + bodies[1]) == [*range(count)]
        assert bodies == [sorted(part) for part in bodies]

    # -- engines and workers

    def test_requests_of_a_flow_are_sent_once(
        self,
        transport_url: str,
        transport_options: dict[str, Any],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """If a worker discards a request, the engine may send it again much later."""
        names = [f"epoch{number}" for number in range(3)]
        flow = linear_flow.Flow("f").add(*(_ReturnsEpoch(name, provides=name) for name in names))
        with worker_in_thread(transport_url, _ReturnsEpoch, transport_options=transport_options):
            results = engines.run(
                flow,
                engine="worker-based",
                url=transport_url,
                transport_options=transport_options,
                topics=["t"],
            )
        assert [results[name] for name in names] == [1, 1, 1]
        assert [text for text in caplog.messages if "discarded" in text] == []

    # -- rows

    @pytest.mark.parametrize("seed", range(6))
    def test_rows_change_as_in_memory(
        self,
        target: transports.Target,
        transport_url: str,
        transport_options: dict[str, Any],
        seed: int,
    ) -> None:
        """Random calls of an engine and of workers have the same results as with `memory://`."""
        if not target.has_rows:
            pytest.skip("the broker has no rows")
        numbers = random.Random(seed)
        with (
            _Requests(transport_url, transport_options) as requests,
            _Requests(f"memory://{uuid.uuid4().hex}", {}) as expected,
        ):
            for history in range(12):
                ids = [f"{history}{letter}" for letter in "ab"]
                calls: list[list[Any]] = []
                for _ in range(40):
                    calls.append(_random_call(numbers, ids, expected.ledger, 100 * len(calls) + 1))
                    results = [each.call(ids, *calls[-1]) for each in (requests, expected)]
                    shown = "\n".join(map(str, calls))
                    assert results[0] == results[1], f"The last of these calls differs:\n{shown}"
                for each in (requests, expected):
                    each.clear(ids)


#: Messages of each of the threads that publish concurrently, and number of the threads.
_STREAM_LENGTH, _STREAMS = 200, 4


def _publish_stream(broker: Broker, number: int) -> None:
    for each in range(_STREAM_LENGTH):
        _send(broker, number * _STREAM_LENGTH + each, "k")


def _check_streams(receiver: Broker, publish: Callable[[int], None]) -> None:
    """Check that no message is lost or duplicated, and that each publisher's order is preserved."""
    messages: list[Delivery] = []
    with ThreadPoolExecutor(_STREAMS) as threads:
        publishing = [threads.submit(publish, number) for number in range(_STREAMS)]
        Consumer(receiver, _acknowledging(messages)).consume(("q",), 50)
        _drain(receiver, messages, _STREAMS * _STREAM_LENGTH)
        for each in publishing:
            each.result()
    bodies = [_body(message) for message in messages]
    for number in range(_STREAMS):
        stream = range(number * _STREAM_LENGTH, (number + 1) * _STREAM_LENGTH)
        assert [body for body in bodies if body in stream] == [*stream]


#: Workers with connections, and one whose rows are only changed in the ledger.
_WORKERS, _OTHER_WORKER = ("w1", "w2"), "w3"


def _random_call(
    numbers: random.Random, ids: list[str], ledger: ledgers.Ledger, new_epoch: int
) -> list[Any]:
    """Return the name of a method of `_Requests` or `Ledger`, and its arguments.

    Most calls are for the present epoch and the holder of a row, or for the epoch of a new row.
    """
    id, another, worker = numbers.choice(ids), numbers.choice(ids), numbers.choice(_WORKERS)
    row, run = ledger.state(id), Fence.of(ids[0], numbers.randint(1, 3))
    epoch = (row.epoch if row else new_epoch) + numbers.choice((-1, 0, 0, 0, 1))
    holder = row.holder if row and row.holder else worker
    fence, number = numbers.choice((NO_FENCE, run)), numbers.randrange(6)
    rows = [(id, epoch, fence), (another, epoch, fence)]
    calls: list[tuple[Any, ...]] = [  # with their weights
        (10, "publish", rows[: numbers.randint(1, 2)], numbers.choice(("q", "q", "q", "missing"))),
        (1, "open_many", rows),
        (3, "reopen_many", [(id, epoch + 1, fence) for id, epoch, fence in rows]),
        (5, "revoke_many", [(id, numbers.choice((None, epoch)), fence)]),
        (1, "drop", id),
        (9, "finish_many", numbers.choice((worker, holder)), [(id, epoch, b"lost")], fence),
        (3, "raise_fence", run),
        (1, "ids"),
        (13, "take", worker),
        (8, "finish", worker, number),
        (2, "finish_requeued", worker, number),
        (4, "requeue", worker, number, numbers.random() < 0.5),
        (4, "refuse", worker, number),
        (1, "settle", worker, number),
        (4, "claim", id, epoch, _OTHER_WORKER),
        (1, "release", id, epoch, _OTHER_WORKER),
    ]
    ((_, *call),) = numbers.choices(calls, [weight for weight, *_ in calls])
    return call


class _Requests(contextlib.ExitStack):
    """Requests of an engine and of workers to a broker with rows."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        super().__init__()
        self._brokers: dict[str, Broker] = {}
        self._taken: dict[str, list[Delivery]] = {name: [] for name in _WORKERS}
        self._requeued: dict[str, list[Delivery]] = {name: [] for name in _WORKERS}
        for name in (*_WORKERS, ""):
            target = transports.resolve(url, None, options, exchange=_EXCHANGE)
            self.ledger = ledgers.open_ledger(target, "worker" if name else "engine")
            self.callback(self.ledger.close)
            target.rows.ledger, target.rows.holder = self.ledger, name
            if name:
                self.ledger.renew(name)
            self._brokers[name] = self.enter_context(target.open())
        self._engine = self._brokers[""]
        for queue_name in ("q", "replies"):
            self._engine.declare_queue(queue_name)

    def call(self, ids: list[str], name: str, *arguments: Any) -> tuple[Any, ...]:
        """Return the result of a call, and the rows and the number of messages after it."""
        result = (getattr(self, name, None) or getattr(self.ledger, name))(*arguments)
        if isinstance(result, list):
            result = [type(r) if isinstance(r, exceptions.NotFound) else r for r in result]
        states = self.ledger.states([*ids, Fence.of(ids[0], 0).id])
        return result, states, self._engine.size("q")

    def clear(self, ids: list[str]) -> None:
        """Delete the rows and messages of a history."""
        for name in _WORKERS:
            self._brokers[name].settle_many(self._taken[name])
            self._taken[name], self._requeued[name] = [], []
        self._engine.purge("q")
        self.ledger.drop_many([*ids, Fence.of(ids[0], 0).id])

    def publish(self, rows: list[tuple[str, int, Fence]], queue_name: str) -> object:
        frames = []
        for id, epoch, _ in rows:
            request = request_messages.RequestMessage(
                id, "", {"task_cls": "T"}, epoch=epoch, ledger=self.ledger.digest
            )
            frames.append(_encoded(self._engine, request.to_message(queue_name), ""))
        counts = self._engine.open_and_publish([Opening(*row) for row in rows], frames)
        # Below a fence, the numbers have no effect.
        return [*counts] if rows[0][2] is NO_FENCE else None

    def take(self, name: str) -> list[Any]:
        results: list[Any] = []
        started = time.monotonic()
        for message in self._take(self._brokers[name], "q"):
            message.parse()
            assert message.taken_at is not None
            assert started <= message.taken_at <= time.monotonic()
            self._taken[name].append(message)
            results += [_row_of(message), message.redelivered, message.claim]
        return results

    @staticmethod
    def _take(broker: Broker, queue_name: str) -> list[Delivery]:
        broker.watch(queue_name)
        taken = broker.take_many([(1, (queue_name,))]) if broker.refresh() else ()
        broker.unwatch(queue_name)
        return [message for _, message in taken]

    def finish(self, name: str, number: int) -> list[Any]:
        messages = _picked(self._taken[name], number)
        results = self._finish(name, messages)
        # The requests are deleted.
        return results + [self._brokers[name].settle_many([message]) for message in messages]

    def finish_requeued(self, name: str, number: int) -> list[Any]:
        """Finish a request whose message was requeued, as by a connection that was closed since."""
        return self._finish(name, _picked(self._requeued[name], number))

    def _finish(self, name: str, messages: list[Delivery]) -> list[Any]:
        results: list[Any] = []
        for message in messages:
            id, epoch = _row_of(message)
            reply = _frame(self._engine, "reply", "replies", exchange="", correlation_id=id)
            results += self._brokers[name].finish([Finish(id, epoch, message, reply)])
        while replies := self._take(self._engine, "replies"):
            self._engine.fetch(replies)
            results += [reply.data for reply in replies]
            self._engine.settle_many(replies)
        return results

    def requeue(self, name: str, number: int, delivered: bool) -> None:
        for message in _picked(self._taken[name], number):
            self._brokers[name].requeue(message, delivered=delivered)
            self._requeued[name] += [message] if delivered else []

    def refuse(self, name: str, number: int) -> None:
        for message in _picked(self._taken[name], number):
            self._brokers[name].refuse(message)

    def settle(self, name: str, number: int) -> list[bool]:
        messages = _picked(self._taken[name], number)
        return [self._brokers[name].settle_many([message]) for message in messages]


def _row_of(message: Delivery) -> tuple[str, int]:
    id, epoch, *_ = message.label[1:].decode().split(" ")
    return id, int(epoch)


def _picked(messages: list[Delivery], number: int) -> list[Delivery]:
    """Remove and return one of the messages, if there are any."""
    return [messages.pop(number % len(messages))] if messages else []


def _acknowledging(messages: list[Delivery]) -> Callable[[Delivery], None]:
    """Return a handler that acknowledges and collects messages."""

    def handle(message: Delivery) -> None:
        message.ack()
        messages.append(message)

    return handle


def _assert_no_message(broker: Broker) -> None:
    with pytest.raises(TimeoutError):
        broker.drain(0.1)


def _fill(sender: Broker, receiver: Broker, count: int) -> None:
    """Declare the queue `q`, and publish numbers to it with the key `k`."""
    _declare(receiver, "q", "k")
    for number in range(count):
        _send(sender, number, "k")


def _declare(broker: Broker, queue: str, *keys: str) -> None:
    broker.declare_queue(queue)
    for key in keys:
        broker.bind(_EXCHANGE, key, queue)


def _frame(
    broker: Broker,
    body: Any,
    key: str,
    *,
    exchange: str = _EXCHANGE,
    headers: dict[str, Any] | None = None,
    correlation_id: str | None = None,
    reply_to: str | None = None,
    priority: int = 0,
) -> Frame:
    content = envelope.Envelope("T", body, key, correlation_id, reply_to, headers or {}, priority)
    if isinstance(body, bytes):
        content._encoded = body
    return _encoded(broker, content, exchange)


def _encoded(broker: Broker, content: envelope.Envelope, exchange: str) -> Frame:
    message = OutgoingMessage(content)
    message.encode(exchange, broker.labels)
    return message


def _send(broker: Broker, body: Any, key: str, **options: Any) -> bool:
    (routed,) = broker.publish_many([_frame(broker, body, key, **options)])
    return routed


def _await_messages(broker: Broker, deadline: float) -> list[Delivery]:
    """Wait for messages of queue `q`, and take them. A wait may end early."""
    while not (taken := _take(broker)) and time.monotonic() < deadline:
        broker.wait(_MAX_WAIT_SECONDS, ("q",))
    return taken


def _take(broker: Broker) -> list[Delivery]:
    """Take at most one message from the watched queue `q`."""
    broker.refresh()
    return [delivery for _, delivery in broker.take_many([(1, ("q",))])]


def _receive(broker: Broker, queue: str, count: int = 1) -> list[Delivery]:
    messages: list[Delivery] = []
    Consumer(broker, messages.append).consume((queue,))
    _drain(broker, messages, count)
    return messages


def _drain(broker: Broker, messages: list[Delivery], count: int) -> None:
    while len(messages) < count:
        broker.drain(_MAX_WAIT_SECONDS)
    assert len(messages) == count


def _body(message: Delivery) -> int:
    return int(message.body)


def _call_all(calls: queue.Queue[Callable[[], object] | None]) -> None:
    """Call each function after a pause in which the receiver usually begins to wait."""
    while (call := calls.get()) is not None:
        time.sleep(0.002)
        call()
