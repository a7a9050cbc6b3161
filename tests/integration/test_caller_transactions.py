"""Submissions in transactions of the caller."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from django.db import transaction
from sqlalchemy import orm

from tests.support import callers, conducted, killed_callers, parking
from tests.support.amounts import amount
from tests.support.callers import Caller, Place
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states
from wbengine._sql import caller_connections, local_wakeups
from wbengine.jobs import backends as boards
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import backends as stores
from wbengine.schedules import Schedule, Schedules

GREETING = "tests.support.conducted:greeting"


everywhere = callers.on(*callers.ALL_KINDS)
drivers = callers.on("sqlite driver", "postgresql driver")


@everywhere
def test_flow_and_job_exist_after_the_commit_only(place: Place, caller: Caller) -> None:
    caller.add("one")
    handle = place.submit(caller.connection, eta=3600)
    assert place.flows() == place.jobs() == set()
    caller.commit()
    assert place.flows() == place.jobs() == {handle.id}
    assert caller.orders() == ["one"] and handle.state == states.PENDING


@everywhere
def test_rollback_removes_flow_and_job(place: Place, caller: Caller) -> None:
    caller.add("one")
    handles = engines.submit_many(
        GREETING, [{"name": "Ada"}] * 3, backend=place.store, connection=caller.connection
    )
    caller.rollback()
    assert place.flows() == place.jobs() == set() and caller.orders() == []
    for handle in handles:
        with pytest.raises(exceptions.FlowNotCommitted):
            handle.wait(0)


@everywhere
def test_conductor_runs_the_committed_flow(place: Place, caller: Caller) -> None:
    with conducted.conducting(place.store):
        handle = place.submit(caller.connection)
        caller.commit()
        assert handle.result(60)["greeting"] == "hello Ada"


@everywhere
def test_submission_may_begin_the_transaction(place: Place, caller: Caller) -> None:
    place.submit(caller.connection)
    caller.rollback()
    assert place.flows() == set()


@callers.on("postgresql session", "sqlite session")
def test_handle_before_the_commit_raises_an_error(place: Place, caller: Caller) -> None:
    handle = place.submit(caller.connection)
    calls: list[Any] = [
        lambda: handle.state,
        lambda: handle.wait(0),
        lambda: handle.result(0),
        handle.cancel,
        lambda: handle.signal("paid"),
        handle.published,
    ]
    for call in calls:
        with pytest.raises(exceptions.FlowNotCommitted, match="not committed yet or was rolled"):
            call()
    caller.commit()
    assert handle.wait(0) is False and handle.cancel()
    with contextlib.closing(place.store.get_connection()) as connection:
        connection.destroy_flow(handle.id)
    with pytest.raises(exceptions.FlowDeleted):
        handle.wait(0)


@drivers
def test_connection_of_the_driver_stays_as_it_was(place: Place, caller: Caller) -> None:
    driver = caller.connection
    before = {name: getattr(driver, name, None) for name in ("row_factory", "isolation_level")}
    place.submit(driver)
    driver.commit()
    assert {name: getattr(driver, name, None) for name in before} == before
    assert driver.execute("SELECT 1 AS one").fetchone() in ({"one": 1}, {0: 1})


@callers.on("postgresql session", "sqlite session")
def test_changes_of_a_session_are_kept(place: Place, caller: Caller) -> None:
    session: orm.Session = caller.connection
    scoped: Any = orm.scoped_session(cast(Any, lambda: session))
    for connection in (session, scoped, session.connection()):
        caller.add("x")
        place.submit(connection)
    caller.commit()
    assert len(place.flows()) == 3 and caller.orders() == ["x"] * 3


@callers.on("sqlite driver")
def test_writing_caller_blocks_other_writers_of_a_file(place: Place, caller: Caller) -> None:
    place.submit(caller.connection)
    with (
        contextlib.closing(sqlite3.connect(place.url.removeprefix("sqlite:///"))) as other,
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        other.execute("PRAGMA busy_timeout = 0")
        other.execute("BEGIN IMMEDIATE")
    caller.commit()


@callers.on("postgresql driver")
def test_commit_wakes_conductors(
    place: Place, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken = threading.Event()
    with boards.backend("b", "sql", persistence=place.store) as board, board.waking(woken.set):
        assert woken.wait(30)
        woken.clear()
        place.submit(caller.connection)
        time.sleep(0.5)
        assert not woken.is_set()
        caller.commit()
        assert woken.wait(30)


#: Kinds of transactions with a hook after the commit.
hooked = callers.on("sqlite session", "mysql session", "sqlite django", "postgresql django")


@pytest.fixture
def wakes(place: Place) -> Iterator[list[str]]:
    """A list that contains an item for each wake-up of the conductors of this process."""
    calls: list[str] = []
    wakeups, url = local_wakeups.of_process(), place.store.options.url
    with wakeups.adding(url, lambda: calls.append("wake")):
        yield calls


@contextlib.contextmanager
def transaction_of(caller: Caller, *, is_nested: bool = False) -> Iterator[None]:
    """Commit at the end of the block, or roll back if it raises an error."""
    connection = caller.connection
    if isinstance(connection, orm.Session):
        with connection.begin_nested() if is_nested else connection.begin():
            yield
    else:
        if not connection.in_atomic_block:
            connection.set_autocommit(True)
        with transaction.atomic(using=callers.ALIAS):
            yield


@contextlib.contextmanager
def rolled_back() -> Iterator[None]:
    with pytest.raises(ZeroDivisionError):
        yield


@hooked
def test_commit_of_a_submission_wakes_conductors_of_the_process(
    place: Place, caller: Caller, wakes: list[str]
) -> None:
    with transaction_of(caller):
        handle = place.submit(caller.connection, eta=3600)
        assert wakes == []
    assert wakes == ["wake"]
    with transaction_of(caller):
        handle.cancel(connection=caller.connection)
        assert wakes == ["wake"]
    assert wakes == ["wake"] * 2
    with transaction_of(caller):
        caller.add("one")
    assert wakes == ["wake"] * 2, "nothing was submitted"


@hooked
def test_rollback_of_a_submission_wakes_nothing_later(
    place: Place, caller: Caller, wakes: list[str]
) -> None:
    for _ in range(3):
        with rolled_back(), transaction_of(caller):
            place.submit(caller.connection)
            raise ZeroDivisionError
    with transaction_of(caller):
        caller.add("one")
        with rolled_back(), transaction_of(caller, is_nested=True):
            with transaction_of(caller, is_nested=True):
                place.submit(caller.connection)
            raise ZeroDivisionError
    assert wakes == [] and caller.orders() == ["one"]


@hooked
def test_end_of_a_savepoint_wakes_nothing_before_the_commit(
    place: Place, caller: Caller, wakes: list[str]
) -> None:
    with transaction_of(caller):
        with transaction_of(caller, is_nested=True):
            place.submit(caller.connection)
        assert wakes == []
    assert wakes == ["wake"]


@callers.on("sqlite session")
def test_closed_session_wakes_nothing_later(place: Place, caller: Caller, wakes: list[str]) -> None:
    place.submit(caller.connection)
    caller.connection.close()
    caller.add("one")
    caller.commit()
    assert wakes == []


@callers.on("sqlite connection", "postgresql connection", "mysql connection")
@pytest.mark.parametrize(
    ("mode", "is_committed"),
    [
        ("create_savepoint", False),
        ("rollback_only", False),
        ("conditional_savepoint", False),
        ("control_fully", True),
    ],
)
def test_session_wakes_conductors_only_if_it_ends_the_transaction(
    place: Place, caller: Caller, wakes: list[str], mode: Any, *, is_committed: bool
) -> None:
    caller.add("one")
    with orm.Session(caller.connection, join_transaction_mode=mode) as session:
        with session.begin_nested():
            handle = place.submit(session, eta=3600)
        session.commit()
        assert wakes == ["wake"] * is_committed
    if not is_committed:
        assert place.flows() == set()
        caller.rollback()
    assert place.flows() == ({handle.id} if is_committed else set())
    assert wakes == ["wake"] * is_committed


@callers.on("postgresql connection")
def test_commit_behind_a_session_in_a_savepoint_starts_the_flow(
    place: Place, caller: Caller
) -> None:
    with conducted.conducting(place.store):
        caller.add("one")
        with orm.Session(caller.connection, join_transaction_mode="create_savepoint") as session:
            handle = place.submit(session)
            session.commit()
            with pytest.raises(exceptions.FlowNotCommitted):
                handle.wait(0)
        caller.commit()
        assert handle.wait(60)


@callers.on("postgresql driver", "sqlite driver")
def test_one_commit_starts_flows_on_several_conductors_that_do_not_poll(
    place: Place, caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database reports equal notifications of a transaction once."""
    monkeypatch.setattr(impl_sql.SQLJobBoard, "POLL_SECONDS", 3600.0)
    monkeypatch.setattr(impl_sql, "_WATCHED_POLL_SECONDS", 3600.0)
    marks = ("one", "two")
    conducted.GATES.update({mark: threading.Event() for mark in marks})
    conducted.BEGUN.update({mark: threading.Event() for mark in marks})
    with parking.conducting(place.store, 1), parking.conducting(place.store, 1):
        handles = [
            engines.submit(
                conducted.gated, backend=place.store, connection=caller.connection,
                inputs={"folder": str(tmp_path), "mark": mark},
            )
            for mark in marks
        ]  # fmt: skip
        caller.commit()
        assert all(conducted.BEGUN[mark].wait(60) for mark in marks)
        for mark in marks:
            conducted.GATES[mark].set()
        assert all(handle.wait(60) for handle in handles)


@callers.on("sqlite django", "postgresql django")
def test_error_of_another_hook_after_the_commit_does_not_lose_the_flow(
    place: Place, caller: Caller
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with conducted.conducting(place.store):
        with rolled_back(), transaction_of(caller):
            caller.connection.on_commit(fail)
            handle = place.submit(caller.connection)
        assert handle.wait(60)


@callers.on("mysql session")
def test_conductor_that_never_polls_runs_the_committed_flow(
    place: Place, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(impl_sql.SQLJobBoard, "POLL_SECONDS", 3600.0)
    with conducted.conducting(place.store):
        for _ in range(3):
            handle = engines.submit(GREETING, backend=place.store, inputs={"name": "Bob"})
            assert handle.wait(30)
            handle = place.submit(caller.connection)
            caller.commit()
            assert handle.wait(30)


# Signals, cancellations and schedules in transactions of the caller.


def signals_of(place: Place, uuid: str) -> list[Any]:
    with contextlib.closing(place.store.get_connection()) as connection:
        return [signal.name for signal in connection.signals([uuid]).get(uuid, ())]


def is_cancelled(place: Place, uuid: str) -> bool:
    with contextlib.closing(place.store.get_connection()) as connection:
        return uuid in connection.commands([uuid])


@everywhere
def test_signal_and_cancellation_exist_after_the_commit_only(place: Place, caller: Caller) -> None:
    handles = [place.submit(None, eta=3600) for _ in range(4)]
    for commits in (False, True):
        caller.add("x")
        assert handles[0].signal("paid", 5, connection=caller.connection) == 1
        assert handles[1].cancel("why", connection=caller.connection)
        ids = [handle.id for handle in handles]
        operations.signal(place.store, ids[2], "paid", connection=caller.connection)
        operations.cancel(place.store, ids[3], connection=caller.connection)
        assert [signals_of(place, uuid) for uuid in ids] == [[]] * 4
        assert not any(is_cancelled(place, uuid) for uuid in ids)
        (caller.commit if commits else caller.rollback)()
    assert caller.orders() == ["x"]
    assert [signals_of(place, uuid) for uuid in ids] == [["paid"], [], ["paid"], []]
    assert [is_cancelled(place, uuid) for uuid in ids] == [False, True, False, True]


@everywhere
def test_flow_of_the_same_transaction_is_signalled_and_cancelled(
    place: Place, caller: Caller
) -> None:
    signalled, cancelled = (place.submit(caller.connection) for _ in range(2))
    signalled.signal("paid", connection=caller.connection)
    cancelled.cancel(connection=caller.connection)
    with pytest.raises(exceptions.FlowNotCommitted):
        signalled.signal("paid")
    caller.commit()
    assert signals_of(place, signalled.id) == ["paid"] and is_cancelled(place, cancelled.id)
    with conducted.conducting(place.store), pytest.raises(exceptions.Cancelled):
        cancelled.result(60)


@callers.on("postgresql driver", "sqlite driver")
def test_errors_of_commands_leave_the_transaction_usable(place: Place, caller: Caller) -> None:
    with conducted.conducting(place.store):
        ended = place.submit(None)
        assert ended.wait(60)
    caller.add("x")
    assert ended.cancel(connection=caller.connection) is False
    with pytest.raises(exceptions.InvalidState):
        operations.cancel(place.store, ended.id, connection=caller.connection)
    with pytest.raises(exceptions.NotFound, match="has no task that waits"):
        ended.signal("paid", connection=caller.connection)
    with pytest.raises(exceptions.NotFound):
        operations.signal(place.store, "unknown", "paid", connection=caller.connection)
    with pytest.raises(ValueError, match="does not allow wait="):
        operations.cancel(place.store, ended.id, wait=1, connection=caller.connection)
    caller.commit()
    assert caller.orders() == ["x"] and ended.state == states.SUCCESS


@callers.on("postgresql driver")
def test_wait_for_the_row_of_a_flow_is_limited(
    place: Place, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_connections, "LOCK_TIMEOUT_SECONDS", 1)
    handle = place.submit(None, eta=3600)
    caller.add("x")
    with callers.opened("driver", place.url) as other:
        handle.cancel(connection=other)
        with pytest.raises(exceptions.StorageFailure, match=r"Cancelling a flow failed: .*timeout"):
            handle.cancel(connection=caller.connection)
        other.rollback()
    caller.commit()
    assert caller.orders() == ["x"] and not is_cancelled(place, handle.id)


@callers.on("postgresql driver", "sqlite session")
def test_parked_flow_continues_after_the_commit(place: Place, caller: Caller) -> None:
    handle = engines.submit("tests.support.signalled:flow", backend=place.store)
    with conducted.conducting(place.store):
        until(lambda: handle.state == states.WAITING)
        handle.signal("approved", 7, connection=caller.connection)
        assert not handle.wait(0.5) and handle.state == states.WAITING
        caller.commit()
        assert handle.result(60)["found"] == 7


@everywhere
def test_schedule_exists_after_the_commit_only(place: Place, caller: Caller) -> None:
    schedules = Schedules(place.store)
    new = Schedule(name="nightly", factory=callers.GREETING, every=3600, inputs={"name": "Ada"})
    for commits in (False, True):
        entry = schedules.add(new, connection=caller.connection)
        assert (entry.name, entry.schedule) == ("nightly", new) and schedules.all() == []
        (caller.commit if commits else caller.rollback)()
    assert schedules.get("nightly") == entry
    caller.add("x")
    with pytest.raises(exceptions.Duplicate):
        schedules.add(new, connection=caller.connection)
    caller.commit()
    assert caller.orders() == ["x"]


def test_connection_requires_a_store_in_a_database(tmp_path: Path) -> None:
    with stores.backend("memory") as store:
        with pytest.raises(ValueError, match="connection= requires a store in a database"):
            operations.signal(store, "x", "paid", connection=object())
        with pytest.raises(ValueError, match="connection= requires a store in a database"):
            operations.cancel(store, "x", connection=object())


# Transactions with submissions in processes that are killed.


def test_flows_exist_exactly_if_their_transactions_were_committed(uri: str) -> None:
    submissions = amount(240, 1000)
    counts = killed_callers.run(uri, submissions=submissions, kills=4)
    assert counts.pop("transactions") >= submissions
    assert submissions / 2 < counts.pop("commits") < 0.95 * submissions
    assert set(counts.values()) == {0}, counts
