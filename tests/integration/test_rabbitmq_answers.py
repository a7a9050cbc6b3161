"""Replies to requests from RabbitMQ, written together with acknowledgements."""

from __future__ import annotations

import functools
import math
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.rabbitmq_clients import Client, ReplyingWorker, queues
from tests.support import brokers, outgoing, sample_tasks, wiretap
from tests.support.workers import until, worker_in_thread
from wbengine import engines, task
from wbengine.engines.worker_based._connections import consumer_loop, sender
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.patterns import unordered_flow

PUBLISH, ACK = (60, 40), (60, 80)


@pytest.fixture
def tapped(rabbitmq_server: brokers.Rabbitmq, rabbitmq_url: str) -> Iterator[Any]:
    """URL through a wiretap, and the wiretap."""
    with wiretap.to(rabbitmq_server.port) as tap:
        yield rabbitmq_url.replace(f":{rabbitmq_server.port}/", f":{tap.port}/"), tap


def frames(data: bytes) -> list[tuple[int, Any]]:
    """Return the channel and the method (or None) of each frame of a connection."""
    methods = []
    at = len(b"AMQP\0\0\x09\1")
    while at < len(data):
        kind, channel, size = struct.unpack_from(">BHI", data, at)
        method = struct.unpack_from(">HH", data, at + 7) if kind == 1 else None
        methods.append((channel, method))
        at += size + 8
    return methods


def acknowledgements(tap: Any) -> list[bool]:
    """Return for each acknowledgement whether it directly follows a reply on its channel."""
    follows = []
    for data in tap.said:
        channels: dict[int, list[Any]] = {}
        for channel, method in frames(bytes(data)):
            channels.setdefault(channel, []).append(method)
        for methods in channels.values():
            follows += [
                methods[at - 3 : at] == [PUBLISH, None, None]
                for at, method in enumerate(methods)
                if method == ACK
            ]
    return follows


def test_reply_is_published_before_request_is_acknowledged(tapped: Any, rabbitmq_url: str) -> None:
    url, tap = tapped
    asked = ReplyingWorker(url, slots=3)
    with Client(rabbitmq_url, "e").running() as e, asked.running(), asked.answering(3):
        for number in range(60):
            e.send(number, "q")
        until(lambda: len(e.received) == 60)
    assert acknowledgements(tap) == [True] * 60


def test_stored_reply_is_written_together_with_the_acknowledgement(
    tapped: Any, rabbitmq_url: str, tmp_path: Path
) -> None:
    url, tap = tapped
    ledger = f"sqlite:///{tmp_path}/ledger.db"
    flow = unordered_flow.Flow("f").add(*(sample_tasks.Echo(f"t{n}") for n in range(20)))
    with worker_in_thread(url, sample_tasks, ledger=ledger, threads_count=1):
        engines.run(
            flow, store={"value": 1}, engine="worker-based", url=rabbitmq_url, ledger=ledger
        )
    assert sum(acknowledgements(tap)) == 20


def test_threads_reply_to_each_request_once_within_prefetch_limit(rabbitmq_url: str) -> None:
    count = 1500
    with (
        Client(rabbitmq_url, "e").running() as e,
        ReplyingWorker(rabbitmq_url, slots=4).running() as w,
    ):
        with w.answering(4):
            for number in range(count):
                e.send(number, "q")
            until(lambda: len(e.received) == count, within=9.0)
        until(lambda: len(w.confirmed) == count)
        assert set(Counter(e.received).values()) == set(Counter(w.received).values()) == {1}
        assert 1 < w.max_held <= 4
        assert not w.proxy.consumer.work.held


def test_deferred_reply_is_written_with_next_reply_or_alone(rabbitmq_url: str) -> None:
    with Client(rabbitmq_url, "e").running() as e, ReplyingWorker(rabbitmq_url).running() as w:
        for number in range(3):
            e.send(number, "q")
        until(lambda: len(w.received) == 2)
        line = w.messages[0].channel.connection
        with line._socket._writing:  # no other thread writes meanwhile
            assert w.answer(w.messages[0], soon=True)
            assert w.answer(w.messages[1])
            assert len(line._socket._out) == 2
        line.flush()
        until(lambda: e.received == [0, 1] and len(w.received) == 3)
        assert w.answer(w.messages[2], soon=True)
        until(lambda: e.received == [0, 1, 2])


def test_lost_reply_is_published_again_and_its_request_is_redelivered(
    tapped: Any, rabbitmq_url: str
) -> None:
    url, tap = tapped
    with Client(rabbitmq_url, "e").running() as e, ReplyingWorker(url).running() as w:
        e.send(1, "q")
        until(lambda: w.received == [1])
        tap.swallows = True
        assert w.answer(w.messages[0])
        assert not w.proxy.consumer.work.held
        tap.cut()
        until(lambda: e.received == [1])
        until(lambda: w.confirmed == [1])
        until(lambda: w.received == [1, 1])
        assert w.messages[1].delivery_info["redelivered"]
        assert w.answer(w.messages[1])
        until(lambda: e.received == [1, 1])


def test_unconfirmed_reply_is_published_again(
    tapped: Any, rabbitmq_url: str, rabbitmq_server: brokers.Rabbitmq
) -> None:
    """The broker received the acknowledgement with the reply, so the request is not redelivered."""
    url, tap = tapped
    with Client(rabbitmq_url, "e").running() as e, ReplyingWorker(url).running() as w:
        e.send(1, "q")
        until(lambda: w.received == [1])
        tap.mutes = True
        assert w.answer(w.messages[0])
        until(lambda: e.received == [1])
        assert w.confirmed == []
        tap.cut()
        until(lambda: e.received == [1, 1])
        until(lambda: w.confirmed == [1])
        e.send(2, "q")
        until(lambda: w.received == [1, 2])
        assert w.answer(w.messages[1])
        until(lambda: e.received == [1, 1, 2])


def test_reply_is_refused_while_its_connection_is_blocked_or_lost(
    tapped: Any, rabbitmq_url: str
) -> None:
    url, tap = tapped
    with Client(rabbitmq_url, "e").running() as e, ReplyingWorker(url).running() as w:
        e.send(1, "q")
        until(lambda: w.received == [1])
        message = w.messages[0]
        connection = message.channel.connection
        connection.accepting_since = math.inf
        assert not w.answer(message)
        connection.accepting_since = 0.0
        assert w.answer(message)
        assert not w.answer(message)
        until(lambda: e.received == w.confirmed == [1])
        e.send(2, "q")
        until(lambda: w.received == [1, 2])
        tap.cut()
        until(lambda: w.received == [1, 2, 2])
        assert not w.answer(w.messages[1])
        assert w.answer(w.messages[2])
        until(lambda: e.received == [1, 2])


def test_reply_that_cannot_be_encoded_is_refused_and_can_be_repeated(rabbitmq_url: str) -> None:
    with Client(rabbitmq_url, "e").running() as e, ReplyingWorker(rabbitmq_url).running() as w:
        e.send(1, "q")
        until(lambda: w.received == [1])
        assert not w.answer(w.messages[0], to="x" * 300)
        assert w.answer(w.messages[0])
        until(lambda: e.received == [1])


def test_reply_that_broker_refuses_fails_alone(
    rabbitmq_server: brokers.Rabbitmq,
    rabbitmq_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The reply closes its channel once and is published again on another one. After a pause, later
    replies use the original channel again.
    """
    monkeypatch.setattr(consumer_loop, "REFUSED_PAUSE_SECONDS", 5.0)
    vhost = rabbitmq_url.rpartition("/")[2]
    failed: list[BaseException] = []
    with (
        Client(rabbitmq_url, "e").running() as e,
        ReplyingWorker(rabbitmq_url, slots=1).running() as w,
    ):
        only = {"exchange": "x", "write": r"^(e|q)$", "read": ".*"}
        rabbitmq_server.ask("PUT", "topic-permissions", vhost, brokers.USER, body=only)
        e.send(1, "q")
        until(lambda: w.received == [1])
        envelope = env.Envelope("TEST", {"n": 1}, routing_key="not-allowed")
        answer = outgoing.message(envelope, failed=failed.append)
        assert w.proxy.consumer.answer(answer, w.messages[0], False)
        until(lambda: w.received == [1, 1])  # the broker did not read the acknowledgement
        until(lambda: failed)
        assert "ACCESS_REFUSED" in str(failed[0])
        assert not w.answer(w.messages[1])
        w.proxy.consumer.ack(w.messages[1])
        e.send(2, "q")
        until(lambda: w.received == [1, 1, 2])
        until(lambda: w.answer(w.messages[2]))
        until(lambda: e.received == [2])
    assert len(failed) == 1
    assert "replies use another channel" in caplog.text


def test_worker_serves_two_queues_and_replies_to_all_requests(rabbitmq_url: str) -> None:
    side = ReplyingWorker(rabbitmq_url, slots=1)
    side.proxy.consumer.consume_shared(("first", "second"), 1)
    with Client(rabbitmq_url, "e").running() as e, side.running() as w:
        with side.answering(1):
            for number in range(10):
                e.send(number, "first")
                e.send(100 + number, "second")
            until(lambda: len(e.received) == 20)
        assert set(w.received) == {*range(10), *range(100, 110)}
    assert not side.proxy.consumer.work.held


def test_messages_of_each_publishing_thread_arrive_in_order(rabbitmq_url: str) -> None:
    threads, each = 4, 400
    with Client(rabbitmq_url, "a").running() as a, Client(rabbitmq_url, "b").running() as b:
        after: list[int] = []

        def say(number: int) -> None:
            for count in range(number * each, (number + 1) * each):
                envelope = env.Envelope("TEST", {"n": count}, routing_key="b")
                confirm = functools.partial(after.append, count)
                a.proxy.send(outgoing.message(envelope, after=confirm))

        saying = [threading.Thread(target=say, args=(number,)) for number in range(threads)]
        for thread in saying:
            thread.start()
        for thread in saying:
            thread.join()
        assert a.proxy.flush(60)
        until(lambda: len(b.received) == threads * each)
        assert sorted(after) == list(range(threads * each))
        for number in range(threads):
            mine = [n for n in b.received if n // each == number]
            assert mine == list(range(number * each, (number + 1) * each))


def test_delayed_acknowledgements_cover_exactly_acknowledged_messages(
    rabbitmq_url: str, rabbitmq_server: brokers.Rabbitmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They need neither a wake-up nor the sender, which may have no connection."""
    monkeypatch.setattr(consumer_loop, "ACK_DELAY_SECONDS", 3600.0)
    monkeypatch.setattr(sender.Sender, "_make_calls", lambda self: None)
    with Client(rabbitmq_url, "e", keeps=True).running() as e:
        e.proxy.consumer.keeps_queue = True
        for number in range(200):
            e.send(number, "e")
        until(lambda: len(e.received) == 200)
        for message in [*e.messages[:50], *e.messages[60:200]]:
            e.proxy.consumer.ack_later(message)
    with Client(rabbitmq_url, "e").running() as heir:
        until(lambda: len(heir.received) == 10)
        assert heir.received == list(range(50, 60))
    assert "e" not in queues(rabbitmq_server, rabbitmq_url)


def test_progress_reported_just_before_end_of_task_is_received(rabbitmq_url: str) -> None:
    heard: dict[str, set[float]] = {}
    flow = unordered_flow.Flow("f")
    for number in range(20):
        values = heard[f"p{number}"] = set()
        one = sample_tasks.Progressing(name=f"p{number}", provides=f"steps{number}")
        one.notifier.register(
            task.EVENT_UPDATE_PROGRESS,
            lambda _, details, values=values: values.add(details["progress"]),
        )
        flow.add(one)
    with worker_in_thread(rabbitmq_url, sample_tasks, threads_count=2):
        engines.load(flow, engine="worker-based", url=rabbitmq_url).run()
    assert all(values == {0.0, 0.25, 0.5, 0.75, 1.0} for values in heard.values()), heard
