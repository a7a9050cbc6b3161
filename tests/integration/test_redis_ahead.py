"""What comes with the end of a wait, from queues of one's own: none is lost, doubled or late."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import threading
import time

import pytest

from tests.support.redis_ends import SOON
from tests.support.workers import until
from wbengine.transports import _redis_scripts, _redis_wait
from wbengine.transports._redis_link import LOST

TAKE = _redis_scripts.TAKE.digest

# A wait that ends by itself ends at any moment, and nothing waits in the server then.
pytestmark = pytest.mark.usefixtures("patient")


def own(end, *names, **options):
    for name in names or ("mine",):
        end.queue(name, name, exclusive=True)
    return end.consume(*(names or ("mine",)), **options)


def together(end, *bodies, key="mine"):
    """Publish in one step."""
    laid_out = [end.channel.lay_out(body, "ex", key) for body in bodies]
    assert all(end.store.publish_many(laid_out))


def waits(end, redis_server, url):
    """Let it wait, with a take that waits for the end of that; nothing has come yet."""

    def began():
        end.nothing_comes()
        return end.store._waiting.takes

    until(began)
    with redis_server.client(url.rpartition("/")[2]) as client:
        until(lambda: client.info("clients")["blocked_clients"])


def held(redis_server, url):
    with redis_server.client(url.rpartition("/")[2]) as client:
        return [key for key in client.keys("*}:h:*") for _ in client.hkeys(key)]


def test_it_comes_without_being_asked_for(redis_url, redis_server, ends):
    taker, sender = own(ends()), ends()
    waits(taker, redis_server, redis_url)
    with redis_server.client(redis_url.rpartition("/")[2]) as client:
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        sender.send("one", "mine")
        assert taker.drain(1) == ["one"]
        asked = client.info("commandstats")["cmdstat_evalsha"]["calls"] - before
    assert asked == 3  # published, taken, acknowledged


@pytest.mark.parametrize("prefetch", [1, 2])
def test_no_more_than_there_is_room_for(redis_url, redis_server, ends, prefetch):
    taker, sender = own(ends(), prefetch=prefetch, ack=False), ends()
    waits(taker, redis_server, redis_url)
    together(sender, *range(9))
    taker.drain(prefetch)
    taker.nothing_comes()
    assert taker.got == list(range(prefetch))
    while len(taker.got) < 9 or taker.messages:
        taker.messages.pop(0).ack()
        if len(taker.got) < 9:
            taker.drain(len(taker.got) + 1)
    assert taker.got == list(range(9))
    assert not held(redis_server, redis_url)


def test_acknowledging_at_once_delivers_the_next_message_at_once(redis_url, redis_server, ends):
    taker, sender = own(ends(), prefetch=1), ends()
    waits(taker, redis_server, redis_url)
    together(sender, *range(30))
    assert taker.drain(30) == list(range(30))


def test_prefetched_message_comes_before_later_ones(redis_url, redis_server, ends):
    taker, sender = own(ends(), prefetch=3), ends()
    for start in range(0, 120, 12):
        waits(taker, redis_server, redis_url)
        together(sender, *range(start, start + 6))
        until(lambda: held(redis_server, redis_url))
        together(sender, *range(start + 6, start + 12))
        taker.drain(start + 12)
    assert taker.got == list(range(120))


def test_message_that_came_while_there_was_no_credit_is_delivered(redis_url, redis_server, ends):
    """Room is made, and more comes, between two waits."""
    taker, sender = own(ends(), prefetch=1, ack=False), ends()
    waits(taker, redis_server, redis_url)
    together(sender, 0, 1, 2)
    taker.drain(1)
    for number in range(3, 30):
        taker.messages[-1].ack()
        sender.send(number, "mine")
        taker.drain(len(taker.got) + 1)
    while len(taker.got) < 30:
        taker.messages[-1].ack()
        taker.drain(len(taker.got) + 1)
    assert taker.got == list(range(30))


def test_cancelled_consumer_returns_prefetched_messages(redis_url, redis_server, ends):
    taker, sender, other = own(ends(), prefetch=1, ack=False), ends(), ends()
    waits(taker, redis_server, redis_url)
    together(sender, 0, 1, 2)
    taker.drain(1)
    taker.channel.basic_cancel("mine")
    other.consume("mine")
    assert other.drain(2) == [1, 2]
    assert [m.delivery_info["redelivered"] for m in other.messages] == [False, False]


def test_consumer_cancelled_while_it_waits_takes_no_message(redis_url, redis_server, ends):
    taker, sender, other = own(ends()), ends(), ends()
    waits(taker, redis_server, redis_url)
    taker.channel.basic_cancel("mine")
    sender.send("x", "mine")
    assert other.consume("mine").drain(1) == ["x"]
    assert not taker.store._prefetched


def test_connection_closed_while_it_waits_returns_its_message(redis_url, redis_server, ends):
    taker, sender = own(ends()), ends()
    waits(taker, redis_server, redis_url)
    sender.send("x", "mine")
    until(lambda: held(redis_server, redis_url))
    taker.close()
    other = ends().consume("mine")
    assert other.drain(1) == ["x"]
    assert other.messages[0].delivery_info["redelivered"] is False


def test_one_is_got_that_was_taken_ahead(redis_url, redis_server, ends):
    taker, sender = own(ends(), "mine", "yours"), ends()
    waits(taker, redis_server, redis_url)
    sender.send("x", "mine")
    sender.send("y", "yours")
    until(lambda: held(redis_server, redis_url))
    assert json.loads(taker.channel.basic_get("yours").body) == "y"
    assert taker.channel.basic_get("yours") is None
    assert taker.drain(1) == ["x"]


def test_a_nudge_that_comes_with_it_is_noticed(redis_url, redis_server, ends):
    """Room for requests is made while something comes into one's own queue."""
    taker, sender = own(ends()), ends()
    work = taker.connection.channel()
    taker.queue("work", "work")
    work.basic_qos(0, 1, False)
    given = []
    work.basic_consume("work", False, given.append, consumer_tag="work")
    sender.send(0, "work")
    taker.drain_until(lambda: given)
    for number in range(1, 40):
        waits(taker, redis_server, redis_url)
        sender.send(number, "work")
        sender.send(number, "mine")
        given[-1].ack()
        taker.drain_until(lambda n=number: len(given) > n and len(taker.got) >= n)
    assert taker.got == list(range(1, 40))


def test_who_is_full_waits_for_a_nudge_however_many_files_are_open(redis_url, redis_server, ends):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
    files = [os.dup(0) for _ in range(1030)]
    try:
        taker, sender = own(ends(), prefetch=1, ack=False), ends()
        for number in range(3):
            sender.send(number, "mine")
        taker.drain(1)
        taker.nothing_comes()
        taker.messages[0].ack()
        assert taker.drain(2) == [0, 1]
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("lost", ["scripts", "everything", "consumers"])
def test_waiting_consumer_survives_a_server_that_forgot_everything(
    redis_url, redis_server, ends, monkeypatch, lost
):
    taker, sender = own(ends()), ends()
    with redis_server.client(redis_url.rpartition("/")[2]) as client:
        if lost == "everything":
            with monkeypatch.context() as impatient:  # who waits finds it out by looking himself
                impatient.setattr(_redis_wait, "POLL", 1)
                taker.nothing_comes()
                client.flushdb()
                until(lambda: taker.nothing_comes() or client.exists("wbe:{ex}:c"))
        else:
            waits(taker, redis_server, redis_url)
            if lost == "scripts":
                client.script_flush()
            else:
                client.delete("wbe:{ex}:c")
    assert sender.send("x", "mine")
    assert taker.drain(1) == ["x"]
    assert sender.send("y", "mine")
    assert taker.drain(2) == ["x", "y"]
    assert taker.messages[1].delivery_info["redelivered"] is False


def test_lost_delivery_is_requeued_without_redelivery_mark(redis_url, redis_server, ends, eater):
    taker = own(ends(redis_url.replace(f":{redis_server.port}/", f":{eater.port}/")))
    sender = ends()
    waits(taker, redis_server, redis_url)
    eater.eat = TAKE.encode()
    sender.send("x", "mine")
    assert eater.eaten.wait(SOON)
    with pytest.raises(LOST):
        taker.drain(1)
    taker.close()
    other = ends().consume("mine")
    assert other.drain(1) == ["x"]
    assert other.messages[0].delivery_info["redelivered"] is False


def test_a_wait_that_the_server_ends_with_an_error(redis_server, ends, redis_url):
    """Nothing is taken for the answer to another one."""
    taker = own(ends())
    waits(taker, redis_server, redis_url)
    with redis_server.client() as client:
        for one in client.client_list():
            if one["cmd"] == "blpop":
                client.execute_command("CLIENT", "UNBLOCK", one["id"], "ERROR")
    with pytest.raises(Exception, match="UNBLOCKED"):
        taker.drain(1)
    with pytest.raises(LOST):
        taker.drain(1)


def test_a_server_that_refuses_meanwhile_is_told_of(redis_server, ends, redis_url, monkeypatch):
    """A wait that ends where nothing may be taken."""
    monkeypatch.setattr(_redis_wait, "POLL", 1)
    taker, sender = own(ends()), ends()
    taker.nothing_comes()
    with redis_server.client() as client:
        client.config_set("min-replicas-to-write", "1")
        try:
            with pytest.raises(Exception, match="NOREPLICAS"):
                taker.drain(1)
        finally:
            client.config_set("min-replicas-to-write", "0")
    sender.send("x", "mine")
    assert taker.drain(1) == ["x"]


def test_messages_of_many_publishers_come_in_order(redis_url, redis_server, ends):
    """All that several publish comes, in order for each, while the one who reads is nudged, is
    full, and looks again at any time."""
    taker = own(ends(), prefetch=5, ack=False)
    over = threading.Event()

    def publish(who):
        end = ends_of[who]
        for start in range(0, 300, 5):
            together(end, *([who, number] for number in range(start, start + 5)))
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
