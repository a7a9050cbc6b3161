"""Stores whose writers are stopped, delayed, or short of disk space."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seams import ledgers, stores, transports
from tests.support import python
from tests.support.waiting import until
from wbengine import exceptions
from wbengine.persistence import base, models

from . import places

#: Larger than a page of any store.
LARGE = 20_000

WRITER = """
import json, os, signal, sys
from wbengine import exceptions
from wbengine._concurrency import crash_points as _crash
from wbengine.persistence import backends

conf, stop = json.loads(sys.argv[1]), int(sys.argv[2])
come = []

def hook(name):
    come.append(name)
    if len(come) == stop:
        os.kill(os.getpid(), signal.SIGSTOP)

with backends.fetch(conf).get_connection() as connection:
    flow = connection.get_flow_details("flow")
    lease = connection.acquire_lease("flow", "me", 60)
    flow.meta["turn"] = 1
    for atom in flow:
        atom.results = 1
    _crash.install(hook)
    try:
        connection.save_changes(flow, flow, lease=lease)
    except (exceptions.LeaseLost, exceptions.StorageFailure) as error:
        told = type(error).__name__
    else:
        told = "saved"
    print(json.dumps([told, len(come)]), flush=True)
"""


def a_store(connection: base.Connection) -> None:
    book = models.LogBook("b", uuid="book")
    for name in ("flow", "other"):
        flow = models.FlowDetail(name, uuid=name)
        flow.add_all([models.TaskDetail(f"{name} {n}", uuid=f"{name}-{n}") for n in range(3)])
        book.add(flow)
    connection.save_logbook(book)


def saved_turn(connection: base.Connection, uuid: str = "flow") -> int:
    """Return the number of the stored save, and check that it is complete."""
    flow = connection.get_flow_details(uuid)
    numbers = {flow.meta.get("turn", 0), *(atom.results or 0 for atom in flow)}
    (number,) = numbers
    return int(number)


def save(connection: base.Connection, turn: int, lease: stores.Lease, uuid: str = "flow") -> None:
    flow = connection.get_flow_details(uuid)
    flow.meta["turn"] = turn
    for atom in flow:
        atom.results = turn
    connection.save_changes(flow, flow, lease=lease)


@contextlib.contextmanager
def writer(conf: stores.Conf, stop: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Run a process that saves turn 1 and stops itself at its `stop`th crash point."""
    arguments = ["-c", WRITER, json.dumps(conf), str(stop)]
    with python.start(arguments, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def result_of(process: subprocess.Popen[str]) -> tuple[str, int]:
    """Return the result of the process and the number of crash points it reached."""
    assert process.stdout is not None
    data, points = json.loads(process.stdout.readline())
    assert process.wait() == 0
    return data, points


def is_stopped(process: subprocess.Popen[str]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@places.durable_dialects
def test_writer_stopped_at_any_point_leaves_no_partial_write(
    conf: stores.Conf, backend: base.Backend, connection: base.Connection
) -> None:
    """Readers see only complete saves at each point where the writer may hold the lock. A new owner
    waits or receives an error, and owns the flow afterwards.
    """
    a_store(connection)
    with writer(conf) as process:
        result, points = result_of(process)
    assert (result, saved_turn(connection)) == ("saved", 1) and points >= 2
    for stop in range(1, points + 1):
        connection.clear_all()
        a_store(connection)
        errors: list[BaseException] = []

        def take_over(errors: list[BaseException] = errors) -> None:
            try:
                with backend.get_connection() as mine:
                    lease = mine.acquire_lease("flow", "you", 60, dead=1)
                    save(mine, 2, lease)
            except BaseException as caught:
                errors.append(caught)

        with writer(conf, stop) as process:
            until(lambda process=process: is_stopped(process))  # type: ignore[misc]
            assert saved_turn(connection) in (0, 1)
            other = threading.Thread(target=take_over)
            other.start()
            for _ in range(20):
                assert saved_turn(connection) in (0, 1, 2)
            process.send_signal(signal.SIGCONT)
            result, _ = result_of(process)
            other.join()
        assert all(isinstance(error, exceptions.StorageFailure) for error in errors), errors
        if not errors:
            assert saved_turn(connection) == 2
        else:
            assert (result, saved_turn(connection)) == ("saved", 1)
        lease = connection.acquire_lease("flow", "later", 60, dead=1 if errors else 2)
        save(connection, 3, lease)
        assert saved_turn(connection) == 3


@places.durable
def test_computing_threads_do_not_delay_writes(connection: base.Connection) -> None:
    """A save takes one second at most."""
    a_store(connection)
    lease = connection.acquire_lease("flow", "me", 60)
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        began = time.monotonic()
        for turn in range(1, 11):
            save(connection, turn, lease)
        took = time.monotonic() - began
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert saved_turn(connection) == 10
    assert took < 10.0


# Full disk: files cannot grow.

FULL = """
import json, os, resource, signal, sys

os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
what, where, room = sys.argv[1], sys.argv[2], int(sys.argv[3])
LARGE = 20_000

def no_room():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

def room_again():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

def store():
    from wbengine.persistence import backends
    connection = backends.fetch(json.loads(where)).get_connection()
    lease = connection.acquire_lease("flow", "me", 60)
    flow = connection.get_flow_details("flow")
    def step(number):
        for atom in flow:
            atom.results = [number] * LARGE
        flow.meta["turn"] = number
        connection.save_changes(flow, flow, lease=lease)
    return step

def ledger():
    from wbengine.engines.worker_based import ledger
    opened = ledger.open_ledger(where)
    def step(number):
        opened.open(f"row-{number}", 1)
        assert opened.claim(f"row-{number}", 1, "w").granted or number
        assert opened.finish(f"row-{number}", 1, "w", bytes([number]) * LARGE)
    return step

def broker():
    from tests.seams import transports
    channel = transports.connection(where).channel()
    transports.declare(channel, "q", "k")
    def step(number):
        channel.publish(bytes([number]) * LARGE * number)
    return step

step = {"store": store, "ledger": ledger, "broker": broker}[what]()
step(1)
no_room()
done, error = 1, None
while error is None and done < 100:
    try:
        step(done + 1)
    except Exception as caught:
        error = [type(caught).__name__, str(caught)]
    else:
        done += 1
room_again()
step(done + 2)
print(json.dumps([done, error]))
"""


def fill(what: str, where: str, room: int) -> tuple[int, tuple[str, str]]:
    """Run a program until the disk is full, and one more step after space is free.

    Return the number of the last successful step, and the type and text of the error.
    """
    arguments = ["-c", FULL, what, where, str(room)]
    completed = python.run(arguments, check=False, capture_output=True, text=True)
    assert not completed.returncode, completed.stderr
    done, error = json.loads(completed.stdout)
    assert error is not None, "there was always room"
    return done, tuple(error)


@places.on("sqlite")
def test_full_disk_raises_storage_failure_and_store_loses_nothing(
    conf: stores.Conf, connection: base.Connection
) -> None:
    a_store(connection)
    done, (error, text) = fill("store", json.dumps(conf), 600_000)
    assert error == "StorageFailure" and len(text) > 20
    flow = connection.get_flow_details("flow")
    assert flow.meta["turn"] == done + 2
    assert all(atom.results == [done + 2] * LARGE for atom in flow)


@pytest.mark.parametrize("kind", ["dir", "sqlite"])
def test_full_disk_raises_ledger_failure_and_ledger_loses_nothing(
    kind: str, tmp_path: Path
) -> None:
    place = ledgers.place(kind, tmp_path)
    with contextlib.closing(ledgers.open_ledger(place)):
        pass
    done, (error, text) = fill("ledger", place, 15_000 if kind == "dir" else 300_000)
    assert error == "LedgerFailure" and len(text) > 20
    with contextlib.closing(ledgers.open_ledger(place)) as ledger:
        for number in [*range(1, done + 1), done + 2]:
            row = ledger.state(f"row-{number}")
            assert row is not None
            assert (row.state, row.result) == ("done", bytes([number]) * LARGE)
        torn = ledger.state(f"row-{done + 1}")
        assert torn is None or torn.state in ("open", "claimed")
        ledger.drop_many([f"row-{number}" for number in range(done + 3)])
        assert ledger.ids() == set()


def test_full_disk_raises_transport_failure_and_broker_loses_nothing(tmp_path: Path) -> None:
    site = transports.Site("filesystem", tmp_path)
    done, (error, text) = fill("broker", site.url, 4 * LARGE)
    assert error == "TransportFailure" and len(text) > 20
    channel = site.connect().channel()
    bodies = []
    while (message := channel.get("q", no_ack=True)) is not None:
        number = message.body[0]
        assert message.body == bytes([number]) * LARGE * number
        bodies.append(number)
    site.close()
    assert bodies == [*range(1, done + 1), done + 2] and not site.folder.rejected
