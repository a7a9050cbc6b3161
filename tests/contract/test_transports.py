"""Transports: the published contract, and tests of those that wbengine contains."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import queue
import re
import signal
import subprocess
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from examples import table_transport
from tests.seams import transports
from tests.seams.transports import Side, Site, body, lay_out
from tests.support import python
from wbengine import engines, exceptions, task
from wbengine.patterns import linear_flow
from wbengine.testing import ManualClock, worker_in_thread
from wbengine.testing.transport_contract import TransportContract
from wbengine.transports import Frame, resolve
from wbengine.transports import _kinds as kinds
from wbengine.transports._sql import postgresql_rights

_numbers = itertools.count()


class TestMemory(TransportContract):
    @pytest.fixture
    def transport_url(self):
        return f"memory://contract-{next(_numbers)}"


class TestFolder(TransportContract):
    @pytest.fixture
    def transport_url(self, folder):
        return f"filesystem://{folder}/a"


def _part(*words):
    """Return the contract with only those tests that have one of these words in their names."""
    members = {
        name: member
        for name, member in vars(TransportContract).items()
        if not name.startswith(("__", "test_")) or any(word in name for word in words)
    }
    return type("Part", (), members)


class TestPolledFolder(_part("arrives", "drain", "wait", "wake", "redelivered")):
    """Polling replaces only the way in which a folder reports new messages."""

    @pytest.fixture
    def transport_url(self, folder):
        return f"filesystem://{folder}/a"

    @pytest.fixture
    def transport_options(self):
        return {"inotify": False}


class TestTwoFolders(_part("arrives", "binding", "route", "reported", "redelivered", "purge")):
    """The sender consumes from the folder to which the receiver publishes."""

    @pytest.fixture
    def transport_url(self, folder):
        return f"filesystem://{folder}/a"

    @pytest.fixture
    def transport_options(self, folder):
        return {"data_folder_in": f"{folder}/a", "data_folder_out": f"{folder}/b"}

    @pytest.fixture
    def sender_target(self, transport_url, folder):
        options = {"data_folder_in": f"{folder}/b", "data_folder_out": f"{folder}/a"}
        return resolve(transport_url, None, options, exchange="contract")


class TestRedis(TransportContract):
    @pytest.fixture
    def transport_url(self, redis_url):
        return str(redis_url)

    @pytest.fixture
    def transport_options(self):
        return {"dead_after": 2.0}


class TestPostgreSQL(TransportContract):
    @pytest.fixture
    def transport_url(self, postgresql_url):
        return postgresql_url

    @pytest.fixture
    def transport_options(self):
        return {"dead_after": 2.0}


class TestMySQL(TransportContract):
    @pytest.fixture
    def transport_url(self, mariadb_url):
        return mariadb_url

    @pytest.fixture
    def transport_options(self):
        return {"dead_after": 2.0}


@pytest.fixture
def role_of_worker(postgresql_server):
    """Create a role without rights, and yield its name."""
    name = f"worker_{uuid.uuid4().hex[:6]}"
    postgresql_server.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'secret'")
    yield name
    postgresql_server.execute(f"DROP ROLE {name}")


@pytest.mark.slow
class TestPostgreSQLWithRightsOfWorkers(TestPostgreSQL):
    test_requests_of_a_flow_are_sent_once = None  # Engines need more rights.
    test_rows_change_as_in_memory = None

    @pytest.fixture
    def transport_url(self, role_of_worker, postgresql_server):
        with postgresql_server.database() as url:
            postgresql_rights.grant_to_worker(resolve(url).place, role_of_worker)
            yield f"postgresql://{role_of_worker}:secret@{url.partition('@')[2]}"


@pytest.fixture
def table_package(tmp_path, monkeypatch):
    """Install the example, as a package of its own would be."""
    info = tmp_path / "installed" / "table-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: table\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[wbengine.transports]\ntable = examples.table_transport:KIND\n"
    )
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.setenv("PYTHONPATH", str(info.parent), prepend=os.pathsep)


@pytest.mark.usefixtures("table_package")
class TestTableOfExample(TransportContract):
    @pytest.fixture
    def transport_url(self, folder):
        return f"table://{folder}/broker.db"

    @pytest.fixture
    def transport_options(self):
        return {"dead_after": 1.0}


class _Double(task.Task):
    def execute(self, number):
        return 2 * number


@pytest.mark.usefixtures("table_package")
@pytest.mark.parametrize("name", ["broker.db", "a %20b?c.db"])
def test_flow_runs_over_plugin_with_its_ledger(folder, name):
    url = f"table://{folder}/{quote(name)}"
    flow = linear_flow.Flow("one").add(_Double("double", provides="result"))
    with worker_in_thread(url, _Double):
        results = engines.run(flow, engine="worker-based", url=url, inputs={"number": 4})
    assert results["result"] == 8
    assert (folder / f"{name}-ledger").exists()


@pytest.mark.usefixtures("table_package")
def test_owned_queue_of_plugin_is_deleted_ten_minutes_after_its_process(folder, monkeypatch):
    clock = ManualClock()
    monkeypatch.setattr(table_transport, "time", clock)
    target = resolve(f"table://{folder}/broker.db")
    with target.open() as broker:
        broker.declare_queue("own", owned=True)
    for seconds, exists in ((60, True), (600, False)):
        clock.advance(seconds)
        with target.open() as broker:
            assert list(broker.publish_many([Frame("", "own", 0, b"")])) == [exists]


@pytest.mark.usefixtures("table_package")
def test_kind_of_plugin_is_found_by_scheme(tmp_path):
    target = resolve(f"table://{tmp_path}/a.db")
    assert target.kind is table_transport.KIND
    assert target.system == "table"
    with pytest.raises(ValueError, match="did you mean 'table'"):
        kinds.check_names("tabel:///x", None, None)
    with pytest.raises(ValueError, match="did you mean 'poll_seconds'"):
        resolve("table:///x", None, {"pol_seconds": 1})
    with pytest.raises(ValueError, match="poll_seconds must be a number of seconds, got 'x'"):
        resolve("table:///x", None, {"poll_seconds": "x"})
    with pytest.raises(ValueError, match="must be table:///PATH, got None"):
        resolve(None, "table")


@pytest.mark.parametrize("scheme", kinds.KINDS)
@pytest.mark.parametrize("other", ["socket", "cluster", "x"])
def test_second_part_of_a_scheme_is_refused(scheme, other):
    """Kombu would read the first part only, and connect to its default host."""
    url = f"{scheme}+{other}://me:s3cret@10.1.2.3:1/0"
    with pytest.raises(ValueError, match=f"did you mean '{scheme}'") as caught:
        resolve(url)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "amqp", "amqps", "pyamqp"])
@pytest.mark.parametrize(
    "password", ["hu/sh", "hu?sh", "hu#sh", "12/34", "12?34", "12#34", "hu[sh", "[12]", "hu?a=sh"]
)
def test_unquoted_password_is_refused_with_its_encoding(scheme, password):
    """The start of a password of digits would be the port of a host that the user names."""
    with pytest.raises(ValueError, match="in a password as %2F %3F %23") as caught:
        resolve(f"{scheme}://me:{password}@10.1.2.3//").check()
    assert not {"hu", "sh", "12", "34"} & set(re.findall("[a-z]+|[0-9]+", str(caught.value)))


@pytest.mark.parametrize("password", ["hu@sh", "hu@s/h", "h@u@sh"])
def test_unquoted_password_of_postgresql_is_refused_without_a_part_of_it(password):
    """SQLAlchemy would read the end of the password as the host."""
    with pytest.raises(ValueError, match="@ : / \\? # in a password as %40") as caught:
        resolve(f"postgresql://me:{password}@10.1.2.3/shop")
    assert "hu" not in str(caught.value) and "10.1.2.3" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["amqp", "amqps", "pyamqp"])
def test_start_of_a_password_with_semicolon_is_not_the_port(scheme):
    """Kombu separates the URLs of several brokers with semicolons."""
    with pytest.raises(ValueError, match=r"in a password as .*%3B") as caught:
        resolve(f"{scheme}://me:12;34@10.1.2.3//").check()
    assert not {"12", "34"} & set(re.findall("[0-9]+", str(caught.value)))
    resolve(f"{scheme}://me:12@10.1.2.3//;{scheme}://me:34@10.1.2.4//").check()


@pytest.fixture(params=transports.KINDS)
def side(request, folder):
    """Side on each of our brokers; the marks below select other ones.

    RabbitMQ is not a `Broker`: its tests are `tests/integration/test_rabbitmq.py`.
    """
    kind = request.param
    url = request.getfixturevalue("redis_url") if kind == "redis" else None
    with contextlib.closing(Site(kind, folder, url)) as site:
        yield Side(site)


def on(*kinds):
    return pytest.mark.parametrize("side", kinds, indirect=True)


in_folders = on("filesystem")
#: Transports that other processes can reach.
between_processes = on("filesystem", "redis")
#: wbengine brokers and the variants of folders.
with_variants = on(*transports.KINDS, *transports.FOLDERS)


# -- prefetch and acknowledgement


@with_variants
def test_one_drain_delivers_all_waiting_messages(side):
    side.fill(50)
    side.consume("q")
    with transports.unlimited_drain_time():
        side.receiver.drain_events(timeout=60)
    assert len(side.got) == 50


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


@with_variants
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
    assert side.channel.get("q") is None


# -- processes

PUBLISHER = """
import sys
from tests.seams.transports import connection
url, sender, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with connection(url) as connection:
    out = connection.channel()
    for number in range(count):
        assert out.publish([sender, number], exchange="ex", routing_key="k")
"""

HOARDER = """
import sys
from tests.seams import transports
with transports.connection(sys.argv[1]) as connection:
    channel = connection.channel()
    got = []
    channel.limit(3)
    channel.subscribe("q", got.append)
    while len(got) < 3:
        connection.drain_events(timeout=60)
    print("full", flush=True)
    connection.drain_events()
"""


@between_processes
def test_messages_of_many_publishing_processes_all_arrive(side):
    side.queue("q", "k")
    count, processes = 500, 3
    running = [
        python.start(["-c", PUBLISHER, side.site.url, str(n), str(count)]) for n in range(processes)
    ]
    side.consume("q", prefetch=20)
    side.drain(count * processes)
    assert [process.wait() for process in running] == [0] * processes
    _check_streams(side.got, processes, count)
    side.assert_no_message()


@contextlib.contextmanager
def hoarder(side):
    """Start a process that consumes three messages and acknowledges none."""
    words = ["-c", HOARDER, side.site.url]
    with python.start(words, stdout=subprocess.PIPE) as process:
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
    script = ["-c", DYING, side.site.url]
    steps = int(python.run(script, check=True, capture_output=True).stdout)
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
    assert side.channel.get("q") is None


KILLED = """
import sys
from tests.seams.transports import body, connection
log = open(sys.argv[2], "a", buffering=1)
with connection(sys.argv[1]) as connection:
    channel = connection.channel()
    channel.limit(4)
    def receive(message):
        # Written before the ack: killed between the two, the message comes again, marked.
        log.write(f"{body(message)} {int(message.delivery_info['redelivered'])}\\n")
        message.ack()
    channel.subscribe("q", receive)
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
        for number in range(count):
            side.out.publish(number, exchange="ex", routing_key="k")
            if number % 50 == 0:
                stop.wait(0.02)  # spreads the messages over the kills

    publisher = threading.Thread(target=publish)
    publisher.start()
    for number in range(rounds):
        size = log.stat().st_size
        with python.start(["-c", KILLED, url, str(log)]) as process:
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
