"""Redis transport: faults, and other users of the server."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.seams import transports
from tests.support import brokers, python, server_kinds, tcp_proxy
from tests.support.redis_ends import SOON, End
from tests.support.workers import until
from wbengine import exceptions
from wbengine.transports import resolve
from wbengine.transports._broker import MAX_BATCH_BYTES
from wbengine.transports._redis import redis_link
from wbengine.transports._redis.redis_link import LOST, Link, Place


def waiting(client):
    """Return the number of clients that block in the server."""
    return client.info("clients")["blocked_clients"]


# -- other users of the server


def test_closed_connections_leave_no_keys_and_keep_keys_of_others(redis_url, ends, client):
    client.set("wbe:other", "1")
    client.rpush("k", "2")
    one, two = ends().queue("q", "k").consume("q"), ends()
    stranger = ends(prefix="stranger").queue("q", "k").consume("q")
    for number in range(3):
        assert two.send(number)
    one.drain(3)
    stranger.assert_no_message()
    names = {key.split("}:")[0] for key in redis_url.left()}
    assert names == {"wbe:{ex", "wbe:{stranger", "wbe:other", "k"}
    stranger.close()
    two.close()
    assert any(key.startswith("wbe:{ex}") for key in redis_url.left())
    one.close()
    assert redis_url.left() == ["k", "wbe:other"]


def test_messages_outlive_their_publisher(redis_url, ends):
    with contextlib.closing(ends().queue("q", "k")) as first:
        first.send("kept")
    assert redis_url.left()
    second = ends().consume("q")
    assert second.drain(1) == ["kept"]
    assert second.messages[0].delivery_info["redelivered"] is False
    second.close()
    assert redis_url.left() == []


def test_all_keys_expire_within_a_week(ends, client):
    one = ends().queue("q", "k").queue("mine", exclusive=True).consume("q", ack=False)
    one.send(1)
    one.send(2)
    one.drain(1)
    keys = client.keys()
    assert len(keys) >= 7
    assert all(0 < client.pttl(key) <= 7 * 24 * 3600 * 1000 for key in keys), keys


# -- waiting


@pytest.mark.usefixtures("patient")
def test_each_waiting_consumer_is_woken(ends, client):
    takers = [ends().queue("q", "k").consume("q", prefetch=1, ack=False) for _ in range(4)]
    sender = ends()
    for round in range(1, 4):
        with contextlib.ExitStack() as stack:
            for taker in takers:
                stack.enter_context(taker.drained())
            until(lambda: waiting(client) == 4)
            for number in range(4):
                sender.send(number)
            until(lambda: all(len(taker.got) == round for taker in takers), SOON)  # noqa: B023
        for taker in takers:
            taker.messages[-1].ack()


@pytest.mark.usefixtures("patient")
def test_consumer_without_credit_leaves_wake_ups_to_others(ends, client):
    full = ends().queue("q", "k").consume("q", prefetch=1, ack=False)
    other, sender = ends().queue("q", "k"), ends()
    with full.drained():
        sender.send("first")
        until(lambda: full.got)
        other.consume("q")
        with other.drained():
            until(lambda: waiting(client))
            for number in range(5):
                sender.send(number)
                until(lambda: len(other.got) == number + 1, SOON)  # noqa: B023
    assert full.got == ["first"]


@pytest.mark.usefixtures("patient")
def test_consumer_that_takes_one_of_two_messages_wakes_the_next(ends):
    one, two, sender = ends().queue("q", "k").store, ends().store, ends()
    group = [(1, ["q"])]
    assert two.take_many(group) == []
    sender.send(1)
    sender.send(2)  # no consumer waits: one wake-up for both
    one.wait(None, ["q"])
    assert len(one.take_many(group)) == 1
    started = time.monotonic()
    two.wait(None, ["q"])
    assert time.monotonic() - started < SOON
    assert len(two.take_many(group)) == 1


@pytest.mark.parametrize(("count", "size"), [(150, 1), (6, MAX_BATCH_BYTES // 3)])
def test_drain_without_wait_delivers_more_than_one_batch(ends, count, size):
    taker, sender = ends().queue("q", "k"), ends()
    bodies = [f"{number:{size}}" for number in range(count)]
    assert all(
        sender.store.publish_many([sender.channel.frame(body, "ex", "k") for body in bodies])
    )
    taker.consume("q", prefetch=1000)
    with contextlib.suppress(TimeoutError):
        while True:
            taker.store.drain(0)
    assert taker.got == bodies


@pytest.mark.usefixtures("patient")
def test_woken_consumer_without_credit_wakes_another(ends, client):
    full, other, sender = ends().queue("q", "k"), ends(), ends()
    full.consume("q", prefetch=2, ack=False)
    sender.send(0)
    full.drain(1)
    until(lambda: full.assert_no_message() or waiting(client) == 1)  # It blocks in the server.
    full.channel.limit(1)
    with ThreadPoolExecutor(1) as pool:
        rung = pool.submit(other.store.wait, None, ["q"])
        until(lambda: waiting(client) == 2)
        sender.send(1)  # wakes the first waiter
        until(lambda: full.assert_no_message() or rung.done())
        rung.result(SOON)
    assert len(other.store.take_many([(1, ["q"])])) == 1


def test_lost_wake_up_delays_message_by_one_poll(ends, client):
    taker, sender = ends().queue("q", "k").consume("q"), ends()
    for number in range(2):
        taker.assert_no_message()
        # put without a wake-up
        client.zadd("wbe:{ex}:q:q", {b"%d %b" % (900 + number, _raw(sender, number)): 5.0})
        before = ended_waits(client)
        taker.drain(number + 1)
        assert ended_waits(client) - before <= 1


def ended_waits(client):
    """Return the number of blocking waits that ended in the server."""
    return client.info("commandstats").get("cmdstat_blpop", {}).get("calls", 0)


def _raw(end, body):
    frame = end.channel.frame(body)
    return bytes(frame.head + frame.body)


def test_waiting_consumer_sends_few_commands(ends, monkeypatch, client):
    monkeypatch.setattr(redis_link, "POLL_SECONDS", 0.2)
    taker = ends().queue("q", "k").consume("q")
    taker.assert_no_message(0.3)
    before, began = client.info("stats")["total_commands_processed"], time.monotonic()
    taker.assert_no_message(0.8)
    looks = 1 + (time.monotonic() - began) / redis_link.POLL_SECONDS
    after = client.info("stats")["total_commands_processed"]
    # Commands within scripts count, and consumers sometimes check for dead ones.
    assert after - before < 40 * looks


@pytest.mark.usefixtures("patient")
def test_local_wake_ups_cost_no_round_trip(ends, client):
    taker = ends().queue("q", "k").consume("q")
    with taker.drained():
        until(lambda: waiting(client) == 1)
        before = ended_waits(client)
        for _ in range(50):
            taker.store.nudge()
            time.sleep(0.002)
        assert waiting(client) == 1
        assert ended_waits(client) == before


# -- lost data, restarts and lack of memory


def test_flushed_scripts_are_sent_again(ends, client):
    one = ends().queue("q", "k").consume("q")
    for number in range(3):
        client.script_flush()
        one.send(number)
        client.script_flush()
        one.drain(number + 1)
    assert one.got == [0, 1, 2]


@pytest.mark.parametrize("when", ["before it takes", "while it waits"])
def test_queues_are_declared_again_on_wiped_server(redis_url, ends, caplog, when, client):
    taker = ends().queue("q", "k").queue("mine", "m", exclusive=True).consume("q", "mine")
    sender = ends()
    held = ends().consume("q", ack=False)
    sender.send("before")
    held.drain(1)
    if when == "while it waits":
        taker.assert_no_message()
    client.flushdb()
    assert held.messages[0].ack() is False
    with taker.drained():
        until(lambda: sender.send("after"))
        until(lambda: "after" in taker.got)
        assert sender.send("own", "m")
        until(lambda: taker.got == ["after", "own"])
    assert "declaring its queues" in caplog.text
    for end in (taker, sender, held):
        end.close()
    assert redis_url.left() == []


def test_peers_declare_queues_with_growing_pauses_in_evicting_redis():
    """Each declaration makes Redis evict queues of other peers, until it has more memory."""
    settings = {"maxmemory-policy": "allkeys-random"}
    with brokers.redis(**settings) as server, contextlib.ExitStack() as stack:
        peers = [End(server.url()).queue(f"q{n}", f"k{n}").consume(f"q{n}") for n in range(4)]
        for peer in peers:
            stack.callback(peer.close)
        for peer in peers:
            stack.enter_context(peer.drained())
        client = stack.enter_context(server.client())
        stack.callback(client.config_set, "maxmemory", 0)
        client.config_resetstat()
        client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
        until(lambda: client.info("stats")["evicted_keys"] > 40)
        time.sleep(3)  # duration of the lack of memory
        assert client.info("stats")["evicted_keys"] < 1000
        client.config_set("maxmemory", 0)
        until(lambda: peers[0].send("served", key="k1") and peers[1].got)


def test_restarted_server_loses_no_message(redis_server, ends):
    # This is the server of the session: other keys must stay.
    taker = ends(dead_after=1.5).queue("q", "k").consume("q", prefetch=2, ack=False)
    sender = ends()
    for number in range(5):
        sender.send(number)
    taker.drain(2)
    redis_server.kill()
    with pytest.raises(taker.connection.recoverable_connection_errors):
        taker.connection.drain_events(timeout=SOON)
    with pytest.raises(sender.connection.recoverable_connection_errors):
        sender.send("lost")
    taker.close()
    redis_server.start()
    with pytest.raises(LOST):  # a lost connection is not reopened
        sender.send("never")
    again = ends(dead_after=1.5).consume("q")
    again.drain(5)
    assert sorted(again.got) == [0, 1, 2, 3, 4]
    marked = {transports.body(m) for m in again.messages if m.delivery_info["redelivered"]}
    assert marked == {0, 1}


def test_server_without_memory_refuses_publish_and_loses_no_message(ends):
    with brokers.redis() as server:
        taker = ends(server.url()).queue("q", "k").consume("q", prefetch=2)
        sender = ends(server.url())
        for number in range(5):
            sender.send(number)
        with server.client() as client:
            client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
            with pytest.raises(exceptions.TransportFailure, match="maxmemory"):
                sender.send("too much")
            assert taker.drain(5) == [0, 1, 2, 3, 4]
            taker.assert_no_message(1.2)  # it still sends heartbeats
            client.config_set("maxmemory", 0)
        assert sender.send(5)
        assert taker.drain(6)[-1] == 5
        assert [m.delivery_info["redelivered"] for m in taker.messages] == [False] * 6


def test_connection_closed_while_writes_are_refused_leaves_no_keys():
    """Held messages are requeued as soon as the server accepts writes again."""
    with brokers.redis() as server, contextlib.ExitStack() as stack, server.client() as client:
        taker = stack.enter_context(contextlib.closing(End(server.url())))
        taker.queue("q", "k").consume("q", ack=False, prefetch=2)
        taker.send("first")
        taker.send("second")
        taker.drain(2)
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(exceptions.TransportFailure, match="NOREPLICAS"):
            taker.messages[0].ack()
        taker.close()
        client.config_set("min-replicas-to-write", 0)
        other = stack.enter_context(contextlib.closing(End(server.url()))).consume("q")
        assert other.drain(2) == ["first", "second"]
        assert [m.delivery_info["redelivered"] for m in other.messages] == [True, True]
        other.close()
        assert server.left() == []


# -- the network


def test_cut_connection_requeues_held_messages_at_once(redis_url, ends, client):
    patient = {"dead_after": 10 * SOON}
    taker = ends(**patient).queue("q", "k").consume("q", ack=False, prefetch=3)
    taker.send("first")
    taker.send("second")
    taker.drain(2)
    taker.assert_no_message()  # it blocks: this connection fails first
    client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(taker.connection.recoverable_connection_errors):
        taker.connection.drain_events(timeout=SOON)
    taker.close()
    other = ends(**patient).consume("q")
    assert other.drain(2) == ["first", "second"]
    other.close()
    assert redis_url.left() == []


@pytest.mark.parametrize("fault", ["stall", "cut"])
def test_stalled_or_cut_connection_is_detected(redis_url, redis_server, ends, fault):
    with tcp_proxy.threaded(redis_server.port) as proxy:
        url = redis_url.replace(f":{redis_server.port}/", f":{proxy.port}/")
        taker, sender = ends(url).queue("q", "k").consume("q"), ends(url)
        until(lambda: taker.assert_no_message() or taker.store._waiting._blocked_keys)
        getattr(proxy, fault)()
        for end in (sender, taker):
            end.hurry(0.3)
        with pytest.raises(taker.connection.recoverable_connection_errors):
            sender.send(1)
        with pytest.raises(taker.connection.recoverable_connection_errors) as caught:
            taker.connection.drain_events(timeout=SOON)
        assert type(caught.value) is not TimeoutError  # not a mere timeout
        proxy.cut()  # drops messages in the proxy
        proxy.resume()
        for end in (taker, sender):
            end.close()
    rest = ends().queue("q", "k").consume("q")
    with contextlib.suppress(TimeoutError):  # its arrival was uncertain
        rest.connection.drain_events(timeout=0.5)
    rest.close()
    assert redis_url.left() == []


def test_message_lost_in_transit_is_requeued_without_redelivery_mark(
    redis_url, redis_server, ends, dropper
):
    from wbengine.transports._redis import redis_scripts

    taker = ends(redis_url.replace(f":{redis_server.port}/", f":{dropper.port}/"))
    taker.queue("q", "k")
    sender = ends()
    sender.send("first")
    taker.consume("q", ack=False, prefetch=3)
    taker.drain(1)
    sender.send("second")
    dropper.drop_reply_to = redis_scripts.SCRIPTS["take"].digest.encode()
    with pytest.raises(LOST):
        while True:
            with contextlib.suppress(TimeoutError):
                taker.connection.drain_events(timeout=SOON)
    assert dropper.dropped.is_set()
    taker.close()
    other = ends().consume("q")
    assert other.drain(2) == ["first", "second"]
    assert [m.delivery_info["redelivered"] for m in other.messages] == [True, False]


# -- dead and silent consumers

HOARDER = """
import sys
from tests.seams import transports
from wbengine.transports import resolve
target = resolve(sys.argv[1], None, {"dead_after": 600}, exchange="ex")
connection = transports.OwnConnection(target)
channel = connection.channel()
channel.limit(2)
def receive(message):
    print(transports.body(message), int(message.delivery_info["redelivered"]), flush=True)
    kept.append(message)
kept = []
channel.subscribe("q", receive)
while True:
    try:
        connection.drain_events(timeout=0.2)
    except TimeoutError:
        pass
    if kept and len(sys.argv) > 2:
        sys.stdin.readline()
        print("acked", [message.ack() for message in kept], flush=True)
        kept.clear()
"""


def test_frozen_consumer_loses_its_messages_and_registers_again(
    redis_url, redis_server, ends, client
):
    taker = ends(dead_after=1.5).queue("q", "k")
    for number in range(3):
        taker.send(number)
    command = ["-c", HOARDER, str(redis_url), "thaw"]
    with (
        python.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(process.kill)
        assert [process.stdout.readline() for _ in range(2)] == ["0 0\n", "1 0\n"]
        os.kill(process.pid, signal.SIGSTOP)
        ((_, heard),) = client.zrange("wbe:{ex}:c", 0, -1, withscores=True)
        taker.consume("q", prefetch=2, ack=False)
        assert taker.drain(1) == [2]
        taker.drain(2)
        seconds, microseconds = client.time()
        assert seconds + microseconds / 1e6 - heard / 1e3 >= 1.5  # not considered dead before
        assert taker.got == [2, 0]
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "acked [False, False]\n"
        assert process.stdout.readline() == "1 1\n"  # registered again
    for message in taker.messages:
        message.ack()
    assert taker.drain(3) == [2, 0, 1]


def test_consumer_without_credit_is_not_considered_dead(ends, client):
    """It holds all messages that it may, receives none for an hour, and still sends heartbeats."""
    holder = ends().queue("q", "k").consume("q", prefetch=1, ack=False)
    other = ends().consume("q")
    holder.send("held")
    holder.drain(1)
    holder.assert_no_message()
    an_hour = 3_600_000  # milliseconds
    client.zincrby("wbe:{ex}:c", -an_hour, holder.store._consumer_name)
    client.hincrby("wbe:{ex}:m", "since", -an_hour)
    for end in (holder, other):
        end.store._next_sweep_at = 0.0
        end.assert_no_message()
    assert holder.messages[0].ack()


def test_private_queues_are_deleted_with_silent_owners(ends, client):
    gone = ends().queue("gone", "g", exclusive=True).queue("left", "l", exclusive=True)
    alive = ends(dead_after=600).queue("alive", "a", exclusive=True).consume("alive")
    for key in "gla":
        assert gone.send(key, key)
    assert alive.drain(1) == ["a"]
    own, about = "wbe:{ex}:own", "wbe:{ex}:m"
    client.hincrby(about, "since", -601_000)
    for queue in ("gone", "alive"):
        client.zadd(own, {queue: client.zscore(own, queue) - 601_000})
    until(lambda: alive.assert_no_message() or client.zcard(own) == 2)
    assert not gone.send("g", "g")
    assert gone.send("l", "l") and gone.send("a", "a")


def test_owner_that_was_paused_declares_its_deleted_queue_again(ends, client):
    """Two other processes notice the silent owner at the same time."""
    paused = ends().queue("mine", "m", exclusive=True).consume("mine")
    others = ends().consume("other"), ends().consume("other")
    for end in (paused, *others):
        end.assert_no_message()
    for key in ("own", "c"):
        for name, score in client.zrange(f"wbe:{{ex}}:{key}", 0, -1, withscores=True):
            client.zadd(f"wbe:{{ex}}:{key}", {name: score - 601_000})
    client.hincrby("wbe:{ex}:m", "since", -601_000)
    for end in others:
        end.store._next_sweep_at = 0.0
        end.assert_no_message()
    assert client.zcard("wbe:{ex}:own") == 0
    assert not others[0].send("m", "m")
    until(
        lambda: (
            paused.assert_no_message()
            or (others[0].store.size("mine") == 0 and (others[0].send("m", "m")))
        )
    )
    assert paused.drain(1) == ["m"]


def test_downtime_of_server_does_not_make_consumers_dead(ends, client):
    """The first consumer that reconnects must not requeue messages of those that had no time to."""
    held = ends().queue("q", "k").consume("q", ack=False)
    held.send(1)
    held.drain(1)
    other = ends().consume("q")
    other.assert_no_message()
    who = client.zrange("wbe:{ex}:c", 0, -1)
    away = 3_600_000  # milliseconds
    with client.pipeline(transaction=True) as pipe:
        for name in who:
            pipe.zincrby("wbe:{ex}:c", -away, name)
        pipe.zadd("wbe:{ex}:own", {"q": 5.0})
        for name in ("t", "since"):
            pipe.hincrby("wbe:{ex}:m", name, -away)
        pipe.execute()
    for end in (other, held, other):
        end.store._next_sweep_at = 0.0
        end.assert_no_message()
    held.messages[0].ack()
    assert client.zcard("wbe:{ex}:own") == 1


# -- URLs and connections


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://host:99999/0", "port"),
        ("redis://host/zero", "must be a number"),
        ("redis://host/0?prefix=a/b", "prefix"),
        ("redis://host/0?prefx=a", "did you mean 'prefix'"),
        ("redis://host/0?socket_timeout=0", "above 0"),
        ("redis://host/0?ssl_ca_certs=/x", "rediss"),
        ("rediss://host/0?ssl_check_hostname=maybe", "must be true or false"),
        ("amqp://host/0", "scheme"),
    ],
)
def test_wrong_url_is_refused(url, why):
    with pytest.raises(ValueError, match=why):
        Place.parse(url)


def test_urls_are_parsed_and_displayed_without_secrets():
    place = Place.parse("redis://me:p%40ss@[::1]:1234/7?prefix=a&socket_timeout=2")
    assert place.prefix == "wbe:{a}:"
    assert {name: place.settings[name] for name in ("host", "port", "db", "password")} == {
        "host": "::1", "port": 1234, "db": 7, "password": "p@ss",
    }  # fmt: skip
    assert place.settings["socket_timeout"] == 2
    assert place.shown == "redis://[::1]:1234/7"
    assert "ss" not in repr(place).replace("redis", "").replace("tls", "")
    secure = Place.parse("rediss://host", {"ssl_ca_certs": "/ca", "other": 1})
    assert secure.settings["ssl_cert_reqs"] == "required"
    assert secure.settings["ssl_check_hostname"] is True
    assert secure.settings["ssl_ca_certs"] == "/ca"
    assert "secret" not in resolve("redis://:secret@localhost/0", exchange="x").shown


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    folder.chmod(0o755)
    for parent in list(folder.parents)[:3]:
        with contextlib.suppress(OSError):
            parent.chmod(0o755)
    key, cert = folder / "key", folder / "cert"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    key.chmod(0o644)
    port = str(server_kinds.free_port())
    settings = {"tls-port": port, "tls-cert-file": str(cert), "tls-key-file": str(key),
                "tls-ca-cert-file": str(cert), "tls-auth-clients": "no"}  # fmt: skip
    with brokers.redis(**settings) as server:
        yield f"rediss://:{server.password}@localhost:{port}/0", cert


def test_certificates_and_host_names_are_verified(tls_server, ends):
    url, cert = tls_server
    for wrong in (url, url.replace("localhost", "127.0.0.1") + f"?ssl_ca_certs={cert}"):
        target = resolve(wrong, exchange="ex")
        with pytest.raises(LOST, match=r"(?i)certificate"):
            target.open()
    one = ends(f"{url}?ssl_ca_certs={cert}").queue("q", "k").consume("q")
    two = ends(url, ssl_ca_certs=str(cert))
    with one.drained():
        for number in range(20):
            two.send([number, "x" * 50_000])
            until(lambda: len(one.got) == number + 1)  # noqa: B023


def test_wrong_password_is_reported(redis_server):
    target = resolve(f"redis://:wrong@127.0.0.1:{redis_server.port}/0")
    with pytest.raises(LOST, match=r"(?i)password"):
        target.open()


def test_server_that_is_not_redis_is_reported():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:

        def answer():
            accepted, _ = server.accept()
            with accepted:
                while accepted.recv(4096):
                    accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        link = Link(Place.parse(f"redis://127.0.0.1:{server.getsockname()[1]}/0"))
        with pytest.raises(LOST, match="the server is not a Redis"):
            link.call("PING")
        thread.join()


def test_malformed_messages_are_discarded(redis_url, ends, caplog, client):
    caplog.set_level(logging.WARNING)
    taker = ends().queue("q", "k")
    for number, data in enumerate((b"", b"{", b"!", b"!a b c\n", b"\xff" * 100), 100):
        client.zadd("wbe:{ex}:q:q", {b"%d %b" % (number, data): number})
    taker.consume("q")
    taker.send("good")
    assert taker.drain(1) == ["good"]
    assert caplog.text.count("was discarded") == 1  # logged once for any number
    taker.close()
    assert redis_url.left() == []
