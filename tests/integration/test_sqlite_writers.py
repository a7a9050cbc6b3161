"""Concurrent writers of one SQLite file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support import python
from tests.support.waiting import MARGIN, until
from wbengine import _sql, exceptions
from wbengine._concurrency import crash_points
from wbengine._sql import writers
from wbengine._sqlite import sqlite_files
from wbengine.persistence import _leases, backends, base, models

#: Program that holds the write lock until it receives a line.
HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("holds", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
"""

#: Program that saves a flow `turns` times and prints the longest duration.
WRITER = """
import json, sys, time
from wbengine.persistence import backends

url, uuid, turns = sys.argv[1], sys.argv[2], int(sys.argv[3])
connection = backends.fetch(url).get_connection()
lease = connection.acquire_lease(uuid, uuid, 600)
flow = connection.get_flow_details(uuid)
print("ready", flush=True)
sys.stdin.readline()
longest = 0.0
for turn in range(turns):
    flow.meta["turn"] = turn
    began = time.monotonic()
    connection.save_changes(flow, [], lease=lease)
    longest = max(longest, time.monotonic() - began)
print(json.dumps(longest), flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flows.db"


@pytest.fixture
def backend(path: Path) -> Iterator[base.Backend]:
    with backends.backend(f"sqlite:///{path}") as made:
        yield made


def leased_flows(
    backend: base.Backend, *uuids: str
) -> list[tuple[models.FlowDetail, _leases.Lease]]:
    """Save flows of one task each, and return them with their leases."""
    book = models.LogBook("book")
    for uuid in uuids:
        flow = models.FlowDetail(uuid, uuid=uuid)
        flow.add(models.TaskDetail("task", uuid=f"{uuid}-task"))
        book.add(flow)
    connection = backend.get_connection()
    connection.save_logbook(book)
    return [
        (connection.get_flow_details(uuid), connection.acquire_lease(uuid, "me", 60))
        for uuid in uuids
    ]


@contextlib.contextmanager
def process(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = ["-c", program, *arguments]
    with python.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as made:
        try:
            assert made.stdout is not None
            made.stdout.readline()
            yield made
        finally:
            made.kill()


def send_line(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_stopped_writer_is_named_within_two_seconds(path: Path, backend: base.Backend) -> None:
    """The error contains the process id of the writer, and a later save succeeds."""
    ((flow, lease),) = leased_flows(backend, "flow")
    flow.meta["turn"] = 1
    connection = backend.get_connection()
    with process(HOLDER, str(path)) as holder:
        os.kill(holder.pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(exceptions.StorageFailure, match=f"{holder.pid} is writing .*flows"):
            connection.save_changes(flow, flow, lease=lease)
        with pytest.raises(exceptions.StorageFailure, match="is stopped"):
            connection.renew_lease(lease, 60)
        assert time.monotonic() - began < 2 * 2.0
    connection.save_changes(flow, flow, lease=lease)
    assert connection.get_flow_details("flow").meta == {"turn": 1}


def test_save_waits_for_writer_in_another_process(path: Path, backend: base.Backend) -> None:
    ((flow, lease),) = leased_flows(backend, "flow")
    flow.meta["turn"] = 1
    with process(HOLDER, str(path)) as holder:
        thread = threading.Thread(
            target=backend.get_connection().save_changes, args=(flow, flow), kwargs={"lease": lease}
        )
        thread.start()
        until(lambda: os.path.exists(f"{path}-queue"), within=2)
        assert backend.get_connection().get_flow_details("flow").meta == {}
        send_line(holder)
        thread.join(10)
        assert backend.get_connection().get_flow_details("flow").meta == {"turn": 1}


def saved_together(
    path: Path,
    backend: base.Backend,
    flows: list[tuple[models.FlowDetail, _leases.Lease]],
    refusal: type[Exception],
) -> tuple[dict[str, str], int]:
    """Save flows in one thread each while another process writes.

    Return the result ('saved' or 'refused') by uuid, and the number of committed transactions.
    """
    told: dict[str, str] = {}
    begun: list[str] = []

    def save(flow: models.FlowDetail, lease: _leases.Lease) -> None:
        flow.meta["saved"] = True
        try:
            backend.get_connection().save_changes(flow, flow, lease=lease)
            told[flow.uuid] = "saved"
        except refusal:
            told[flow.uuid] = "refused"

    with process(HOLDER, str(path)) as holder, crashpoints(begun.append):
        threads = [threading.Thread(target=save, args=each) for each in flows]
        for thread in threads:
            thread.start()
        until(lambda: begun.count("sql.before-save") == len(flows), within=2)
        before = commits(path)
        send_line(holder)
        for thread in threads:
            thread.join(20)
    return told, commits(path) - before


def test_saves_of_waiting_threads_share_one_transaction(path: Path, backend: base.Backend) -> None:
    """A save with a lost lease is refused without affecting the others."""
    uuids = [f"flow-{number}" for number in range(8)]
    flows = leased_flows(backend, *uuids)
    flows[3] = flows[3][0], dataclasses.replace(flows[3][1], epoch=99)
    told, committed = saved_together(path, backend, flows, exceptions.LeaseLost)
    assert told == {uuid: "refused" if uuid == "flow-3" else "saved" for uuid in uuids}
    kept = {uuid: backend.get_connection().get_flow_details(uuid).meta for uuid in uuids}
    assert kept == {uuid: {} if uuid == "flow-3" else {"saved": True} for uuid in uuids}
    assert committed <= 4


def test_failing_save_does_not_fail_saves_in_same_transaction(
    path: Path, backend: base.Backend
) -> None:
    flows = leased_flows(backend, "good", "fine", "well", "bad", "right")
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute(
            "CREATE TRIGGER no_bad BEFORE UPDATE ON wbe_flowdetails WHEN NEW.uuid = 'bad'"
            " AND NEW.meta IS NOT NULL BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        )
    told, _ = saved_together(path, backend, flows, exceptions.StorageFailure)
    assert told == {flow.uuid: "refused" if flow.uuid == "bad" else "saved" for flow, _ in flows}
    kept = {uuid: backend.get_connection().get_flow_details(uuid).meta for uuid in told}
    assert kept == {uuid: {} if uuid == "bad" else {"saved": True} for uuid in told}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_writes_with_its_own_connection(path: Path, backend: base.Backend) -> None:
    """A thread of the parent is about to write, and the fork waits for it."""
    (ours, our_lease), (theirs, their_lease) = leased_flows(backend, "ours", "theirs")
    connection = backend.get_connection()
    ours.meta["turn"], theirs.meta["turn"] = "parent", "child"
    saving = threading.Thread(
        target=connection.save_changes, args=(ours, ours), kwargs={"lease": our_lease}
    )
    with process(HOLDER, str(path)) as holder:
        saving.start()
        until(lambda: os.path.exists(f"{path}-queue"), within=2)
        release = threading.Timer(0.05, send_line, [holder])
        release.start()
        child = os.fork()
        if not child:
            code = 1
            try:
                connection.save_changes(theirs, theirs, lease=their_lease)
                code = 0
            finally:
                os._exit(code)
        release.join()
        try:
            until(lambda: os.waitpid(child, os.WNOHANG) == (child, 0), within=1)
        except ChildProcessError:
            pytest.fail("the child could not write")
        except AssertionError:
            os.kill(child, signal.SIGKILL)
            raise
    saving.join(10)
    kept = {uuid: connection.get_flow_details(uuid).meta for uuid in ("ours", "theirs")}
    assert kept == {"ours": {"turn": "parent"}, "theirs": {"turn": "child"}}
    with contextlib.closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA quick_check").fetchall() == [("ok",)]


@pytest.mark.alone
def test_no_writer_of_many_processes_starves(path: Path, backend: base.Backend) -> None:
    uuids = [f"flow-{number}" for number in range(16)]
    book = models.LogBook("book")
    for uuid in uuids:
        book.add(models.FlowDetail(uuid, uuid=uuid))
    backend.get_connection().save_logbook(book)
    with contextlib.ExitStack() as stack:
        writers = [
            stack.enter_context(process(WRITER, f"sqlite:///{path}", uuid, "100")) for uuid in uuids
        ]
        for writer in writers:
            send_line(writer)
        longest = max(json.loads(writer.communicate()[0]) for writer in writers)
    assert longest < 0.25 * MARGIN
    for uuid in uuids:
        assert backend.get_connection().get_flow_details(uuid).meta == {"turn": 99}


@contextlib.contextmanager
def crashpoints(hook: Callable[[str], None]) -> Iterator[None]:
    crash_points.install(hook)
    try:
        yield
    finally:
        crash_points.install(None)


def commits(path: Path) -> int:
    """Return the number of transactions in the WAL of a database."""
    data = Path(f"{path}-wal").read_bytes()
    size = 24 + int.from_bytes(data[8:12], "big")
    frames = [data[at : at + 24] for at in range(32, len(data), size)]
    return sum(frame[4:8] != bytes(4) and frame[8:16] == data[16:24] for frame in frames)


def test_file_on_a_network_file_system_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file system of this host is declared to be a network file system."""
    kind = sqlite_files.kind_of(str(path), Path("/proc/self/mounts").read_text())
    monkeypatch.setattr(sqlite_files, "NETWORK", frozenset({kind}))
    connection = backends.fetch(f"sqlite:///{path}").get_connection()
    for _ in range(2):
        with pytest.raises(exceptions.StorageFailure, match=f"network file system \\({kind}\\)"):
            connection.upgrade()


@pytest.mark.parametrize("moment", ["statement", "begin"])
def test_interrupted_transaction_does_not_lock_the_file(
    path: Path, backend: base.Backend, moment: str
) -> None:
    """The traceback of the interrupt keeps every object alive, as `sys.last_value` does."""
    leased_flows(backend, "flow")
    engine = _sql.make_engine(_sql.parse(f"sqlite:///{path}"))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def work(connection: sa.Connection) -> None:
        connection.exec_driver_sql("UPDATE wbe_flowdetails SET meta = '{}'")
        sa.event.listen(sa.Engine, "do_execute", interrupt)
        try:
            connection.exec_driver_sql("SELECT 1")
        finally:
            sa.event.remove(sa.Engine, "do_execute", interrupt)

    begin = writers.Writer.begin

    def begin_and_interrupt(writer: writers.Writer, connection: sa.Connection) -> None:
        begin(writer, connection)
        raise KeyboardInterrupt

    with contextlib.ExitStack() as stack:
        if moment == "begin":
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(writers.Writer, "begin", begin_and_interrupt)
        raised = stack.enter_context(pytest.raises(KeyboardInterrupt))
        _sql.transact(engine, "writing", work)
    with contextlib.closing(sqlite3.connect(path, timeout=0.0)) as other, other:
        other.execute("UPDATE wbe_flowdetails SET meta = NULL")
    _sql.transact(engine, "writing", lambda c: c.exec_driver_sql("SELECT 1"))
    _sql.dispose(engine)
    assert raised.value.__traceback__ is not None
