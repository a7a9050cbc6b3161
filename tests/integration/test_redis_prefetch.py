"""Messages that Redis delivers at the end of a blocking wait."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import threading
import time

import pytest

from tests.support.redis_ends import SOON, Both
from tests.support.workers import until
from wbengine import exceptions
from wbengine.transports._redis import redis_link, redis_scripts
from wbengine.transports._redis.redis_link import LOST

TAKE = redis_scripts.SCRIPTS["take"].digest

# A wait may time out at any moment; then no client blocks in the server.
pytestmark = pytest.mark.usefixtures("patient")


def consume_private(end, *names, **options):
    for name in names or ("mine",):
        end.queue(name, name, exclusive=True)
    return end.consume(*(names or ("mine",)), **options)


def publish_together(end, *bodies, key="mine"):
    """Publish messages in one step."""
    frames = [end.channel.frame(body, "ex", key) for body in bodies]
    assert all(end.store.publish_many(frames))


def wait_until_blocked(end, client):
    """Wait until the consumer blocks in the server; no message has arrived."""

    def began():
        end.assert_no_message()
        return end.store._waiting.is_blocked

    until(began)
    until(lambda: client.info("clients")["blocked_clients"])


def blocked_taker(end, client, *names, **options):
    """Return a consumer of private queues that blocks in the server."""
    taker = consume_private(end, *names, **options)
    wait_until_blocked(taker, client)
    return taker


def held(client):
    return [key for key in client.keys("*}:h:*") for field in client.hkeys(key) if field]


def test_message_is_delivered_with_end_of_wait_without_another_take(ends, client):
    taker, sender = blocked_taker(ends(), client), ends()
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    sender.send("one", "mine")
    assert taker.drain(1) == ["one"]
    asked = client.info("commandstats")["cmdstat_evalsha"]["calls"] - before
    assert asked == 2  # published, taken


@pytest.mark.parametrize("prefetch", [1, 2])
def test_prefetch_limits_delivered_messages(ends, prefetch, client):
    taker, sender = blocked_taker(ends(), client, prefetch=prefetch, ack=False), ends()
    publish_together(sender, *range(9))
    taker.drain(prefetch)
    taker.assert_no_message()
    assert taker.got == list(range(prefetch))
    while len(taker.got) < 9 or taker.messages:
        taker.messages.pop(0).ack()
        if len(taker.got) < 9:
            taker.drain(len(taker.got) + 1)
    assert taker.got == list(range(9))
    assert not held(client)


def test_immediate_acknowledgement_delivers_next_message_at_once(ends, client):
    taker, sender = blocked_taker(ends(), client, prefetch=1), ends()
    publish_together(sender, *range(30))
    assert taker.drain(30) == list(range(30))


def test_prefetched_message_is_delivered_before_later_ones(ends, client):
    taker, sender = consume_private(ends(), prefetch=3), ends()
    for start in range(0, 120, 12):
        wait_until_blocked(taker, client)
        publish_together(sender, *range(start, start + 6))
        until(lambda: held(client))
        publish_together(sender, *range(start + 6, start + 12))
        taker.drain(start + 12)
    assert taker.got == list(range(120))


def test_message_published_while_consumer_had_no_credit_is_delivered(ends, client):
    taker, sender = blocked_taker(ends(), client, prefetch=1, ack=False), ends()
    publish_together(sender, 0, 1, 2)
    taker.drain(1)
    for number in range(3, 30):
        taker.messages[-1].ack()
        sender.send(number, "mine")
        taker.drain(len(taker.got) + 1)
    while len(taker.got) < 30:
        taker.messages[-1].ack()
        taker.drain(len(taker.got) + 1)
    assert taker.got == list(range(30))


def test_cancelled_consumer_returns_prefetched_messages(ends, client):
    taker, sender, other = blocked_taker(ends(), client, prefetch=1, ack=False), ends(), ends()
    publish_together(sender, 0, 1, 2)
    taker.drain(1)
    taker.channel.stop("mine")
    other.consume("mine")
    assert other.drain(2) == [1, 2]
    assert [m.delivery_info["redelivered"] for m in other.messages] == [False, False]


def test_consumer_cancelled_while_it_waits_takes_no_message(ends, client):
    taker, sender, other = blocked_taker(ends(), client), ends(), ends()
    taker.channel.stop("mine")
    sender.send("x", "mine")
    assert other.consume("mine").drain(1) == ["x"]
    assert not taker.channel.ready


def test_connection_closed_while_it_waits_returns_its_message(ends, client):
    taker, sender = blocked_taker(ends(), client), ends()
    sender.send("x", "mine")
    until(lambda: held(client))
    taker.close()
    other = ends().consume("mine")
    assert other.drain(1) == ["x"]
    assert other.messages[0].delivery_info["redelivered"] is False


def test_get_returns_prefetched_message(ends, client):
    taker, sender = blocked_taker(ends(), client, "mine", "yours"), ends()
    sender.send("x", "mine")
    sender.send("y", "yours")
    until(lambda: held(client))
    assert json.loads(taker.channel.get("yours").body) == "y"
    assert taker.channel.get("yours") is None
    assert taker.drain(1) == ["x"]


def test_wake_up_together_with_delivery_is_noticed(ends, client):
    """A slot becomes free while a message arrives in the private queue."""
    taker, sender = consume_private(ends()), ends()
    work = taker.connection.channel()
    taker.queue("work", "work")
    work.limit(1)
    given = []
    work.subscribe("work", given.append)
    sender.send(0, "work")
    taker.drain_until(lambda: given)
    for number in range(1, 40):
        wait_until_blocked(taker, client)
        sender.send(number, "work")
        sender.send(number, "mine")
        given[-1].ack()
        taker.drain_until(lambda n=number: len(given) > n and len(taker.got) >= n)
    assert taker.got == list(range(1, 40))


def test_consumer_without_credit_wakes_up_with_over_1024_open_files(ends):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
    files = [os.dup(0) for _ in range(1030)]
    try:
        taker, sender = consume_private(ends(), prefetch=1, ack=False), ends()
        for number in range(3):
            sender.send(number, "mine")
        taker.drain(1)
        taker.assert_no_message()
        taker.messages[0].ack()
        assert taker.drain(2) == [0, 1]
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("lost", ["scripts", "everything", "consumers"])
def test_waiting_consumer_survives_data_loss_of_server(ends, monkeypatch, lost, client):
    taker, sender = consume_private(ends()), ends()
    if lost == "everything":
        with monkeypatch.context() as impatient:  # the consumer detects the loss by polling
            impatient.setattr(redis_link, "POLL_SECONDS", 1)
            taker.assert_no_message()
            client.flushdb()
            until(lambda: taker.assert_no_message() or client.exists("wbe:{ex}:c"))
    else:
        wait_until_blocked(taker, client)
        if lost == "scripts":
            client.script_flush()
        else:
            client.delete("wbe:{ex}:c")
    assert sender.send("x", "mine")
    assert taker.drain(1) == ["x"]
    assert sender.send("y", "mine")
    assert taker.drain(2) == ["x", "y"]
    assert taker.messages[1].delivery_info["redelivered"] is False


def test_lost_delivery_is_requeued_without_redelivery_mark(
    redis_url, redis_server, ends, dropper, client
):
    taker = consume_private(ends(redis_url.replace(f":{redis_server.port}/", f":{dropper.port}/")))
    sender = ends()
    wait_until_blocked(taker, client)
    dropper.drop_reply_to = TAKE.encode()
    sender.send("x", "mine")
    assert dropper.dropped.wait(SOON)
    with pytest.raises(LOST):
        taker.drain(1)
    taker.close()
    other = ends().consume("mine")
    assert other.drain(1) == ["x"]
    assert other.messages[0].delivery_info["redelivered"] is False


def test_wait_ended_by_server_error_closes_connection(ends, client):
    """No later reply is mistaken for the reply to this wait."""
    taker = consume_private(ends())
    wait_until_blocked(taker, client)
    for one in client.client_list():
        if one["cmd"] == "blpop":
            client.execute_command("CLIENT", "UNBLOCK", one["id"], "ERROR")
    with pytest.raises(Exception, match="UNBLOCKED"):
        taker.drain(1)
    with pytest.raises(LOST):
        taker.drain(1)


def test_write_refusal_of_server_during_wait_is_raised(ends, monkeypatch, client):
    monkeypatch.setattr(redis_link, "POLL_SECONDS", 1)
    taker, sender = consume_private(ends()), ends()
    taker.assert_no_message()
    client.config_set("min-replicas-to-write", "1")
    try:
        with pytest.raises(exceptions.TransportFailure, match="NOREPLICAS"):
            taker.drain(1)
    finally:
        client.config_set("min-replicas-to-write", "0")
    sender.send("x", "mine")
    assert taker.drain(1) == ["x"]


def test_messages_of_each_publisher_are_delivered_in_order(ends):
    taker = consume_private(ends(), prefetch=5, ack=False)
    over = threading.Event()

    def publish(who):
        end = ends_of[who]
        for start in range(0, 300, 5):
            publish_together(end, *([who, number] for number in range(start, start + 5)))
            if start % 50 == 0:
                time.sleep(0.003)

    def disturb():
        while not over.is_set():
            if taker.messages:
                with contextlib.suppress(IndexError):
                    taker.messages.pop(0).ack()
            taker.connection.wake()

    ends_of = [ends() for _ in range(3)]
    threads = [threading.Thread(target=publish, args=(who,)) for who in range(3)]
    threads.append(threading.Thread(target=disturb))
    for thread in threads:
        thread.start()
    end = time.monotonic() + 60
    while len(taker.got) < 900 and time.monotonic() < end:
        with contextlib.suppress(TimeoutError):
            taker.connection.drain_events(timeout=1)
    over.set()
    for thread in threads:
        thread.join()
    for who in range(3):
        assert [n for w, n in taker.got if w == who] == list(range(300))


@pytest.fixture
def claimers(redis_url):
    """Return a function that connects clients with a ledger, and closes them after the test."""
    with contextlib.ExitStack() as stack:

        def connect(holder="w"):
            return stack.enter_context(contextlib.closing(Both(redis_url, holder=holder)))

        yield connect


def wait_for_requests(claimer, client, prefetch):
    """Consume the shared queue, and wait until the consumer blocks in the server."""
    claimer.channel.limit(prefetch)
    claimer.channel.subscribe("q", claimer.messages.append)

    def began():
        with pytest.raises(TimeoutError):
            claimer.connection.drain_events(timeout=0.05)
        return claimer.store._waiting.is_blocked

    until(began)
    until(lambda: client.info("clients")["blocked_clients"])


def test_request_is_claimed_with_end_of_wait_without_another_take(claimers, client):
    worker, engine = claimers(), claimers("e")
    wait_for_requests(worker, client, prefetch=1)
    assert engine.post("a") == [True]
    until(lambda: engine.ledger.state("a").holder == "w")  # before the worker continues
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    worker.connection.drain_events(timeout=SOON)
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == before
    assert worker.messages[0].claim.granted


def test_waiting_worker_takes_at_most_as_many_requests_as_it_has_capacity(claimers, client):
    worker, engine, other = claimers(), claimers("e"), claimers("other")
    wait_for_requests(worker, client, prefetch=2)
    engine.post("a", "b", "c", "d", "e")
    until(lambda: engine.ledger.state("a").holder == "w")
    assert [id for id in "abcde" if engine.ledger.state(id).holder == "w"] == ["a", "b"]
    assert [claim.granted for claim in other.take(3)] == [True] * 3


def test_requests_above_a_reduced_limit_return_as_if_not_taken(claimers, client):
    worker, engine, other = claimers(), claimers("e"), claimers("other")
    wait_for_requests(worker, client, prefetch=2)
    worker.channel.limit(1)
    engine.post("a", "b")
    worker.connection.drain_events(timeout=SOON)
    assert [claim.granted for claim in other.take(1)] == [True]
    assert other.messages[0].delivery_info["redelivered"] is False
    assert engine.ledger.state("b").holder == "other"
