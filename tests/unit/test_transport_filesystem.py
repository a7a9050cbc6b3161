"""What only the filesystem transport does: sweeping, recycling, counting."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time

import pytest

from tests.seams.transports import body, connection
from tests.support import fresh
from tests.support.workers import until
from tests.unit import descriptors
from wbengine.transports import _arrivals, _files, filesystem


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


@pytest.fixture
def connect(root):
    opened = []

    def make(**options):
        made = connection(f"filesystem://{root}", **options)
        opened.append(made)
        made.connect()
        return made

    yield make
    for each in opened:
        each.release()


def _old(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))


def _declare(connection):
    channel = connection.channel()
    channel.exchange_declare(exchange="ex", type="topic")
    channel.queue_declare(queue="q")
    channel.queue_bind("q", "ex", "k")
    return channel


def _publish(channel, sent):
    return channel.publish(sent)


def test_closing_leaves_no_trace(root, connect):
    connection = connect()
    channel = _declare(connection)
    _publish(channel, 1)
    channel.basic_get("q").ack()
    assert len(os.listdir(root / "holders")) == 1
    connection.release()
    assert os.listdir(root / "holders") == os.listdir(root / "claims") == []
    assert os.listdir(root / "temp") == []
    assert len(os.listdir(root / "spare")) == 1


def test_files_are_recycled(root, connect):
    channel = _declare(connect())
    inodes = set()
    for number in range(50):
        _publish(channel, number)
        (name,) = os.listdir(root / "queues" / "q")
        inodes.add(os.stat(root / "queues" / "q" / name).st_ino)
        channel.basic_get("q").ack()
    assert len(inodes) == 1


def test_spares_are_bounded(tmp_path, monkeypatch):
    for name in ("spare", "temp", "out"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(_files, "_OWN", 30)
    spares = _files.Spares(str(tmp_path / "spare"), str(tmp_path / "temp"), keep=20)
    for number in range(200):
        spares.place(b"x", f"{tmp_path}/out/{number}")
    for number in range(200):
        spares.give(f"{tmp_path}/out/{number}", 1)
    assert 0 < len(os.listdir(tmp_path / "spare")) <= 20
    assert len(os.listdir(tmp_path / "temp")) == 30
    assert os.listdir(tmp_path / "out") == []


def test_spares_at_hand_may_be_swept(tmp_path):
    for name in ("spare", "temp", "out"):
        (tmp_path / name).mkdir()
    spares = _files.Spares(str(tmp_path / "spare"), str(tmp_path / "temp"))
    for number in range(3):
        spares.place(b"old", f"{tmp_path}/out/{number}")
    for number in range(3):
        spares.give(f"{tmp_path}/out/{number}", 3)
    _files.sweep_temp(str(tmp_path / "temp"), age=0)
    assert os.listdir(tmp_path / "temp") == []
    spares.place(b"new", f"{tmp_path}/out/x")
    assert (tmp_path / "out" / "x").read_bytes() == b"new"


def test_a_forked_child_has_no_spares_at_hand(tmp_path):
    for name in ("spare", "temp", "out"):
        (tmp_path / name).mkdir()
    spares = _files.spares(str(tmp_path / "spare"), str(tmp_path / "temp"))
    spares.place(b"1", f"{tmp_path}/out/1")
    spares.give(f"{tmp_path}/out/1", 1)
    (at_hand,) = os.listdir(tmp_path / "temp")
    child = os.fork()
    if not child:
        spares.place(b"child", f"{tmp_path}/out/child")
        os._exit(os.listdir(tmp_path / "temp") != [at_hand])
    assert os.waitpid(child, 0)[1] == 0
    spares.place(b"parent", f"{tmp_path}/out/parent")
    assert os.listdir(tmp_path / "temp") == []
    assert (tmp_path / "out" / "child").read_bytes() == b"child"
    spares.release()


def test_bindings_are_read_only_when_they_changed(root, connect, monkeypatch):
    channel = _declare(connect())
    tree = channel.broker._out
    until(lambda: tree._bindings_of("ex").settled)
    listed = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or listdir(path))
    for number in range(20):
        assert _publish(channel, number)
    assert [path for path in listed if "exchanges" in path] == []


def test_a_binding_made_within_one_tick_of_the_clock_is_seen(root, connect):
    channel = _declare(connect())
    folder = root / "exchanges" / "ex"
    channel.queue_declare(queue="r")
    assert channel.broker._out.route("ex", "late") == ()
    before = os.stat(folder).st_mtime_ns
    channel.queue_bind("r", "ex", "late")
    os.utime(folder, ns=(before, before))
    assert channel.broker._out.route("ex", "late") == ("r",)


def test_unused_queues_expire(root, connect):
    first = connect()
    channel = _declare(first)
    channel.queue_declare(queue="used")
    _publish(channel, 1)
    first.release()
    week = filesystem.STALE_AFTER + 60
    _old(root / "queues" / "q", week)
    _old(root / "queues" / "used", week - 3600)
    connect()  # swept less than an hour ago
    assert sorted(os.listdir(root / "queues")) == ["q", "used"]
    _old(root / "swept", 3700)
    channel = connect().channel()
    assert os.listdir(root / "queues") == ["used"]
    assert list(channel.broker.bindings()) == []


def test_a_jump_of_the_clock_is_no_reason_to_remove_queues(root, connect):
    _declare(connect())
    _old(root / "queues" / "q", filesystem.STALE_AFTER + 60)
    _old(root / "swept", filesystem.STALE_AFTER + 60)
    connect()
    assert os.listdir(root / "queues") == ["q"]
    _old(root / "swept", -3600)
    connect()
    assert os.listdir(root / "queues") == ["q"]
    _old(root / "swept", 3700)
    connect()
    assert os.listdir(root / "queues") == []


def test_a_consumer_keeps_its_queue_fresh(root, connect):
    connection = connect()
    channel = _declare(connection)
    channel.basic_consume(queue="q", no_ack=False, callback=print, consumer_tag="x")
    _old(root / "queues" / "q", filesystem.STALE_AFTER)
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0)
    assert time.time() - os.stat(root / "queues" / "q").st_mtime < 60


def test_stale_private_files_are_swept(root, tmp_path):
    (root / "temp").mkdir(parents=True)
    (root / "temp" / "left").write_text("x")
    _files.sweep_temp(str(root / "temp"), age=3600)
    assert os.listdir(root / "temp") == ["left"]
    _files.sweep_temp(str(root / "temp"), age=0)
    assert os.listdir(root / "temp") == []


def test_swept_private_file_is_written_again(root, connect, monkeypatch):
    """A publisher that was frozen so long that its private file was taken away."""
    channel = _declare(connect())
    rename = os.rename
    lost = []

    def lose_once(source, target):
        if "/queues/q/" in target and not lost:
            lost.append(source)
            os.unlink(source)
        rename(source, target)

    monkeypatch.setattr(os, "rename", lose_once)
    assert _publish(channel, "again")
    assert lost
    assert body(channel.basic_get("q")) == "again"


def test_orphaned_claims_without_holder_come_back(root, connect):
    channel = _declare(connect())
    _publish(channel, 1)
    (name,) = os.listdir(root / "queues" / "q")
    (root / "claims" / "gone").mkdir(0o700)
    os.rename(root / "queues" / "q" / name, root / "claims" / "gone" / f"q={name}")
    connect()  # perhaps somebody is just about to become a holder
    assert channel.basic_get("q") is None
    for planted in ("=", "..=", "q"):
        (root / "claims" / "gone" / planted).touch()
    _old(root / "claims" / "gone", 120)
    connect()
    assert os.listdir(root / "queues") == ["q"]
    assert channel.basic_get("q").delivery_info["redelivered"] is True


OWNER = """
import signal, sys
from tests.seams.transports import connection
channel = connection(sys.argv[1]).channel()
channel.queue_declare(queue="own", exclusive=True)
channel.queue_bind("own", "ex", "own")
print("declared", flush=True)
signal.pause()
"""


def test_the_own_queue_of_a_process_goes_when_it_dies(root, connect):
    watching = _declare(connect())
    watching.basic_consume("q", False, lambda message: None, "tag")
    with fresh.process("-c", OWNER, f"filesystem://{root}", stdout=subprocess.PIPE) as owner:
        assert owner.stdout.readline() == b"declared\n"
        owner.send_signal(signal.SIGSTOP)  # frozen is not dead
        connect()
        assert (root / "queues" / "own").exists()
        owner.kill()
    connect()
    assert os.listdir(root / "queues") == ["q"]
    assert not [name for name in os.listdir(root / "exchanges" / "ex") if "own" in name]
    assert os.listdir(root / "claims") == os.listdir(root / "holders") == []


def test_the_own_queue_of_a_process_outlives_its_connection(root, connect):
    connection = connect()
    connection.channel().queue_declare(queue="own", exclusive=True)
    connection.release()
    assert os.listdir(root / "claims") == os.listdir(root / "holders") == []
    connect()
    assert os.listdir(root / "queues") == ["own"]


def test_a_forked_child_that_closes_takes_nothing_from_its_parent(root, connect):
    connection = connect()
    channel = _declare(connection)
    channel.queue_declare(queue="own", exclusive=True)
    child = os.fork()
    if not child:
        connection.release()
        os._exit(0)
    os.waitpid(child, 0)
    _publish(channel, 1)
    assert body(channel.basic_get("q")) == 1
    assert len(os.listdir(root / "claims")) == len(os.listdir(root / "holders")) == 1


FORKER = """
import os, signal, sys
from tests.seams.transports import connection
connection = connection(sys.argv[1])
message = connection.channel().basic_get("q")
assert message is not None
if not os.fork():  # the child tells: it has closed its copy by then
    print(os.getpid(), flush=True)
signal.pause()
"""


def test_a_forked_child_does_not_keep_its_parent_alive(root, connect):
    """The child closes its copy of the lock; when the parent is gone, its claims come back."""
    channel = _declare(connect())
    _publish(channel, "held")
    with fresh.process("-c", FORKER, f"filesystem://{root}", stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        try:
            assert channel.basic_get("q") is None
            parent.kill()
            parent.wait()
            connect()  # sweeps
            assert body(channel.basic_get("q")) == "held"
        finally:
            os.kill(child, signal.SIGKILL)


def test_names_rise_although_the_clock_steps_back(monkeypatch):
    names = [_files.ordered()]
    monkeypatch.setattr(time, "time_ns", lambda: 5)
    names += [_files.ordered() for _ in range(3)]
    assert names == sorted(set(names))
    assert all(_arrivals.MESSAGE_NAME(f"0{name}") for name in names)
    assert all(_arrivals.MESSAGE_NAME(f"9{name}.r") for name in names)


def test_overflow_of_events_loses_nothing(root, connect, monkeypatch):
    """When the kernel dropped events it says so, and the folders are listed again."""
    connection = connect(polling_interval=1000)
    channel = _declare(connection)
    got = []
    channel.basic_consume(queue="q", no_ack=True, callback=got.append, consumer_tag="x")
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0)
    overflow = _arrivals._inotify.flags.Q_OVERFLOW
    monkeypatch.setattr(_arrivals._inotify, "parse_events", lambda _: [(-1, overflow, 0, "")])
    _publish(channel, 1)
    _publish(channel, 2)
    while len(got) < 2:
        connection.drain_events(timeout=60)


def test_without_inotify_instances_left_it_polls(root, connect, monkeypatch):
    def refuse(**_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(_arrivals._inotify, "INotify", refuse)
    connection = connect()
    channel = _declare(connection)
    got = []
    channel.basic_consume(queue="q", no_ack=True, callback=got.append, consumer_tag="x")
    _publish(channel, 1)
    connection.drain_events(timeout=60)
    assert len(got) == 1


def test_polling_takes_no_later_message_before_an_earlier_one(tmp_path, monkeypatch):
    """A listing that misses a name added while it ran, although it shows a later one."""
    early, late = f"9{_files.ordered()}", f"9{_files.ordered()}"
    newest = f"9{_files.ordered()}"
    listings = iter([[late], [late, newest, early]])
    monkeypatch.setattr(_files, "names", lambda path: next(listings))
    view = _arrivals.View("q", str(tmp_path))
    view.list(0.0, twice=True)
    assert [view.pop(), view.pop(), view.pop()] == [early, late, None]


def test_connections_do_not_leak_descriptors(root, connect):
    def opened():
        """What was closed meanwhile may be somebody else's."""
        return descriptors.opened() - before

    for _ in range(3):
        before = descriptors.opened()
        connection = connect()
        channel = _declare(connection)
        channel.basic_consume(queue="q", no_ack=False, callback=print, consumer_tag="x")
        assert opened()
        connection.release()
    before = descriptors.opened()
    connection = connect()
    channel = connection.channel()
    channel.basic_consume(queue="q", no_ack=False, callback=print, consumer_tag="x")
    channel.basic_get("q")
    connection.release()
    assert opened() == set()


def test_without_descriptors_nothing_is_put_aside(root, connect):
    """What cannot be read for want of them may be fine: somebody takes it later."""
    connection = connect()
    channel = _declare(connection)
    for number in range(3):
        _publish(channel, number)
    channel.basic_get("q").ack()  # so that it has all it keeps open
    channel.broker.watch("q")
    assert channel.broker.refresh() == 2
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            channel.broker.take_many([(1, ("q",))])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not (root / "rejected").exists() or os.listdir(root / "rejected") == []
    channel.broker.unwatch("q")
    assert [body(channel.basic_get("q")) for _ in range(2)] == [1, 2]
