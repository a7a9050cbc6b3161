"""Contract of all transports."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.seams import transports
from tests.seams.transports import MAX_BATCH_BYTES, Side, Site, body, lay_out, producer
from wbengine import exceptions


@pytest.fixture(params=transports.KINDS)
def side(request, folder):
    """Side on each of our transports; the marks below select other transports."""
    kind = request.param
    url = request.getfixturevalue(f"{kind}_url") if kind in ("redis", "rabbitmq") else None
    with contextlib.closing(Site(kind, folder, url)) as site:
        yield Side(site)


def on(*kinds):
    return pytest.mark.parametrize("side", kinds, indirect=True)


on_all_brokers = on(*transports.ALL)
in_folders = on(*transports.FOLDERS)
#: Transports that other processes can reach.
between_processes = on(*transports.REACHED)


# -- routing


@on_all_brokers
def test_message_arrives_with_body_headers_and_properties(side):
    side.queue("q", "k")
    sent = {"a": [1, "ä", None]}
    assert side.send(
        sent, "k", headers={"h": {"x": 1}}, correlation_id="c", reply_to="back", priority=3
    )
    side.consume("q")
    assert side.drain() == [sent]
    message = side.messages[0]
    assert message.headers["h"] == {"x": 1}
    assert message.properties["correlation_id"] == "c"
    assert message.properties["reply_to"] == "back"
    assert message.delivery_info["exchange"] == "ex"
    assert message.delivery_info["routing_key"] == "k"
    assert message.delivery_info["redelivered"] is False
    assert message.acknowledged


@pytest.mark.parametrize("sent", [b"", b"\x00\xff\n{}", b"x" * 300_000])
def test_body_of_any_bytes_arrives(side, sent):
    side.queue("q", "k")
    side.send(sent, "k")
    message = side.take("q")
    assert message.body == sent
    message.ack()


def test_topic_exchange_matches_wildcards(side):
    for name, key in [
        ("exact", "a.b.c"),
        ("star", "a.*.c"),
        ("hash", "a.#"),
        ("middle", "a.#.c"),
        ("all", "#"),
        ("other", "b.*"),
    ]:
        side.queue(name, key)

    def reached(key):
        side.send(key, key)
        return {
            name
            for name in ("exact", "star", "hash", "middle", "all", "other")
            if (message := side.channel.basic_get(name, no_ack=True)) and body(message) == key
        }

    assert reached("a.b.c") == {"exact", "star", "hash", "middle", "all"}
    assert reached("a.c") == {"hash", "middle", "all"}
    assert reached("a") == {"hash", "all"}
    assert reached("a.x.y.c") == {"hash", "middle", "all"}
    assert reached("b.x") == {"other", "all"}
    assert reached("b.x.y") == {"all"}
    assert reached("a.*.c") == {"star", "hash", "middle", "all"}


@on_all_brokers
def test_queue_with_several_matching_bindings_receives_one_copy(side):
    side.queue("q", "a.*", "*.b", "a.b")
    side.send(1, "a.b")
    side.consume("q")
    side.drain()
    side.assert_no_message()


def test_unroutable_message_is_dropped_and_reported(side):
    assert side.send(1, "nowhere") is False
    assert side.send(1, "nowhere", exchange="no-such-exchange") is False
    assert side.send(1, "no-such-queue", exchange="") is False


def test_default_exchange_routes_to_queue_of_same_name(side):
    side.queue("q")
    assert side.send("direct", "q", exchange="") is True
    side.consume("q")
    assert side.drain() == ["direct"]


def test_new_bindings_apply_at_once(side):
    for number in range(20):
        key = f"k{number}"
        assert side.send(number, key) is False
        side.queue(f"q{number}", key)
        assert side.send(number, key) is True
    side.channel.queue_unbind("q3", "ex", "k3")
    assert side.send(3, "k3") is False


@pytest.mark.parametrize("name", ["../../x", "a/b", "", ".", "..", "a\0b", "x" * 121, "ü", "a=b"])
def test_invalid_queue_and_exchange_names_are_rejected(side, name):
    if name:
        with pytest.raises(ValueError, match="queue"):
            side.channel.queue_declare(queue=name)
        with pytest.raises(ValueError, match="exchange"):
            side.channel.exchange_declare(exchange=name, type="topic")


# -- order


@on_all_brokers
def test_messages_are_delivered_in_published_order(side):
    side.fill(300)
    side.consume("q")
    assert side.drain(300) == list(range(300))


@on_all_brokers
def test_message_of_higher_priority_is_delivered_first(side):
    side.queue("q", "k")
    for priority in (0, 9, 5, None, 9, 5):
        side.send(priority, "k", priority=priority)
    side.consume("q", prefetch=1)
    assert side.drain(6) == [9, 9, 5, 5, 0, None]


def test_one_queue_is_emptied_before_the_next(side):
    for name in ("first", "second", "third"):
        side.queue(name, name)
    for number in range(5):
        for name in ("third", "first", "second"):
            side.send(f"{name}{number}", name)
    side.consume("second", "third", "first", prefetch=1)
    side.drain(15)
    assert [body[:-1] for body in side.got] == ["second"] * 5 + ["third"] * 5 + ["first"] * 5


# -- prefetch and acknowledgement


def test_prefetch_is_never_exceeded(side):
    side.queue("q", "k")
    side.queue("r", "r")
    for number in range(10):
        side.send(number, "k")
        side.send(number, "r")
    side.consume("q", "r", ack=False, prefetch=3)
    for many in (3, 4):
        side.drain(many)
        side.assert_no_message()
        assert len(side.got) == many
        side.messages[many - 2].ack()
    side.messages[0].reject()
    side.drain(6)
    side.assert_no_message()
    assert side.got == [0, 1, 2, 3, 4, 5]


def test_one_drain_delivers_all_waiting_messages(side):
    side.fill(50)
    side.consume("q")
    with transports.unlimited_drain_time():
        side.receiver.drain_events(timeout=60)
    assert len(side.got) == 50


def test_batches_from_several_queues_are_limited_by_bytes(side):
    for name in "a", "b":
        side.queue(name, "k")
        side.receiver.broker.watch(name)
    for _ in range(6):
        side.send("x" * 1_000_000, "k")
    sizes = []
    for _ in range(12):
        side.receiver.broker.refresh()
        taken = [each for _, each in side.receiver.broker.take_many([(64, ("a",)), (64, ("b",))])]
        side.receiver.broker.fetch(taken)
        sizes.append([len(each.data) + len(each.body) for each in taken])
    assert sum(map(len, sizes)) == 12
    assert max(map(sum, sizes)) <= MAX_BATCH_BYTES


def test_drain_returns_soon_with_long_backlog(side):
    side.fill(300)

    def receive(message):
        side.got.append(body(message))
        message.ack()
        time.sleep(0.005)

    side.consume("q", on=receive)
    side.receiver.drain_events(timeout=60)
    assert 0 < len(side.got) < 300
    assert side.drain(300) == list(range(300))


def test_acknowledgement_in_another_thread_wakes_full_consumer(side):
    side.fill(200)
    waiting = []
    done = threading.Event()
    highest = []

    def receive(message):
        side.got.append(body(message))
        waiting.append(message)
        highest.append(len(waiting))

    def acknowledge():
        while not done.is_set():
            try:
                waiting.pop().ack()
            except IndexError:
                time.sleep(0.0005)

    with ThreadPoolExecutor() as threads:
        for _ in range(3):
            threads.submit(acknowledge)
        try:
            side.consume("q", on=receive, prefetch=2)
            side.drain(200)
        finally:
            done.set()
    assert side.got == list(range(200))
    assert max(highest) <= 2


def test_slots_freed_in_other_threads_are_all_used(side):
    """Only slots that other threads free wake the consumer."""
    side.queue("q", "k")
    count = 300
    for number in range(count):
        side.send(number, "k")
    handed = queue.SimpleQueue()

    def settle(release):
        while (message := handed.get()) is not None:
            if release:
                side.channel.release_many([message])
            side.channel.ack_many([message])

    def receive(message):
        side.got.append(body(message))
        handed.put(message)

    with ThreadPoolExecutor(4) as threads:
        settling = [threads.submit(settle, n % 2) for n in range(4)]
        try:
            side.consume("q", on=receive, prefetch=1)
            side.drain(count)
        finally:
            for _ in settling:
                handed.put(None)
    assert side.got == list(range(count))


def test_acknowledging_released_messages_frees_no_second_slot(side):
    side.fill(6)
    side.consume("q", ack=False, prefetch=2)
    side.drain(2)
    side.channel.release_many(side.messages)
    side.drain(4)
    side.channel.ack_many(side.messages[:2])
    side.assert_no_message()
    assert side.got == [0, 1, 2, 3]


@on_all_brokers
def test_requeued_message_keeps_its_place_and_is_marked_redelivered(side):
    side.fill(3)
    first = side.take("q")
    second = side.take("q")
    second.requeue()
    first.reject(requeue=True)
    side.consume("q")
    assert side.drain(3) == [0, 1, 2]
    assert [m.delivery_info["redelivered"] for m in side.messages] == [True, True, False]


def test_repeatedly_requeued_message_is_not_duplicated(side):
    side.queue("q", "k")
    side.send(1, "k")
    for _ in range(3):
        side.take("q").requeue()
    side.take("q").ack()
    assert side.channel.basic_get("q") is None


@on_all_brokers
def test_rejected_message_is_deleted(side):
    side.queue("q", "k")
    side.send(1, "k")
    side.take("q").reject()
    assert side.channel.basic_get("q") is None


@on_all_brokers
def test_recover_delivers_unacknowledged_messages_again(side):
    side.queue("q", "k")
    side.send(1, "k")
    side.take("q")
    side.channel.basic_recover(requeue=True)
    assert side.take("q").delivery_info["redelivered"] is True


@on_all_brokers
@pytest.mark.parametrize("what", ["channel", "connection"])
def test_closing_requeues_unacknowledged_messages(side, what):
    side.fill(3)
    other = side.site.connect()
    channel = other.channel()
    unsettled = []
    transports.consume(channel, "q", unsettled.append, "x")
    while len(unsettled) < 3:
        other.drain_events(timeout=60)
    unsettled[1].ack()
    if what == "channel":
        channel.close()
    else:
        other.release()
    side.consume("q")
    assert side.drain(2) == [0, 2]
    assert all(m.delivery_info["redelivered"] for m in side.messages)
    if side.site.kind != "rabbitmq":
        assert unsettled[0].ack() is False


@on_all_brokers
def test_cancelled_consumer_receives_no_messages(side):
    side.queue("q", "k")
    side.consume("q")
    side.send(1, "k")
    side.drain(1)
    side.channel.basic_cancel("c-q")
    side.send(2, "k")
    side.assert_no_message()
    side.consume("q")
    assert side.drain(2) == [1, 2]


@on_all_brokers
def test_callback_may_publish_ack_and_cancel(side):
    side.queue("q", "k")
    side.send(3, "k")

    def receive(message):
        left = body(message)
        message.ack()
        side.got.append(left)
        if left:
            side.send(left - 1, "k")
        else:
            side.channel.basic_cancel("c-q")

    side.consume("q", on=receive)
    assert side.drain(4) == [3, 2, 1, 0]


def test_error_in_callback_propagates_and_loses_no_other_message(side):
    side.fill(3)

    def receive(message):
        if not side.got:
            side.got.append("error")
            raise RuntimeError("mine")
        side.got.append(body(message))

    side.consume("q", on=receive)
    with pytest.raises(RuntimeError, match="mine"):
        side.drain(1)
    assert side.drain(3) == ["error", 1, 2]


# -- waiting


def test_drain_without_a_message_raises_timeout(side):
    side.queue("q", "k")
    side.consume("q")
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        side.receiver.drain_events(timeout=0.1)
    assert time.monotonic() - started > 0.09
    with pytest.raises(TimeoutError):
        side.receiver.drain_events(timeout=0)


def test_wake_from_another_thread_ends_drain(side):
    side.queue("q", "k")
    side.consume("q")
    with ThreadPoolExecutor() as threads, pytest.raises(TimeoutError):
        threads.submit(side.receiver.wake)
        side.receiver.drain_events()
    # An earlier wake-up is not lost, and counts once.
    side.receiver.wake()
    with pytest.raises(TimeoutError):
        side.receiver.drain_events()
    side.send(1, "k")
    side.drain(1)


def test_waiting_consumer_receives_message_soon(side):
    side.queue("q", "k")
    side.consume("q")
    took = []
    for number in range(20):
        with ThreadPoolExecutor() as threads:
            started = time.monotonic()
            threads.submit(side.send, number, "k")
            side.drain(number + 1)
            took.append(time.monotonic() - started)
    assert sorted(took)[10] < 0.5


# -- purge and delete


def test_size_and_purge_count_only_undelivered_messages(side):
    side.fill(4)
    message = side.take("q")
    assert side.receiver.broker.size("q") == 3
    assert side.channel.queue_purge("q") == 3
    assert side.receiver.broker.size("q") == 0
    message.ack()
    assert side.receiver.broker.size("none") == 0


def test_deleted_queue_drops_messages_and_bindings(side):
    side.queue("q", "k")
    side.consume("q")
    side.send(1, "k")
    side.send(2, "k")
    assert side.channel.queue_delete("q") == 2
    assert side.send(3, "k") is False
    side.assert_no_message()
    assert list(side.receiver.broker.bindings()) == []
    # The consumer is still registered when the queue is declared again.
    side.queue("q", "k")
    side.send(4, "k")
    assert side.drain(1) == [4]


def test_requeue_into_deleted_queue_has_no_effect(side):
    side.queue("q", "k")
    side.send(1, "k")
    message = side.take("q")
    side.channel.queue_delete("q")
    message.requeue()
    assert side.channel.queue_delete("q") == 0


# -- refused messages


def test_oversized_body_and_non_json_header_are_refused(side):
    side.queue("q", "k")
    big = bytes(64 * 1024 * 1024)
    with pytest.raises(exceptions.TooLarge, match="67108864"):
        side.send(big, "k")
    with pytest.raises((TypeError, ValueError)):
        side.send(1, "k", headers={"x": float("nan")})
    with pytest.raises((TypeError, ValueError)):
        side.send(1, "k", headers={"x": object()})
    assert side.channel.basic_get("q") is None


# -- concurrency


def test_messages_of_many_publishing_threads_all_arrive(side):
    side.queue("q", "k")
    count, senders = 1000, 4

    def publish(sender):
        with side.site.connection(peer=True) as connection:
            out = producer(connection.channel())
            for number in range(count):
                out.publish([sender, number], exchange="ex", routing_key="k")

    with ThreadPoolExecutor(senders) as threads:
        threads.map(publish, range(senders))
        side.consume("q", prefetch=50)
        side.drain(count * senders)
    _check_streams(side.got, senders, count)


def test_threads_sharing_one_channel(side):
    side.queue("q", "k")
    count, senders = 500, 4

    def publish(sender):
        for number in range(count):
            side.send([sender, number], "k")

    with ThreadPoolExecutor(senders) as threads:
        threads.map(publish, range(senders))
        side.consume("q")
        side.drain(count * senders)
    _check_streams(side.got, senders, count)


def test_two_consumers_share_a_queue(side):
    side.queue("q", "k")
    count = 1000
    other = side.site.connect()
    got = []

    def receive(message):
        got.append(body(message))
        message.ack()

    channel = other.channel()
    channel.basic_qos(0, 5, False)
    channel.basic_consume(queue="q", no_ack=False, callback=receive, consumer_tag="x")
    side.consume("q", prefetch=5)
    stop = threading.Event()

    def drain():
        while not stop.is_set():
            try:
                other.drain_events(timeout=0.5)
            except TimeoutError:
                pass

    thread = threading.Thread(target=drain)
    thread.start()
    for number in range(count):
        side.send(number, "k")
    end = time.monotonic() + 60
    while len(got) + len(side.got) < count and time.monotonic() < end:
        try:
            side.receiver.drain_events(timeout=0.2)
        except TimeoutError:
            pass
    stop.set()
    other.wake()
    thread.join()
    assert sorted(got + side.got) == list(range(count))
    assert got == sorted(got)
    assert side.got == sorted(side.got)


# -- processes

PUBLISHER = """
import sys
from tests.seams.transports import connection, producer
url, sender, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with connection(url) as connection:
    out = producer(connection.channel())
    for number in range(count):
        assert out.publish([sender, number], exchange="ex", routing_key="k")
"""

HOARDER = """
import sys
from tests.seams import transports
with transports.connection(sys.argv[1]) as connection:
    channel = connection.channel()
    got = []
    channel.basic_qos(0, 3, False)
    channel.basic_consume(queue="q", no_ack=False, callback=got.append, consumer_tag="x")
    while len(got) < 3:
        connection.drain_events(timeout=60)
    print("full", flush=True)
    connection.drain_events()
"""


@on(*transports.REACHED, "rabbitmq")
def test_messages_of_killed_consumer_are_marked_as_redelivered(side):
    """Messages that were not delivered yet are not marked."""
    side.fill(5)
    with hoarder(side):
        pass
    side.consume("q")
    side.drain(5)
    assert sorted(side.got) == [0, 1, 2, 3, 4]
    again = {body(m): m.delivery_info["redelivered"] for m in side.messages}
    assert again == {0: True, 1: True, 2: True, 3: False, 4: False}


@between_processes
def test_messages_of_many_publishing_processes_all_arrive(side):
    side.queue("q", "k")
    count, processes = 1500, 3
    running = [
        subprocess.Popen([sys.executable, "-c", PUBLISHER, side.site.url, str(n), str(count)])
        for n in range(processes)
    ]
    side.consume("q", prefetch=20)
    side.drain(count * processes)
    assert [process.wait() for process in running] == [0] * processes
    _check_streams(side.got, processes, count)
    side.assert_no_message()


@contextlib.contextmanager
def hoarder(side):
    """Start a process that consumes three messages and acknowledges none."""
    words = [sys.executable, "-c", HOARDER, side.site.url]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"full\n"
        yield process
        process.kill()


@in_folders
def test_messages_return_when_consumer_is_killed_but_not_when_frozen(side):
    side.fill(5)
    with hoarder(side) as process:
        side.consume("q")
        assert side.drain(2) == [3, 4]
        side.assert_no_message()
        os.kill(process.pid, signal.SIGSTOP)  # frozen is not dead
        side.site.connect()  # checks for dead consumers
        side.assert_no_message()
    assert side.drain(5) == [3, 4, 0, 1, 2]
    assert [m.delivery_info["redelivered"] for m in side.messages] == [False] * 2 + [True] * 3
    assert len(side.site.folder.claims) == len(side.site.folder.holders) == 1


# -- helpers


def _check_streams(got, senders, count):
    """Check that no message is lost or duplicated, and that each sender's order is preserved."""
    assert len(got) == senders * count
    for sender in range(senders):
        assert [number for who, number in got if who == sender] == list(range(count))


# -- hostile messages (folders only)


HOSTILE = {
    "empty": b"",
    "torn head": lay_out({})[:40],
    "torn body": lay_out({}, b"x" * 50)[:-1],
    "too much": lay_out({}) + b"x",
    "zeros": b"\0" * 4096,
    "no json": b"hello\n{}",
    "no utf-8": b'{"a": "\xff\xfe"}\n{}',
    "utf-16": lay_out({}).decode().encode("utf-16"),
    "list": b"[]\n",
    "null": b"null\n",
    "deep": b"[" * 200_000 + b"\n",
    "long number": b"9" * 10_000 + b"\n",
    "nan": lay_out({"headers": {"x": float("nan")}}),
    "surrogate": lay_out({"headers": {"x": "\ud800"}}),
    "compressed": lay_out({"headers": {"compression": "bzip2"}}, b"BZh9"),
    "compressed property": lay_out({"properties": {"compression": "bzip2"}}, b"BZh9"),
    "no headers": lay_out({}, without=("headers",)),
    "headers list": lay_out({"headers": []}),
    "properties null": lay_out({"properties": None}),
    "exchange number": lay_out({"exchange": 5}),
    "no routing key": lay_out({}, without=("routing_key",)),
    "size bool": lay_out({"size": True}, b"x"),
    "size text": lay_out({"size": "2"}),
    "later layout": lay_out({"v": 2}),
    "no layout": lay_out({}, without=("v",)),
}


@in_folders
@pytest.mark.parametrize("what", sorted(HOSTILE))
def test_unreadable_message_is_moved_to_rejected_folder(side, caplog, what):
    side.queue("q", "k")
    side.send("before", "k")
    side.site.folder.put("q", HOSTILE[what])
    side.send("after", "k")
    side.consume("q", prefetch=1)
    assert side.drain(2) == ["before", "after"]
    (rejected,) = side.site.folder.rejected
    assert rejected.read_bytes() == HOSTILE[what]
    (line,) = [r for r in caplog.records if r.name == transports.LOG]
    assert "discarded" in line.getMessage() and str(rejected) in line.getMessage()
    assert side.site.folder.messages("q") == []


@in_folders
def test_rejected_messages_are_logged_once(side, caplog):
    side.queue("q", "k")
    for _ in range(150):
        side.site.folder.put("q", b"foreign")
    side.consume("q")
    side.assert_no_message()
    assert len(side.site.folder.rejected) == 150
    (line,) = [r for r in caplog.records if r.name == transports.LOG]
    assert "discarded" in line.getMessage()


DYING = """
import itertools, os, sys
from tests.seams.transports import connection

def dying(step, left):
    def call(*args, **kwargs):
        if next(left) == 0:
            os._exit(1)
        return step(*args, **kwargs)
    return call

for count in itertools.count():
    child = os.fork()
    if not child:
        with connection(sys.argv[1]) as dies:
            broker, left = dies.broker, itertools.count(count, -1)
            os.open, os.rename = dying(os.open, left), dying(os.rename, left)
            folder = broker._in
            type(folder).write = dying(type(folder).write, left)
            broker.declare_queue(f"of-{count}", owned=True)
            os._exit(0)
    if not os.waitpid(child, 0)[1]:
        break
print(count)
"""


@in_folders
def test_queue_of_process_that_died_while_declaring_is_removed(side):
    script = [sys.executable, "-c", DYING, side.site.url]
    steps = int(subprocess.run(script, check=True, capture_output=True, timeout=60).stdout)
    assert steps > 2
    side.site.connect()  # checks for dead processes
    assert side.site.folder.queues == []


@in_folders
def test_temporary_disk_error_raises_transport_failure(side, monkeypatch):
    """It is a failure of the broker, followed by a reconnect, not of the message."""
    side.queue("q", "k")
    side.send(1, "k")
    message = side.take("q")

    def failing(path, *_, **__):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", failing)
        for call in (lambda: side.send(2, "k"), message.ack):
            with pytest.raises(exceptions.TransportFailure, match="Input/output error"):
                call()
    message.ack()
    assert side.channel.basic_get("q") is None


KILLED = """
import sys
from tests.seams.transports import body, connection
log = open(sys.argv[2], "a", buffering=1)
with connection(sys.argv[1]) as connection:
    channel = connection.channel()
    channel.basic_qos(0, 4, False)
    def receive(message):
        # Written before the ack: killed between the two, the message comes again, marked.
        log.write(f"{body(message)} {int(message.delivery_info['redelivered'])}\\n")
        message.ack()
    channel.basic_consume(queue="q", no_ack=False, callback=receive, consumer_tag="x")
    while True:
        connection.drain_events()
"""


@between_processes
def test_repeatedly_killed_consumers_lose_no_message(side, tmp_path):
    side.queue("q", "k")
    count, rounds = 1500, 6
    url = side.site.url
    log = tmp_path / "log"
    log.touch()
    stop = threading.Event()

    def publish():
        out = producer(side.out)
        for number in range(count):
            out.publish(number, exchange="ex", routing_key="k")
            if number % 50 == 0:
                stop.wait(0.02)  # spreads the messages over the kills

    publisher = threading.Thread(target=publish)
    publisher.start()
    for number in range(rounds):
        size = log.stat().st_size
        with subprocess.Popen([sys.executable, "-c", KILLED, url, str(log)]) as process:
            while log.stat().st_size < size + 200 + 137 * number and publisher.is_alive():
                time.sleep(0.001)
            process.kill()
    stop.set()
    publisher.join()
    side.consume("q")
    seen = [line.split() for line in log.read_text().splitlines()]
    first = {int(number) for number, again in seen}
    end = time.monotonic() + 60
    while first | set(side.got) != set(range(count)) and time.monotonic() < end:
        try:
            side.receiver.drain_events(timeout=0.2)
        except TimeoutError:
            pass
    assert first | set(side.got) == set(range(count))
    # Only a delivered message may be delivered again, marked as redelivered.
    fresh = [n for n, again in seen if again == "0"]
    fresh += [str(body(m)) for m in side.messages if not m.delivery_info["redelivered"]]
    assert len(fresh) == len(set(fresh))


# -- unused queues


@pytest.mark.parametrize(("days", "stays"), [(6, True), (8, False)])
def test_unused_queue_in_a_folder_is_removed_after_a_week(tmp_path, days, stays):
    with contextlib.closing(Site("filesystem", tmp_path)) as site:
        side = Side(site)
        side.queue("q", "k")
        side.send(1, "k")
        site.close()
        site.folder.leave_unused(days * 24 * 3600.0)
        site.connect()
        assert (site.folder.queues == ["q"]) is stays
