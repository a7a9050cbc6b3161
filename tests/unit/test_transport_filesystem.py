"""Filesystem transport: dead processes, expired queues, wake-ups and its database file."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crashing.filling import small_disk
from tests.seams import ledgers
from tests.seams.transports import Folder, body, connection
from tests.support import fresh, python
from tests.support.workers import until
from tests.unit import descriptors
from wbengine import exceptions
from wbengine._sqlite import sqlite_files
from wbengine.transports._broker import Frame
from wbengine.transports._folder import fifos, folder_broker, folder_tables


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def folder(root: Path) -> Folder:
    return Folder(root)


@pytest.fixture
def connect(root: Path) -> Iterator[Callable[..., Any]]:
    opened = []

    def make(**options: Any) -> Any:
        made = connection(f"filesystem://{root}", **options)
        opened.append(made)
        made.connect()
        return made

    yield make
    for each in opened:
        each.release()


def declare(connection: Any, queue: str = "q") -> Any:
    channel = connection.channel()
    channel.queue_declare(queue=queue)
    channel.queue_bind(queue, "ex", "k")
    return channel


@pytest.fixture
def channel(connect: Any) -> Any:
    return declare(connect())


def test_released_connection_leaves_no_owner_or_claim(
    connect: Any, root: Path, folder: Folder
) -> None:
    connection = connect()
    channel = declare(connection)
    channel.publish(1)
    channel.get("q").ack()
    assert len(folder.holders) == len(folder.claims) == 1
    connection.release()
    assert folder.holders == folder.claims == folder.messages("q") == []
    assert sorted(os.listdir(root)) == ["bells", "holders", "wbengine.db"]


def test_folder_is_readable_only_by_its_owner(root: Path, channel: Any) -> None:
    channel.publish(1)
    channel.get("q")
    for path in (root, *root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_queue_with_consumer_or_new_messages_does_not_expire(connect: Any, folder: Folder) -> None:
    connection = connect()
    channel = declare(connection)
    for queue in ("filled", "empty"):
        declare(connection, queue)
    folder.leave_unused(folder_broker.STALE_AFTER_SECONDS + 60)
    channel.broker.publish_many([Frame("", "filled", 0, b"x")])
    next(channel.broker.publish_many([Frame("", "filled", 0, b"x")]))
    channel.subscribe("q", print)
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0)
    connect()
    assert folder.queues == ["filled", "q"]


OWNER = """
import signal, sys
from tests.seams.transports import connection
channel = connection(sys.argv[1]).channel()
channel.queue_declare(queue="own", exclusive=True)
channel.queue_bind("own", "ex", "own")
print("declared", flush=True)
signal.pause()
"""


def test_exclusive_queue_is_deleted_when_its_process_dies(
    root: Path, connect: Any, folder: Folder
) -> None:
    watching = declare(connect())
    with fresh.process("-c", OWNER, f"filesystem://{root}", stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == b"declared\n"
        owner.send_signal(signal.SIGSTOP)  # A stopped process is alive.
        connect()
        assert folder.queues == ["own", "q"]
        owner.kill()
    (root / "bells" / "own").touch()
    connect()
    assert folder.queues == ["q"]
    assert not (root / "bells" / "own").exists()
    assert "own" not in {queue for queue, _, _ in watching.broker.bindings()}
    assert folder.claims == folder.holders == []


def test_exclusive_queue_outlives_its_connection(connect: Any, folder: Folder) -> None:
    connection = connect()
    connection.channel().queue_declare(queue="own", exclusive=True)
    connection.release()
    assert folder.claims == folder.holders == []
    connect()
    assert folder.queues == ["own"]


def test_release_in_a_forked_child_does_not_affect_the_parent(connect: Any, folder: Folder) -> None:
    connection = connect()
    channel = declare(connection)
    channel.queue_declare(queue="own", exclusive=True)
    child = os.fork()
    if not child:
        connection.release()
        os._exit(0)
    os.waitpid(child, 0)
    channel.publish(1)
    assert body(channel.get("q")) == 1
    assert len(folder.claims) == len(folder.holders) == 1


def test_forked_child_publishes_over_its_own_connection(channel: Any) -> None:
    child = os.fork()
    if not child:
        channel.publish("child")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    channel.publish("parent")
    assert [body(channel.get("q")) for _ in range(2)] == ["child", "parent"]


FORKER = """
import os, signal, sys
from tests.seams.transports import connection
connection = connection(sys.argv[1])
message = connection.channel().get("q")
assert message is not None
if not os.fork():  # the child tells: it has closed its copy by then
    print(os.getpid(), flush=True)
signal.pause()
"""


def test_claims_of_a_dead_parent_return_while_its_child_lives(
    root: Path, connect: Any, channel: Any
) -> None:
    """The child closes its copy of the lock, so the claims return when the parent dies."""
    channel.publish("held")
    with fresh.process("-c", FORKER, f"filesystem://{root}", stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        try:
            assert channel.get("q") is None
            parent.kill()
            parent.wait()
            connect()  # Connecting returns the claims of dead processes.
            assert body(channel.get("q")) == "held"
        finally:
            os.kill(child, signal.SIGKILL)


def test_connections_do_not_leak_descriptors(connect: Any) -> None:
    for _ in range(3):
        before = descriptors.opened()
        connection = connect()
        channel = declare(connection)
        channel.subscribe("q", print)
        channel.publish(1)
        assert descriptors.opened() - before
        connection.release()
        # Descriptors that other code closed do not count.
        assert descriptors.opened() - before == set()


def test_deleted_folder_is_reported_and_created_again(
    root: Path, connect: Any, folder: Folder
) -> None:
    channel = declare(connect())
    root.rename(root.parent / "away")
    with pytest.raises(exceptions.TransportFailure, match="was deleted"):
        channel.publish(1)
    channel = declare(connect())
    channel.publish(2)
    assert body(channel.get("q")) == 2


# Wake-ups.


def test_discarded_queue_causes_no_wakeup(tmp_path: Path) -> None:
    watched = fifos.QueueFifos(str(tmp_path), None, True)
    watched.add("kept")
    watched.add("discarded")
    watched.discard("discarded")
    assert not watched.is_notified()
    fifos.notify(str(tmp_path), "kept")
    assert watched.is_notified()
    watched.discard("kept")


@pytest.mark.parametrize("what", ["removed", "full", "a file", "a link"])
def test_message_arrives_although_the_wakeup_pipe_is_damaged(
    root: Path, connect: Any, what: str, tmp_path: Path
) -> None:
    connection = connect(polling_interval=0.2)
    channel = declare(connection)
    got: list[Any] = []
    channel.subscribe("q", got.append)
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0)
    bell = root / "bells" / "q"
    secret = tmp_path / "secret"
    secret.write_text("untouched")
    if what == "full":
        fd = os.open(bell, os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(fd, b"!" * 65536)
        os.close(fd)
    else:
        bell.unlink()
        if what == "a file":
            bell.write_text("")
        elif what == "a link":
            bell.symlink_to(secret)
    for number in range(2):
        connect().channel().publish(number)
        while len(got) <= number:
            connection.drain_events(timeout=30)
    assert secret.read_text() == "untouched"
    if what == "removed":
        assert stat.S_ISFIFO(bell.stat().st_mode)


# Database file.


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("writes", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def writing(root: Path) -> Iterator[Any]:
    """Run a process that is stopped in a write transaction."""
    command = ["-c", HOLDER, str(root / "wbengine.db")]
    pipe = subprocess.PIPE
    with python.start(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writes\n"
        process.send_signal(signal.SIGSTOP)
        try:
            yield process
        finally:
            process.kill()


def test_stopped_writer_is_logged_within_two_seconds(
    root: Path, caplog: pytest.LogCaptureFixture, channel: Any
) -> None:
    """Other writers wait until the write lock is free."""
    with writing(root) as process:
        thread = threading.Thread(target=channel.publish, args=(1,))
        began = time.monotonic()
        thread.start()
        pid = process.pid
        named = f"stopped process {pid} is writing it (to continue: kill -CONT {pid})"
        until(lambda: named in caplog.text)
        assert time.monotonic() - began < 4  # 1.5 s, and time for a slow host.
        assert thread.is_alive()
    thread.join(30)
    assert body(channel.get("q")) == 1


def test_write_times_out_while_another_process_is_stopped(
    root: Path, monkeypatch: pytest.MonkeyPatch, channel: Any
) -> None:
    channel.publish(1)
    monkeypatch.setattr(folder_tables, "_LOCK_TIMEOUT_SECONDS", 0.0)
    with writing(root) as process:
        with pytest.raises(exceptions.TransportFailure, match=f"process {process.pid} is writing"):
            channel.publish(2)
        assert channel.broker.size("q") == 1  # Reading still works.


def test_blocked_writes_do_not_count_as_silence(root: Path, channel: Any) -> None:
    with contextlib.closing(ledgers.open_ledger(f"dir://{root}")) as ledger:
        ledger.renew("w")
        ledgers.make_content_older(f"dir://{root}", 100)
        assert ledger.silence("w") >= 100
        with writing(root):
            thread = threading.Thread(target=channel.publish, args=(1,))
            thread.start()
            until(lambda: channel.broker._in.last_blocked_at > 0)
        thread.join(30)
        assert ledger.silence("w") < 60


def test_each_write_is_one_statement(
    root: Path, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that waits for its interpreter between two statements would block other writers."""
    said: list[str] = []
    real = sqlite3.connect

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        made = real(*args, **options)
        made.set_trace_callback(said.append)
        return made

    declare(connect()).broker.release()
    monkeypatch.setattr(sqlite3, "connect", traced)
    channel = declare(connect())
    with contextlib.closing(ledgers.open_ledger(f"dir://{root}")) as ledger:
        ledger.open_many([("a", 1), ("b", 1)])
        ledger.claim("a", 1, "w")
        ledger.finish("a", 1, "w", b"r")
        ledger.drop_many(["a", "b"])
        for number in range(2):
            channel.publish(number)
        for _ in range(2):
            channel.get("q").ack()
    assert len(said) > 10
    assert not [words for words in said if words.split()[0] in ("BEGIN", "COMMIT", "SAVEPOINT")]


def test_disk_reserve_is_kept_for_replies_and_results(
    root: Path, monkeypatch: pytest.MonkeyPatch, channel: Any
) -> None:
    with contextlib.closing(ledgers.open_ledger(f"dir://{root}")) as ledger:
        ledger.open("a", 1)
        assert ledger.claim("a", 1, "w").granted
        monkeypatch.setattr(folder_tables, "_RESERVE_BYTES", 1 << 62)
        with pytest.raises(exceptions.LedgerFailure, match="No space left"):
            ledger.open("b", 1)
        headers = {"wbe-ledger": ledger.digest, "wbe-epoch": 1}
        with pytest.raises(exceptions.TransportFailure, match="No space left"):
            channel.publish(1, headers=headers, correlation_id="a")
        assert ledger.finish("a", 1, "w", b"r")
        assert channel.publish("the answer")
        assert ledger.state("a") == ledgers.Row("a", 1, "done", None, b"r")


def test_requests_on_a_full_disk_can_be_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_tables, "_RESERVE_BYTES", 8 << 20)  # of 16 MB
    monkeypatch.setattr(folder_tables, "_CHECKPOINT_PAGES", 500)
    with small_disk(tmp_path / "disk") as (what, _, _):
        if "tmpfs" not in what:
            pytest.skip("nothing may be mounted here")
        root = tmp_path / "disk" / "root"
        with connection(f"filesystem://{root}") as made:
            channel = declare(made)
            with contextlib.closing(ledgers.open_ledger(f"dir://{root}")) as ledger:
                ids = []
                with pytest.raises(exceptions.WbengineException, match="No space left"):
                    for number in range(10_000):
                        ledger.open(f"row-{number}", 1)
                        ids.append(f"row-{number}")
                        headers = {"wbe-ledger": ledger.digest, "wbe-epoch": 1}
                        channel.publish("x" * 20_000, headers=headers, correlation_id=ids[-1])
                assert len(ids) > 50
                for id in ids:
                    assert ledger.claim(id, 1, "w").granted
                    assert ledger.finish(id, 1, "w", b"result" * 1000)
                    message = channel.get("q")
                    if message is not None:
                        message.ack()
                ledger.drop_many(ids)
                ledger.open("again", 1)


# Power loss.


def left(root: Path, to: Path) -> Path:
    """Copy the folder in its state after a power loss."""
    to.mkdir()
    for name in ("wbengine.db", "wbengine.db-wal"):
        (to / name).write_bytes((root / name).read_bytes())
    return to


def test_after_a_power_loss_open_requests_count_as_lost(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A claim may not be on the disk yet, so open requests count as claimed by a lost worker."""
    with contextlib.closing(ledgers.open_ledger(f"dir://{root}")) as ledger:
        ledger.open_many([("open", 1), ("claimed", 1), ("done", 1)])
        ledger.raise_fence(ledgers.Fence.of("f", 2))
        for id in ("claimed", "done"):
            assert ledger.claim(id, 1, "w").granted
        ledger.finish("done", 1, "w", b"r")
        after = left(root, tmp_path / "after")
    with contextlib.closing(sqlite3.connect(after / "wbengine.db")) as opened:
        opened.execute("UPDATE about SET boot = 'another'")
        opened.commit()  # The open connection preserves the write-ahead log.
        with contextlib.closing(ledgers.open_ledger(f"dir://{after}")) as ledger:
            told = ledger.claim("open", 1, "w2")
            assert (told.verdict, told.holder) == (ledgers.HELD, folder_tables.LOST_OWNER)
            assert ledger.silence(folder_tables.LOST_OWNER) is not None
            assert ledger.claim("claimed", 1, "w2").holder == "w"
            assert ledger.claim("done", 1, "w2").result == b"r"
            assert ledger.reopen("open", 2) is None
            assert ledger.claim("open", 2, "w2").granted
            assert ledger.raise_fence(ledgers.Fence.of("f", 3)) == 3
    assert "open requests are treated as lost" in caplog.text


def test_after_a_clean_shutdown_open_requests_can_be_claimed(root: Path, folder: Folder) -> None:
    with contextlib.closing(ledgers.open_ledger(f"dir://{root}")) as ledger:
        ledger.open("open", 1)
    folder.boot()
    with contextlib.closing(ledgers.open_ledger(f"dir://{root}")) as ledger:
        assert ledger.claim("open", 1, "w").granted


# Rejected folders.


@pytest.mark.parametrize("format", [0, 2])
def test_folder_of_another_format_is_rejected(
    connect: Any, folder: Folder, root: Path, format: int
) -> None:
    connect().release()
    folder._ask(f"UPDATE about SET format = {format}")
    words = f"has folder format {format}, and wbengine"
    with pytest.raises(exceptions.TransportFailure, match=words):
        connect()
    with pytest.raises(exceptions.LedgerFailure, match=words):
        ledgers.open_ledger(f"dir://{root}").open("a", 1)


def test_sqlite_secure_delete_is_disabled(root: Path) -> None:
    """Some builds of SQLite enable it, and would overwrite each deleted message."""
    opened = folder_tables.open_folder(str(root))
    assert opened.read("PRAGMA secure_delete") == [(0,)]
    opened.release()


TABLE = r"""/dev/sda1 / ext4 rw 0 0
server:/srv /srv nfs4 rw 0 0
/dev/sdb1 /srv/fast xfs rw 0 0
//host/share /mnt/ünser\040share cifs rw 0 0
tmpfs /hidden/below tmpfs rw 0 0
server:/srv /hidden nfs4 rw 0 0
tmpfs /opt/data tmpfs rw 0 0
me@host: /opt/data fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/flows.db", "ext4"),
        ("/srv/flows.db", "nfs4"),
        ("/srvother/flows.db", "ext4"),
        ("/srv/fast/flows.db", "xfs"),
        ("/hidden/below/flows.db", "nfs4"),
        ("/mnt/ünser share/flows.db", "cifs"),
        ("/opt/data/flows.db", "fuse.sshfs"),
    ],
)
def test_file_system_of_a_path_is_that_of_its_last_mount(path: str, kind: str) -> None:
    assert sqlite_files.kind_of(path, TABLE) == kind


def test_mounts_of_this_system_can_be_read(tmp_path: Path) -> None:
    if os.path.exists("/proc/self/mounts"):
        assert (
            sqlite_files.kind_of(str(tmp_path), Path("/proc/self/mounts").read_text()) is not None
        )
    assert sqlite_files.network_kind("/proc/self") is None


def test_folder_on_a_network_file_system_is_rejected(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = sqlite_files.kind_of(str(root.parent), Path("/proc/self/mounts").read_text())
    monkeypatch.setattr(sqlite_files, "NETWORK", frozenset({kind}))
    with pytest.raises(exceptions.TransportFailure, match="network file system"):
        connection(f"filesystem://{root}").connect()


def test_damaged_file_is_reported(root: Path) -> None:
    root.mkdir()
    (root / "wbengine.db").write_bytes(b"no database" * 1000)
    with pytest.raises(exceptions.TransportFailure, match="not a database"):
        connection(f"filesystem://{root}").connect()
