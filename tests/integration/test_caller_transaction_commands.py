"""Signals, cancellations and schedules in transactions of the caller."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.support import callers, conducted
from tests.support.callers import Caller, Place
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states
from wbengine._sql import caller_connections
from wbengine.persistence import backends as stores
from wbengine.schedules import Schedule, Schedules

everywhere = callers.on(*callers.ALL_KINDS)


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
