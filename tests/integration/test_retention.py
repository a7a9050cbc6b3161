"""Deletion of ended flows by `wbengine serve` and `wbengine flow prune`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from tests.support import conducted
from tests.support.killed import is_killed
from tests.support.reading import flow_uuids
from tests.support.waiting import until
from wbengine import engines, exceptions, states, testing
from wbengine.conductors import _retention_service
from wbengine.conductors.service import ConductorService
from wbengine.operations._retention import Retention
from wbengine.persistence import _commands, backends, models
from wbengine.persistence import base as persistence

DAY = 86400.0
PLAIN = "tests.support.conducted:plain"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[persistence.Backend]:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as opened:
        yield opened


def execute(store: persistence.Backend, statement: str) -> Any:
    with cast(Any, store).engine.begin() as connection:
        return connection.execute(sa.text(statement))


def ended(store: persistence.Backend, state: str, days: float = 0.0) -> str:
    """Store a flow that ended some days ago. Return its uuid."""
    book = models.LogBook("b")
    book.meta[models.MADE_BY] = "wbengine"
    flow = models.FlowDetail("f")
    flow.state = state
    flow.add(models.TaskDetail("t"))
    book.add(flow)
    with contextlib.closing(store.get_connection()) as connection:
        connection.save_logbook(book)
    execute(
        store,
        f"UPDATE wbe_flowdetails SET ended = ended - {days * DAY}, updated = updated - {days * DAY}"
        f" WHERE uuid = '{flow.uuid}'",
    )
    return str(flow.uuid)


def kept(store: persistence.Backend) -> set[str]:
    return {*flow_uuids(store)}


def service(
    store: persistence.Backend, owner: str = "a", **settings: Any
) -> _retention_service.RetentionService:
    return _retention_service.RetentionService(store, Retention.parse(settings), owner)


def never(seconds: float) -> bool:
    return False


def test_flows_are_deleted_after_the_time_of_their_state(store: persistence.Backend) -> None:
    ages = {state: {days: ended(store, state, days) for days in (1, 10, 40)} for state in
            (*sorted(states.FLOW_ENDED), states.SUSPENDED, states.RUNNING)}  # fmt: skip
    work = service(store, success="7d", failure="30d")
    work.run_due(never)
    expected = {uuid for by_age in ages.values() for uuid in by_age.values()}
    expected -= {ages["SUCCESS"][10], ages["SUCCESS"][40], ages["FAILURE"][40]}
    assert kept(store) == expected
    assert work.deleted == 3 and work.latest_run is not None


def test_kept_children_are_read_once_and_deleted_after_their_parent(
    store: persistence.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent may have very many children."""
    parent, child, other = (ended(store, states.SUCCESS, days) for days in (8, 9, 10))
    others = [ended(store, states.SUCCESS, 8.5) for _ in range(9)]
    with contextlib.closing(store.get_connection()) as connection:
        for uuid, of in ((child, parent), (other, ended(store, states.FAILURE))):
            detail = connection.get_flow_details(uuid)
            detail.meta[models.PARENT] = {"flow": of}
            book = models.LogBook("b", connection.list_flows(uuid=uuid).flows[0].book_uuid)
            book.add(detail)
            connection.save_logbook(book)
        execute(store, f"UPDATE wbe_flowdetails SET updated = updated - {8 * DAY}")
        calls = list[float]()
        read = type(connection).ended_flows

        def noted(self: Any, before: Any, limit: int, since: float = 0.0) -> Any:
            calls.append(since)
            return read(self, before, limit, since)

        monkeypatch.setattr(type(connection), "ended_flows", noted)
    service(store, success="7d").run_due(never)
    assert not kept(store).intersection([parent, child, *others]) and other in kept(store)
    assert len(calls) > 4 and calls.count(0.0) == 3


def test_flow_that_ran_for_long_is_kept_from_its_end(store: persistence.Backend) -> None:
    uuid = ended(store, states.SUCCESS)
    execute(store, "UPDATE wbe_flowdetails SET created = 1")
    service(store, success="7d").run_due(never)
    assert kept(store) == {uuid}


@pytest.mark.parametrize("settings", [{"success": 1e-6}, {"max_flows": 1}])
def test_flow_that_can_be_undone_is_kept_by_age_and_number(
    store: persistence.Backend, tmp_path: Path, settings: dict[str, Any]
) -> None:
    inputs = {"folder": str(tmp_path), "mark": "x"}
    handles = [
        engines.submit(PLAIN, inputs=inputs, backend=store, undo_until=seconds)
        for seconds in (None, 5 * DAY)
    ]
    testing.run_submitted(store)
    assert [handle.state for handle in handles] == [states.SUCCESS] * 2
    service(store, **settings).run_due(never)
    assert kept(store) == {handles[1].id}
    execute(store, f"UPDATE wbe_flowdetails SET ended = ended - {5 * DAY}")
    execute(store, "DELETE FROM wbe_duties")  # The next run is due.
    service(store, success=1e-6).run_due(never)
    assert kept(store) == set()


def test_oldest_ended_flows_above_the_number_are_deleted(store: persistence.Backend) -> None:
    old = ended(store, states.SUCCESS, 3)
    failed = ended(store, states.FAILURE, 2)
    waits = ended(store, states.SUSPENDED, 9)
    requested = ended(store, states.FAILURE, 9)
    latest = ended(store, states.SUCCESS, 1)
    with contextlib.closing(store.get_connection()) as connection:
        connection.put_command(requested, _commands.FlowCommand(_commands.RETRY))
    service(store, max_flows=3).run_due(never)
    assert kept(store) == {waits, requested, latest}, (old, failed)
    # Unfinished flows count, and are never deleted.
    service(store, "b", max_flows=1)._run(store.get_connection(), never)
    assert kept(store) == {waits, requested}


def test_one_process_at_a_time_deletes_and_the_next_one_continues(
    store: persistence.Backend,
) -> None:
    uuids = [ended(store, states.SUCCESS, 9) for _ in range(5)]
    first, second = service(store, "a", success=60), service(store, "b", success=60)
    waits = []

    def stop(seconds: float) -> bool:
        second.run_due(never)  # The duty belongs to `first`.
        waits.append(kept(store))
        return True

    assert first.run_due(stop) == first.PERIOD_SECONDS
    assert first.deleted == 1 and second.deleted == 0 and len(waits[0]) == 4
    second.run_due(never)  # A process that stops leaves the rest at once.
    assert second.deleted == 4 and kept(store) == set()
    ended(store, states.SUCCESS, 9)
    first.run_due(never)  # The duty is not due again.
    assert first.deleted == 1 and len(kept(store)) == 1 and uuids


@pytest.mark.slow
def test_killed_process_leaves_whole_flows_and_next_one_continues(
    tmp_path: Path,
) -> None:
    """Also without logbooks that contain no flow."""
    url, number = f"sqlite:///{tmp_path}/flows.db", 1

    def delete() -> None:
        with backends.backend(url) as opened:
            service(opened, success=60).run_due(never)

    with backends.backend(url) as store:
        [ended(store, states.SUCCESS, 9) for _ in range(3)]
        keep = ended(store, states.SUCCESS)
    while is_killed(number, delete):
        number += 1
        with backends.backend(url) as store, store.get_connection() as connection:
            left = kept(store)
            assert {atom.name for uuid in left for atom in connection.get_flow_details(uuid)} == {
                "t"
            }
            assert len(list(connection.get_logbooks(lazy=True))) == len(left)
            execute(store, "UPDATE wbe_duties SET until = 0")
    assert number > 3
    with backends.backend(url) as store:
        assert kept(store) == {keep}


def test_key_outlives_a_flow_that_was_deleted_and_prevents_a_second_run(
    store: persistence.Backend, tmp_path: Path
) -> None:
    def submit() -> engines.FlowHandle:
        inputs = {"folder": str(tmp_path), "mark": "x"}
        return engines.submit(PLAIN, backend=store, inputs=inputs, unique="k", unique_for="90d")

    with conducted.running(ConductorService(store)):
        first = submit()
        assert first.wait(60)
    execute(store, f"UPDATE wbe_flowdetails SET ended = 1, updated = 1 WHERE uuid = '{first.id}'")
    service(store, success="7d").run_due(never)
    again = submit()
    assert again.id == first.id and kept(store) == set()
    with pytest.raises(exceptions.FlowDeleted):
        again.result(0)
    assert execute(store, "SELECT COUNT(*) FROM wbe_jobs").scalar() == 0


def test_expired_keys_of_deleted_flows_are_deleted(
    store: persistence.Backend, tmp_path: Path
) -> None:
    inputs = {"folder": str(tmp_path), "mark": "x"}
    engines.submit(PLAIN, backend=store, inputs=inputs, unique="k")
    execute(store, "UPDATE wbe_flowdetails SET state = 'SUCCESS', ended = 1, updated = 1")
    service(store, success="7d").run_due(never)
    assert execute(store, "SELECT COUNT(*) FROM wbe_unique_keys").scalar() == 0


def test_service_deletes_while_flows_run(store: persistence.Backend, tmp_path: Path) -> None:
    old = ended(store, states.SUCCESS, 9)
    gate = conducted.GATES["m"] = threading.Event()
    conducted.BEGUN["m"] = threading.Event()
    inputs = {"folder": str(tmp_path), "mark": "m"}
    handle = engines.submit("tests.support.conducted:gated", backend=store, inputs=inputs)
    with conducted.running(ConductorService(store, retention={"success": 60, "max_flows": 1})):
        until(lambda: old not in kept(store))
        gate.set()
        assert handle.wait(60)
    assert kept(store) == {handle.id}


@pytest.mark.parametrize(
    "settings", [{"success": "7x"}, {"success": 0}, {"max_flows": 0}, {"pending": "7d"}]
)
def test_invalid_retention_is_rejected(
    store: persistence.Backend, settings: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        ConductorService(store, retention=settings)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_selection_reads_the_index_of_ended_flows(kind: str, store: persistence.Backend,
    database_servers: Any) -> None:  # fmt: skip
    """A scan of all flows would cost more with each flow that is kept."""
    with contextlib.ExitStack() as stack:
        if kind == "postgresql":
            url = stack.enter_context(database_servers[kind].database())
            store = stack.enter_context(backends.backend(url))
        statements = cast(Any, store).statements
        text = statements.expired[states.SUCCESS].replace(":SUCCESS", "5.0")
        text = text.replace(":most", "9").replace(":since", "1.0")
        with cast(Any, store).engine.connect() as connection:
            if kind == "postgresql":
                connection.execute(sa.text("SET enable_seqscan = off"))
            explain = "EXPLAIN" if kind == "postgresql" else "EXPLAIN QUERY PLAN"
            plan = " ".join(str(row) for row in connection.execute(sa.text(f"{explain} {text}")))
    assert "ix_wbe_flowdetails_ended" in plan and "Sort" not in plan and "TEMP" not in plan, plan


def test_upgraded_store_deletes_flows_that_ended_before_the_upgrade(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/flows.db"
    with backends.backend(url) as store:
        old, latest = ended(store, states.SUCCESS, 9), ended(store, states.SUCCESS)
        for statement in (
            "DROP INDEX ix_wbe_flowdetails_ended",
            "ALTER TABLE wbe_flowdetails DROP COLUMN ended",
            "DROP TABLE wbe_duties",
            "UPDATE wbe_alembic_version SET version_num = '0003'",
        ):
            execute(store, statement)
    with backends.backend(url) as store:
        assert kept(store) == {old, latest}
        service(store, success="7d").run_due(never)
        assert kept(store) == {latest}
