"""Copies of schedules, jobs, unique keys, pauses and versions of code between SQL stores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.operations import flows
from tests.support import key_files
from wbengine import engines, exceptions, operations
from wbengine.jobs import backends as boards
from wbengine.operations import _bulk
from wbengine.persistence import backends
from wbengine.persistence._access_keys import AccessKey
from wbengine.persistence._bulk_records import BulkFlow
from wbengine.persistence.backends import _sql
from wbengine.persistence.backends._sql import copying
from wbengine.schedules import Schedule, Schedules

FACTORY = "tests.operations.flows:steps"
KEY = {"unique": "order-17", "unique_for": "forever"}


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Any]:
    with backends.backend(f"dir://{tmp_path}/old") as backend:
        yield backend


@pytest.fixture
def new_file(tmp_path: Path) -> Iterator[Any]:
    with backends.backend(f"sqlite:///{tmp_path}/new.db") as backend:
        yield backend


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def new(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/new.db"
        if request.param != "sqlite":
            servers = request.getfixturevalue("database_servers")
            url = stack.enter_context(servers[request.param].database())
        yield stack.enter_context(backends.backend(url))


def rows(backend: _sql.SQLBackend, name: str) -> list[dict[str, Any]]:
    with backend.engine.begin() as connection:
        found = connection.execute(sa.text(f"SELECT * FROM {name} ORDER BY 1")).mappings()
        return [{key: value for key, value in row.items() if key != "id"} for row in found]


def test_rows_that_belong_to_no_flow_are_copied_once(
    old: Any, new: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_ROWS_PER_TRANSACTION", 2)
    first = engines.submit(FACTORY, backend=old, **KEY)
    engines.submit_many(FACTORY, [None] * 4, backend=old, eta=3600.0, priority="HIGH")
    for name in ("a", "b", "c", "d", "e"):
        Schedules(old).add(Schedule(name=name, factory=FACTORY, every=60))
    Schedules(old).pause("c")
    operations.pause_tasks(old, "shop.*", reason="closed")
    with contextlib.closing(old.get_connection()) as connection:
        connection.add_codes("v43", ["shop"], ["v42"])
        for key_id in ("a", "b", "c"):
            key = AccessKey(key_id, "digest", "ci", "viewer", {"team": "x"}, 1.0, revoked=2.0)
            connection.add_access_key(key)
    with boards.backend("b", "sql", persistence=old) as board:
        board.claim(board.find(first.id), "a conductor that ended")

    for _ in range(2):
        assert len(list(operations.move(old, new))) == 5
        tables = ("wbe_schedules", "wbe_unique_keys", "wbe_pauses", "wbe_codes", "wbe_access_keys")
        for table in tables:
            assert rows(new, table) == rows(old, table) != [], table
        jobs = [{**row, "owner": None, "owner_until": None} for row in rows(old, "wbe_jobs")]
        assert rows(new, "wbe_jobs") == jobs and len(jobs) == 5
    assert engines.submit(FACTORY, backend=new, **KEY).id == first.id
    with pytest.raises(exceptions.UniqueKeyConflict):
        engines.submit(FACTORY, inputs={"amount": 2}, backend=new, **KEY)
    assert [entry.paused for entry in Schedules(new).all()] == [False, False, True, False, False]


def test_pending_requests_are_copied_with_their_jobs(old: Any, new_file: Any) -> None:
    flows.FAILING.add("b")
    failed, waiting = (engines.submit(FACTORY, backend=old).id for _ in range(2))
    with old.get_connection() as connection:
        engine = engines.load_from_detail(engines.read_flow_detail(connection, failed), backend=old)
    with pytest.raises(ValueError, match="b fails"):
        engine.run()
    operations.request(old, failed, "retry", reason="mended", by="Ann")
    operations.suspend(old, waiting)
    for _ in range(2):
        list(operations.move(old, new_file))
    with old.get_connection() as before, new_file.get_connection() as after:
        commands = after.commands([failed, waiting])
        assert commands == before.commands([failed, waiting])
        assert {uuid: command.what for uuid, command in commands.items()} == {
            failed: "retry",
            waiting: "suspend",
        }
    copies, jobs = (
        [{**row, "claims": 0} for row in rows(each, "wbe_jobs")] for each in (new_file, old)
    )
    assert copies == jobs and len(jobs) == 2


def test_store_with_a_command_that_came_too_late_is_moved(old: Any, new_file: Any) -> None:
    """The engine died between the end of the flow and the deletion of the command."""
    uuid = engines.submit(FACTORY, backend=old).id
    late = """UPDATE wbe_flowdetails SET state = 'SUCCESS', wish = '{"what": "resume"}'"""
    with old.engine.begin() as connection:
        connection.execute(sa.text(late))
    list(operations.move(old, new_file))
    with old.get_connection() as before, new_file.get_connection() as after:
        assert before.commands([uuid])[uuid].what == "resume" and after.commands([uuid]) == {}
        assert after.get_flow_details(uuid).state == "SUCCESS"


def test_copies_are_encrypted_with_the_current_key(
    old: Any, new_file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {"name": "Ann Smith"}
    Schedules(old).add(Schedule(name="a", factory=FACTORY, every=60, inputs=inputs))
    uuid = engines.submit(FACTORY, backend=old).id
    bulk = _bulk.start(old, "flow cancel", [BulkFlow(uuid, "PENDING")], {"reason": "Ann Smith"})
    key_files.in_use(tmp_path / "keys.json", monkeypatch, encrypt=True)
    list(operations.move(old, new_file))
    assert b"Ann Smith" not in b"".join(path.read_bytes() for path in tmp_path.glob("new.db*"))
    assert Schedules(new_file).get("a").schedule.inputs == inputs
    with new_file.get_connection() as connection:
        assert connection.bulks.get(bulk.uuid).arguments == {"reason": "Ann Smith"}


def test_row_with_a_missing_key_is_named(
    old: Any, new_file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_files.in_use(tmp_path / "keys.json", monkeypatch, encrypt=True)
    Schedules(old).add(Schedule(name="a", factory=FACTORY, every=60, inputs={"name": "Ann"}))
    key_files.in_use(tmp_path / "others.json", monkeypatch, encrypt=True)
    with pytest.raises(exceptions.NotTrusted, match="wbe_schedules/a: it is encrypted with key"):
        list(operations.move(old, new_file))
