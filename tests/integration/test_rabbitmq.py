"""Proxies on RabbitMQ: publishing, consuming and the first connection."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import kombu
import pytest

from tests.integration.rabbitmq_clients import QUICK, Client, queues
from tests.support import brokers, outgoing, python, tcp_proxy
from tests.support.waiting import RECONNECTED
from tests.support.workers import REPOSITORY, until
from wbengine import exceptions as exc
from wbengine import transports
from wbengine.engines.worker_based._connections import consumer_loop, queue_counts
from wbengine.engines.worker_based._connections import receiver as receivers
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based.proxy import Proxy
from wbengine.transports._amqp import amqp_confirms, amqp_socket
from wbengine.transports._kombu import kombu_link


@pytest.fixture
def through(rabbitmq_server: brokers.Rabbitmq, rabbitmq_url: str) -> Iterator[Any]:
    """URL through a proxy that can break, and the proxy."""
    with tcp_proxy.threaded(rabbitmq_server.port) as proxy:
        yield rabbitmq_url.replace(f":{rabbitmq_server.port}/", f":{proxy.port}/"), proxy


def waiting(url: str, queue: str) -> int:
    with kombu.Connection(url) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).message_count)


def test_message_with_undecodable_properties_is_rejected(rabbitmq_url: str) -> None:
    """py-amqp would drop the connection and receive the same message again, endlessly."""
    with Client(rabbitmq_url, "a").running() as a, kombu.Connection(rabbitmq_url) as connection:
        channel = connection.channel()
        for properties in ({"type": b"\xff"}, {"type": "TEST", "correlation_id": b"\xfe\xff"}):
            message = amqp.Message(b'{"n": 1}', **properties)
            channel.basic_publish(message, exchange="x", routing_key="a")
        late = amqp.Message(b"{}")
        table = b"\x01tT" + b"\xff" * 8  # A time stamp.
        late._serialize_properties = lambda: b"\x20\0" + len(table).to_bytes(4, "big") + table
        large = amqp.Message(b" " * 300_000 + b"{}", type=b"\xff")
        for message in (amqp.Message(b"{}", type=b"\xff", app_id="x"), late, large):
            channel.basic_publish(message, exchange="x", routing_key="a")
        until(lambda: a.proxy.dispatcher.refused == {"type": 4})
        a.send(2, "a")
        until(lambda: a.received == [1, 2])


def test_message_with_deeply_nested_headers_is_received_or_rejected(rabbitmq_url: str) -> None:
    """Also at the depth at which the stack is too small only for one of two decoders."""
    with Client(rabbitmq_url, "a").running() as a, kombu.Connection(rabbitmq_url) as connection:
        a.send(1, "a")
        until(lambda: a.received == [1])
        channel = connection.channel()
        table = b"\0\0\0\0"
        limit = sys.getrecursionlimit()
        for depth in range(1, limit):
            content = b"\x01tF" + table
            table = len(content).to_bytes(4, "big") + content
            if depth > limit - 80:
                message = amqp.Message(b"{}")
                properties = b"\x20\0" + table
                message._serialize_properties = lambda content=properties: content
                channel.basic_publish(message, exchange="x", routing_key="a")
        until(lambda: a.proxy.dispatcher.refused == {"type": 79})
        a.send(2, "a")
        until(lambda: a.received == [1, 2])


# Publishing.


def test_messages_are_confirmed_in_order_and_no_queue_remains(rabbitmq_url: Any) -> None:
    after: list[int] = []
    with Client(rabbitmq_url, "a").running() as a, Client(rabbitmq_url, "b").running() as b:
        started = time.perf_counter()
        for number in range(3000):
            a.send(number, "b", after=lambda n=number: after.append(n))
        assert a.proxy.flush(60)
        print(f"{3000 / (time.perf_counter() - started):.0f} confirmed publishes a second")
        until(lambda: len(b.received) == 3000)
        assert b.received == after == list(range(3000))
    assert rabbitmq_url.left() == []


def test_headers_larger_than_a_frame_do_not_block_other_messages(rabbitmq_url: str) -> None:
    errors: list[BaseException] = []
    with Client(rabbitmq_url, "a").running() as a:
        a.send(1, "a", headers={"wbe-ids": ["x" * 100] * 2000}, failed=errors.append)
        a.send(2, "a")
        until(lambda: a.received == [2])
        assert "the headers of a message must have at most 131064 bytes" in str(errors)


def test_message_without_a_queue_is_reported_as_unroutable(rabbitmq_url: str) -> None:
    reports: list[str] = []
    with Client(rabbitmq_url, "a").running() as a:
        for number in (1, 2, 3):
            to = "nobody" if number == 2 else "a"
            a.send(
                number,
                to,
                after=lambda n=number: reports.append(f"after {n}"),
                unrouted=lambda n=number: reports.append(f"unrouted {n}"),
            )
        assert a.proxy.flush(60)
        assert sorted(reports) == ["after 1", "after 3", "unrouted 2"]
        until(lambda: a.received == [1, 3])


@pytest.mark.parametrize("persistent", [True, False])
def test_persistence_and_priority_are_transmitted(rabbitmq_url: str, persistent: bool) -> None:
    with Client(rabbitmq_url, "a").running() as a:
        a.send(1, "a", persistent=persistent, priority=7)
        until(lambda: a.messages)
        properties = a.messages[0].properties
        assert (properties["delivery_mode"] == 2, properties["priority"]) == (persistent, 7)


def test_message_that_closes_its_channel_fails_alone(
    rabbitmq_server: brokers.Rabbitmq, rabbitmq_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    vhost = rabbitmq_url.rpartition("/")[2]
    failed: list[BaseException] = []
    with Client(rabbitmq_url, "a").running() as a:
        only = {"exchange": "x", "write": r"^(a|wbe\..*)$", "read": ".*"}
        rabbitmq_server.ask("PUT", "topic-permissions", vhost, brokers.USER, body=only)
        for number in range(5):
            a.send(number, "not-allowed" if number == 2 else "a", failed=failed.append)
        assert a.proxy.flush(60)
        until(lambda: set(a.received) == {0, 1, 3, 4})
    assert len(failed) == 1
    assert "ACCESS_REFUSED" in str(failed[0])


def test_cut_connections_lose_no_message_and_keep_order(through: Any) -> None:
    url, between = through
    after: list[int] = []
    with Client(url, "a").running() as a, Client(url, "b").running() as b:
        for number in range(2000):
            a.send(number, "b", after=lambda n=number: after.append(n))
            if number % 400 == 250:
                until(lambda n=number: len(after) > n / 2)
                between.cut()
        assert a.proxy.flush(60)
        until(lambda: len(set(b.received)) == 2000)
        assert sorted(after) == list(range(2000))
        assert list(dict.fromkeys(b.received)) == list(range(2000))


def test_confirmation_received_with_end_of_connection_counts(
    through: Any, rabbitmq_url: str
) -> None:
    """The confirmations and the end of the connection arrive in one read."""
    url, between = through
    after: list[int] = []
    goes_on = threading.Event()

    def done(number: int) -> None:
        after.append(number)
        assert goes_on.wait(60)

    with Client(url, "a").running() as a, Client(rabbitmq_url, "b").running() as b:
        with a.proxy._sender._lock:
            for number in range(40):
                a.send(number, "b", after=lambda n=number: done(n), defer=True)
        until(lambda: len(b.received) >= 16 and after)
        between.half_close()
        goes_on.set()
        assert a.proxy.flush(60)
        assert sorted(after) == list(range(40))


def test_unconfirmed_messages_are_published_again_in_order(through: Any, rabbitmq_url: str) -> None:
    url, between = through
    with Client(url, "a").running() as a, Client(rabbitmq_url, "b").running() as b:
        a.send(0, "b")
        assert a.proxy.flush(60)
        until(lambda: b.received == [0])
        between.stall()
        confirms = a.proxy._sender._writer.confirming
        for number in range(1, 100):
            a.send(number, "b")
        until(lambda: len(confirms.unconfirmed) == 99)
        between.cut()
        between.resume()
        until(lambda: len(b.received) >= 100, within=RECONNECTED)
        assert b.received == list(range(100))


def test_reply_survives_connection_loss_while_its_queue_is_declared(
    through: Any, rabbitmq_url: str
) -> None:
    url, between = through
    failed: list[BaseException] = []
    envelope = env.Envelope("RESPONSE", {"n": 1}, routing_key="engine-1")
    with Client(url, "a", interop="taskflow").running() as a:
        until(lambda: a.proxy._sender._writer)
        between.hold("engine-1")
        answer = outgoing.message(envelope, failed=failed.append)
        a.proxy.send(answer)
        until(lambda: between.held("engine-1"))
        between.cut()
        until(lambda: answer.sent, within=RECONNECTED)
        assert a.proxy.flush(60)
        assert not failed
        assert waiting(rabbitmq_url, "x_engine-1") == 1


def test_unconfirmed_message_does_not_count_as_sent(
    through: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(amqp_confirms, "CONFIRM_TIMEOUT_SECONDS", 1.0)
    url, between = through
    reports: list[str] = []
    with Client(url, "a").running() as a, Client(url, "b").running() as b:
        a.send(0, "b")
        assert a.proxy.flush(60)
        between.stall()
        a.send(1, "b", after=lambda: reports.append("after 1"))
        unsure = {"uncertain": lambda: reports.append("uncertain 2")}
        a.send(2, "b", after=lambda: reports.append("after 2"), **unsure)
        until(lambda: reports)
        assert reports == ["uncertain 2"]
        assert a.proxy.flush(0) is False
        between.resume()
        assert a.proxy.flush(60)
        until(lambda: 1 in b.received, within=RECONNECTED)
        assert reports == ["uncertain 2", "after 1"]
    assert "confirmed no message" in caplog.text


def test_stalled_idle_connection_is_detected_by_heartbeats(
    through: Any, caplog: pytest.LogCaptureFixture
) -> None:
    url, between = through
    with Client(url, "a", transport_options=QUICK).running() as a:
        between.stall()
        until(lambda: "lost the connection to the broker" in caplog.text)
        until(lambda: "cannot publish" in caplog.text)
        between.resume()
        a.send(1, "a")
        until(lambda: 1 in a.received, within=RECONNECTED)


@pytest.mark.slow
def test_connection_survives_long_handlers_and_idle_time(
    rabbitmq_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Heartbeats are sent between messages and while the connection is idle."""
    with Client(rabbitmq_url, "a", transport_options=QUICK).running() as a:
        ends = time.monotonic() + 2.5
        number = 0
        confirmed: list[int] = []

        def after() -> None:
            time.sleep(0.02)
            confirmed.append(number)

        while time.monotonic() < ends:
            a.send(number, "a", after=after)
            number += 1
            until(lambda n=number: len(a.received) == len(confirmed) == n)
        assert a.received == list(range(number))
        time.sleep(2.5)  # nothing may happen during this time
        a.send(number, "a")
        until(lambda: len(a.received) == number + 1)
    assert not caplog.text


def test_consumer_without_deliveries_is_recreated(
    rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(receivers, "ECHO_AFTER_SECONDS", 0.2)
    monkeypatch.setattr(receivers, "DEAF_AFTER_SECONDS", 0.4)
    with Client(rabbitmq_url, "a").running() as a:
        with kombu.Connection(rabbitmq_url) as connection:
            thief = kombu.Consumer(
                connection, kombu.Queue("a", no_declare=True), on_message=lambda message: None
            )
            thief.consumer_arguments = {"x-priority": 10}
            thief.consume()
            until(lambda: "the broker delivers no messages" in caplog.text)
        until(lambda: a.arrives("a"))


def test_channel_that_cannot_be_opened_again_ends_the_connection(
    through: Any, rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the worker receives no requests, but everything else."""
    url, between = through
    revive = amqp.Channel._do_revive
    stalled = threading.Event()

    def stall(channel: Any) -> None:
        between.stall()
        stalled.set()
        revive(channel)

    with (
        Client(url, "w", queues=("q",)).running() as w,
        Client(rabbitmq_url, "e").running() as e,
    ):
        monkeypatch.setattr(amqp_socket, "STALL_SECONDS", 0.5)
        monkeypatch.setattr(amqp.Channel, "_do_revive", stall)
        channel: Any = w.proxy.consumer.work.channel
        channel.connection.put(channel.encoder.ack(999))  # An unknown message: an error.
        channel.connection.flush()
        assert stalled.wait(60)
        time.sleep(1.0)
        monkeypatch.undo()
        between.resume()
        e.send(1, "q")
        until(lambda: w.received == [1], within=RECONNECTED)


@pytest.mark.parametrize("removed", ["binding", "exchange"])
def test_removed_queues_and_exchanges_are_declared_again(
    rabbitmq_server: brokers.Rabbitmq,
    rabbitmq_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    removed: str,
) -> None:
    monkeypatch.setattr(receivers, "ECHO_AFTER_SECONDS", 0.3)
    # does not reconnect for this reason
    monkeypatch.setattr(receivers, "DEAF_AFTER_SECONDS", 600.0)
    with (
        Client(rabbitmq_url, "a").running() as a,
        Client(rabbitmq_url, "b", queues=("q",)).running(),
    ):
        if removed == "exchange":
            rabbitmq_server.ask("DELETE", "exchanges", rabbitmq_url.rpartition("/")[2], "x")
        else:
            with kombu.Connection(rabbitmq_url) as connection:
                for name in ("a", "b", "q"):
                    connection.channel().queue_unbind(name, "x", name)
        sent: list[str] = []

        def reached(name: str) -> bool:
            callbacks = {"after": lambda: sent.append(name), "unrouted": lambda: None}
            a.send(0, name, **callbacks)
            return name in sent

        for name in ("a", "b", "q"):
            until(lambda n=name: reached(n))
    assert "oneself" not in caplog.text


@pytest.mark.slow
def test_killed_broker_loses_no_persistent_message(broker_servers: brokers.Brokers) -> None:
    rabbitmq = broker_servers["own rabbitmq"]
    after: list[int] = []
    with (
        rabbitmq.place() as url,
        Client(url, "a").running() as a,
        Client(url, "b").running() as b,
    ):
        for number in range(3000):
            a.send(number, "b", persistent=True, after=lambda n=number: after.append(n))
        until(lambda: len(after) > 300)
        rabbitmq.kill()
        rabbitmq.start()
        assert a.proxy.flush(60)
        until(lambda: len(set(b.received)) == 3000)
        assert sorted(after) == list(range(3000))


# Consuming.


def test_worker_receives_at_most_as_many_requests_as_slots(rabbitmq_url: str) -> None:
    side = Client(rabbitmq_url, "w", queues=("q",), slots=3, keeps=True)
    with side.running() as w:
        for number in range(10):
            w.send(number, "q")
        assert w.proxy.flush(30)
        until(lambda: len(w.received) == 3)
        for taken in range(3, 10):
            assert waiting(rabbitmq_url, "q") == 10 - taken
            w.proxy.consumer.ack(w.messages[taken - 3])
            until(lambda n=taken: len(w.received) == n + 1)
        assert w.received == list(range(10))
        for message in w.messages[7:]:
            w.proxy.consumer.ack(message)


def test_slots_stay_occupied_across_reconnect(
    through: Any, caplog: pytest.LogCaptureFixture
) -> None:
    url, between = through
    with Client(url, "w", queues=("q",), slots=2, keeps=True).running() as w:
        for number in range(4):
            w.send(number, "q")
        assert w.proxy.flush(30)
        until(lambda: w.received == [0, 1])
        between.cut()
        w.send(9, "w")
        until(lambda: 9 in w.received)
        w.proxy.consumer.ack(w.messages[2])
        assert w.received == [0, 1, 9]
        w.proxy.consumer.ack(w.messages[0])
        until(lambda: len(w.received) == 4)
        again = w.messages[3]
        assert (w.received[3], again.delivery_info["redelivered"]) == (0, True)
        w.proxy.consumer.ack(w.messages[1])
        until(lambda: len(w.received) == 5)
        w.proxy.consumer.ack(again)
        until(lambda: len(w.received) == 6)
        assert w.received[4:] == [1, 2]
    assert "cannot be acknowledged" not in caplog.text


def test_long_task_is_acknowledged_early_and_keeps_its_slot(
    rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kombu_link, "ACK_AFTER_SECONDS", 0.3)
    side = Client(rabbitmq_url, "w", queues=("q",), slots=2, keeps=True)
    work = side.proxy.consumer.work
    with side.running() as w:
        for number in range(5):
            w.send(number, "q")
        until(lambda: w.received == [0, 1])
        until(lambda: len(work.channel.acknowledged_early) == 2)
        w.send(9, "w")
        until(lambda: 9 in w.received)
        assert w.received == [0, 1, 9]
        w.proxy.consumer.ack(w.messages[0])
        until(lambda: w.received == [0, 1, 9, 2])
        until(lambda: len(work.channel.acknowledged_early) == 2)
        w.proxy.consumer.ack(w.messages[1])
        w.proxy.consumer.ack(w.messages[3])
        until(lambda: w.received == [0, 1, 9, 2, 3, 4])
        for message in w.messages[4:]:
            w.proxy.consumer.ack(message)
        until(lambda: not work.held)


def test_consuming_requests_can_be_paused_and_resumed(rabbitmq_url: str) -> None:
    with Client(rabbitmq_url, "w", queues=("q",), slots=2).running() as w:
        w.pause()
        w.pause()
        for number in range(5):
            w.send(number, "q")
        w.send(9, "w")
        until(lambda: w.received == [9])
        assert waiting(rabbitmq_url, "q") == 5
        w.proxy.consumer.resume_requests()
        w.proxy.consumer.resume_requests()
        until(lambda: sorted(w.received) == [0, 1, 2, 3, 4, 9])


def test_paused_worker_then_takes_no_more_requests_than_slots(
    rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it requeues requests, and receives them again, as often as it can."""
    returned: list[Any] = []
    monkeypatch.setattr(consumer_loop.ConsumerLoop, "return_unstarted", returned.append)
    with Client(rabbitmq_url, "w", queues=("q",), slots=3, keeps=True).running() as w:
        for number in range(2):
            w.send(number, "q")
        until(lambda: len(w.received) == 2)
        w.pause()
        w.proxy.consumer.resume_requests()
        for number in range(2, 6):
            w.send(number, "q")
        until(lambda: len(w.received) == 3)
        w.proxy.consumer.ack(w.messages[0])
        until(lambda: len(w.received) == 4)
        w.send(9, "w")
        until(lambda: 9 in w.received)
        assert waiting(rabbitmq_url, "q") == 2
        assert not returned


@pytest.mark.parametrize("header", [{}, {hd.WBE_LEDGER: "x"}], ids=["no ledger", "ledger"])
def test_unstarted_request_is_requeued_with_its_properties(
    rabbitmq_url: str, header: dict[str, str]
) -> None:
    """Without a ledger the request must not be marked as redelivered, because it never started."""
    with Client(rabbitmq_url, "w", queues=("q",), slots=1, keeps=True).running() as w:
        w.send(1, "q", headers=header, priority=4, persistent=True)
        until(lambda: w.received == [1])
        w.pause()
        w.proxy.consumer.return_unstarted(w.messages[0])
        with Client(rabbitmq_url, "v", queues=("q",)).running() as v:
            until(lambda: v.received == [1])
            message = v.messages[0]
            assert message.delivery_info["redelivered"] is bool(header)
            assert message.properties["priority"] == 4
            assert message.properties["delivery_mode"] == 2
    assert rabbitmq_url.left() == []


def test_acknowledgement_just_before_closing_counts(rabbitmq_url: Any) -> None:
    with Client(rabbitmq_url, "w", queues=("q",), slots=3, keeps=True).running() as w:
        for number in range(3):
            w.send(number, "q")
        until(lambda: len(w.received) == 3)
        for message in w.messages:
            w.proxy.consumer.ack(message)
    assert rabbitmq_url.left() == []


def test_unacknowledged_message_stays_when_connection_ends(rabbitmq_url: Any) -> None:
    with Client(rabbitmq_url, "w", queues=("q",), keeps=True).running() as w:
        w.send(1, "q")
        until(lambda: w.received == [1])
    assert rabbitmq_url.left() == ["exchange x", "queue q"]
    assert waiting(rabbitmq_url, "q") == 1


def test_message_of_highest_priority_is_delivered_first(rabbitmq_url: str) -> None:
    with Client(rabbitmq_url, "w", queues=("q",), slots=1).running() as w:
        w.pause()
        for number, priority in enumerate([0, 5, 9, 5, 0, 9]):
            w.send(number, "q", priority=priority)
        assert w.proxy.flush(30)
        w.proxy.consumer.resume_requests()
        until(lambda: len(w.received) == 6)
        assert w.received == [2, 5, 1, 3, 0, 4]


def test_queues_are_emptied_in_order(rabbitmq_url: str) -> None:
    with Client(rabbitmq_url, "w", queues=("p", "q", "r"), slots=2, keeps=True).running() as w:
        w.send(100, "q")
        until(lambda: w.received == [100])  # an idle consumer accepts messages of any queue
        w.proxy.consumer.ack(w.messages[0])
        w.pause()
        for number in range(5):
            for start, queue in ((30, "r"), (20, "q"), (10, "p")):
                w.send(start + number, queue)
        assert w.proxy.flush(30)
        w.proxy.consumer.resume_requests()
        done = 1
        while done < 16:
            until(lambda n=done: len(w.received) > n)
            w.proxy.consumer.ack(w.messages[done])
            done += 1
            if done == 8:  # overtakes messages of later queues
                w.send(15, "p")
                assert w.proxy.flush(30)
        until(lambda: len(w.received) == 17)
        w.proxy.consumer.ack(w.messages[16])
        assert w.received[1:6] == [10, 11, 12, 13, 14]
        assert w.received.index(15) < w.received.index(24)
        assert w.received[-5:] == [30, 31, 32, 33, 34]


def test_deleted_queue_is_declared_again(rabbitmq_url: str) -> None:
    with Client(rabbitmq_url, "w", queues=("q",)).running() as w:
        with kombu.Connection(rabbitmq_url) as connection:
            connection.channel().queue_delete("q")
        until(lambda: w.arrives("q"))


def test_stopped_consumer_keeps_queues_and_exchanges_of_others(rabbitmq_url: Any) -> None:
    with Client(rabbitmq_url, "v", queues=("q", "other")).running() as v:
        with Client(rabbitmq_url, "w", queues=("q",)).running():
            pass
        v.send(1, "q")
        until(lambda: v.received == [1])
        v.pause()
        v.send(2, "other")
        assert v.proxy.flush(30)
    assert rabbitmq_url.left() == ["exchange x", "queue other"]  # it contains a message


def test_queues_are_durable_and_expire_after_a_week_without_use(
    rabbitmq_server: brokers.Rabbitmq, rabbitmq_url: str
) -> None:
    with Client(rabbitmq_url, "w", queues=("q",)).running():
        declared = queues(rabbitmq_server, rabbitmq_url)
        assert set(declared) == {"w", "q"}
        for each in declared.values():
            assert each["durable"] and not each["auto_delete"] and not each["exclusive"]
        week = 7 * 24 * 3600 * 1000
        assert declared["q"]["arguments"]["x-expires"] == week
        assert declared["q"]["arguments"]["x-max-priority"] == 9
        # No other process takes over the name of a worker.
        assert declared["w"]["arguments"]["x-expires"] == 600 * 1000
        with Client(rabbitmq_url, "e").running():
            declared = queues(rabbitmq_server, rabbitmq_url)
            assert declared["e"]["arguments"]["x-expires"] == week


def test_queue_of_dead_process_is_deleted_unless_it_has_a_consumer(rabbitmq_url: Any) -> None:
    with kombu.Connection(rabbitmq_url) as connection, Client(rabbitmq_url, "e").running() as e:
        exchange = kombu.Exchange("x", "topic", auto_delete=True)
        kombu.Queue("gone", exchange, "gone")(connection.channel()).declare()
        with Client(rabbitmq_url, "w", queues=("q",)).running() as w:
            e.proxy.consumer.delete_private_queue("gone")
            e.proxy.consumer.delete_private_queue("gone")
            e.proxy.consumer.delete_private_queue("w")
            e.send(1, "e")
            until(lambda: e.received == [1])
            until(lambda: "queue gone" not in rabbitmq_url.left())
            e.send(2, "w")
            until(lambda: w.received == [2])
    assert rabbitmq_url.left() == []


FROZEN = """
import sys, threading
from tests.integration.rabbitmq_clients import QUICK, Client
side = Client(sys.argv[1], "shared", transport_options=QUICK)
with side.running():
    print("up", flush=True)
    sys.stdin.read()
"""


def test_frozen_engine_does_not_keep_replies_of_its_successor(rabbitmq_url: str) -> None:
    """Both consume from one queue: the frozen one would receive half of the replies."""
    command = ["-c", FROZEN, rabbitmq_url]
    frozen = python.start(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert frozen.stdout is not None and frozen.stdout.readline() == b"up\n"
        os.kill(frozen.pid, signal.SIGSTOP)
        with Client(rabbitmq_url, "shared", transport_options=QUICK).running() as heir:
            for number in range(20):
                heir.send(number, "shared")
            assert heir.proxy.flush(30)
            until(lambda: sorted(set(heir.received)) == list(range(20)))
    finally:
        frozen.kill()
        frozen.communicate()


# First connection.


@contextlib.contextmanager
def silent() -> Iterator[int]:
    """Yield a port that accepts connections and never replies."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def refusal(url: str) -> str:
    proxy = Proxy("a", "x", {}, url=url)
    with pytest.raises(exc.TransportFailure) as caught:
        proxy.start()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def connect_within(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the maximum duration of the first connection."""
    return functools.partial(monkeypatch.setattr, consumer_loop, "CONNECT_TIMEOUT_SECONDS")


@pytest.mark.parametrize("wrong", ["password", "vhost"])
def test_start_with_wrong_password_or_vhost_fails_at_once(
    rabbitmq_server: brokers.Rabbitmq, rabbitmq_url: str, wrong: str, connect_within: Any
) -> None:
    connect_within(3600.0)  # the failure is not a timeout
    if wrong == "password":
        text = refusal(rabbitmq_url.replace(rabbitmq_server.password, "s3cret"))
        assert "it refuses this user or password" in text
        assert "s3cret" not in text
    else:
        text = refusal(rabbitmq_url.rpartition("/")[0] + "/missing")
        assert "it has no such virtual host" in text
        assert rabbitmq_server.password not in text


@pytest.mark.parametrize("case", ["port", "silent", "name"])
def test_start_without_reachable_broker_fails_within_timeout(
    connect_within: Any, case: str
) -> None:
    connect_within(1.2)
    started = time.monotonic()
    with silent() as port:
        host, says = {
            "port": ("127.0.0.1:1", "nothing listens there"),
            "silent": (f"127.0.0.1:{port}", "does not answer"),
            "name": ("no-such-host.invalid", "cannot be resolved"),
        }[case]
        text = refusal(f"amqp://me:s3cret@{host}//")
    assert time.monotonic() - started < 30
    assert says in text
    assert f"amqp://me:**@{host}" in text
    assert "s3cret" not in text


@pytest.mark.parametrize("responds", [True, False], ids=["down", "dead host"])
@pytest.mark.parametrize("count", [1, 2])
def test_consumers_are_counted_on_a_broker_that_can_be_reached(
    rabbitmq_url: str, count: int, responds: bool
) -> None:
    """A dead worker of TaskFlow would count as alive as long as the first brokers are down."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        if not responds:
            unused.listen()
        down = f"amqp://127.0.0.1:{unused.getsockname()[1]}/;"
        target = transports.resolve(f"{down * count}{rabbitmq_url}")
        has_consumer = queue_counts.consumer_check(target, "x")
        with Client(rabbitmq_url, "topic", interop="taskflow").running():
            assert has_consumer("topic")
        until(lambda: not has_consumer("topic"))
