"""Upgrades of databases from each earlier revision."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import autogenerate, script
from alembic.runtime.migration import MigrationContext

from tests.support import servers
from wbengine import exceptions, states
from wbengine._sql import dialects
from wbengine.jobs import backends as boards
from wbengine.persistence import backends, models
from wbengine.persistence.backends import sql
from wbengine.persistence.backends.sql import layout, tables
from wbengine.schedules import Schedules

KINDS = ("sqlite", "mysql", "postgresql")


@pytest.fixture(params=KINDS)
def url(
    request: pytest.FixtureRequest, tmp_path: Path, database_servers: servers.Databases
) -> Iterator[str]:
    """URL of an empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/x.db"
    else:
        with database_servers[request.param].database() as made:
            yield made


@pytest.fixture
def backend(url: str) -> Iterator[sql.SQLBackend]:
    with contextlib.closing(backends.fetch(url)) as made:
        assert isinstance(made, sql.SQLBackend)
        yield made


def insert(connection: sa.Connection, table: str, **values: Any) -> None:
    names = ", ".join(values)
    marks = ", ".join(f":{name}" for name in values)
    connection.execute(sa.text(f"INSERT INTO {table} ({names}) VALUES ({marks})"), values)


# Data of each revision in its own layout. Do not change a released revision.


def fill_0010(connection: sa.Connection) -> None:
    fill_limits(connection)
    insert(connection, "wbe_pauses", pattern="shop.*", paused_at=1.5)


def fill_0009(connection: sa.Connection) -> None:
    """Insert data of a revision without pauses."""
    fill_limits(connection)
    connection.execute(sa.text("DROP TABLE wbe_pauses"))


def fill_limits(connection: sa.Connection) -> None:
    fill_signals(connection)
    insert(connection, "wbe_limits", name="l", account="{}")


def fill_0008(connection: sa.Connection) -> None:
    """Insert data of a revision without limits."""
    fill_signals(connection)
    for table in ("wbe_limits", "wbe_pauses"):
        connection.execute(sa.text(f"DROP TABLE {table}"))


def fill_signals(connection: sa.Connection) -> None:
    fill_schedules(connection)
    insert(connection, "wbe_signals", flow_uuid="flow", name="s", value='{"x":1}', at=1.5)


def fill_0007(connection: sa.Connection) -> None:
    """Insert data of a revision without signals."""
    fill_schedules(connection)
    for table in ("wbe_signals", "wbe_limits", "wbe_pauses"):
        connection.execute(sa.text(f"DROP TABLE {table}"))


def fill_schedules(connection: sa.Connection) -> None:
    fill_rows(connection)
    fill_jobs(connection)
    connection.execute(sa.text("UPDATE wbe_jobs SET not_before = 4e9 WHERE uuid = 'later'"))
    insert(
        connection, "wbe_schedules", name="s", definition='{"factory":"f","every":60}',
        next_tick=60, due=61.5,
    )  # fmt: skip


def fill_0006(connection: sa.Connection) -> None:
    """Insert data of a revision without schedules; jobs with a start time have a dummy owner."""
    fill_rows(connection)
    for table in ("wbe_schedules", "wbe_signals", "wbe_limits", "wbe_pauses"):
        connection.execute(sa.text(f"DROP TABLE {table}"))
    on_table = " ON wbe_jobs" if connection.dialect.name == "mysql" else ""
    for index in ("ready", "priority"):
        connection.execute(sa.text(f"DROP INDEX ix_wbe_jobs_{index}{on_table}"))
    connection.execute(
        sa.text("CREATE INDEX ix_wbe_jobs ON wbe_jobs (board, trashed, priority, id)")
    )
    connection.execute(sa.text("ALTER TABLE wbe_jobs DROP COLUMN not_before"))
    fill_jobs(connection)
    connection.execute(
        sa.text("UPDATE wbe_jobs SET owner = '', owner_until = 4e9 WHERE uuid = 'later'")
    )


def fill_0005(connection: sa.Connection) -> None:
    """Insert data of a revision without logs."""
    fill_0006(connection)
    connection.execute(sa.text("DROP TABLE wbe_logs"))


def fill_jobs(connection: sa.Connection) -> None:
    for uuid in ("job", "later"):
        insert(
            connection, "wbe_jobs", uuid=uuid, board="default", name="j", priority=2,
            details='{"store":{"x":1}}', book_uuid="book", book_name="a book", created=1, updated=2,
        )  # fmt: skip


def fill_0004(connection: sa.Connection) -> None:
    """Insert data of a revision without jobs and all later tables."""
    fill_rows(connection)
    tables = ("wbe_jobs", "wbe_schedules", "wbe_logs", "wbe_signals", "wbe_limits", "wbe_pauses")
    for table in tables:
        connection.execute(sa.text(f"DROP TABLE {table}"))


def fill_rows(connection: sa.Connection) -> None:
    insert(
        connection, "wbe_logbooks", uuid="book", name="a book",
        meta='{"a":{"$wbe":"tuple","v":[1]}}', created_at="2026-01-02T03:04:05+00:00",
    )  # fmt: skip
    insert(
        connection, "wbe_flowdetails", uuid="flow", book_uuid="book", name="f", state="RUNNING",
        lease_owner="me", lease_epoch=7, lease_until=1, created=1767323045, birth=5,
    )  # fmt: skip
    insert(
        connection, "wbe_atomdetails", uuid="task", flow_uuid="flow", kind="task", name="Füße 🦊",
        version="1.0", state="SUCCESS", intention="EXECUTE", attempt=3, epoch=2,
        results='{"x":[1]}', changed=3,
        more='{"action":"execute","worker":"w","started":1.5,"ended":2.5}',
    )  # fmt: skip
    insert(
        connection, "wbe_atomdetails", uuid="retry", flow_uuid="flow", kind="retry", name="r",
        state="PENDING", intention="EXECUTE", attempt=1, epoch=0, results='[["one",{}]]',
    )  # fmt: skip
    insert(
        connection, "wbe_atomdetails", uuid="map", flow_uuid="flow", kind="task", name="m",
        state="RUNNING", intention="EXECUTE", attempt=1, epoch=1,
        more='{"items":{"attempt":1,"resumed":0}}',
    )  # fmt: skip
    for number in range(2):
        insert(
            connection, "wbe_itemdetails", atom_uuid="map", attempt=1, item=number,
            state="SUCCESS", value=str(number), results='"done"', more='{"order":1}',
        )  # fmt: skip


def fill_0003(connection: sa.Connection) -> None:
    """Insert data of a revision with columns, an index and triggers that were dropped later."""
    fill_0004(connection)
    for table in ("wbe_logbooks", "wbe_flowdetails", "wbe_atomdetails", "wbe_itemdetails"):
        connection.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN checksum BIGINT"))
    connection.execute(sa.text("ALTER TABLE wbe_flowdetails ADD COLUMN wish_epoch BIGINT"))
    connection.execute(sa.text("CREATE INDEX ix_wbe_flowdetails ON wbe_flowdetails (book_uuid)"))
    on_table = " ON wbe_flowdetails" if connection.dialect.name == "mysql" else ""
    for index in ("book", "state"):
        connection.execute(sa.text(f"DROP INDEX ix_wbe_flowdetails_{index}{on_table}"))
    if connection.dialect.name == "sqlite":
        connection.execute(sa.text("CREATE TABLE wbe_counts (family_uuid TEXT, kept BIGINT)"))
        connection.execute(
            sa.text(
                "CREATE TRIGGER wbe_atomdetails_insert AFTER INSERT ON wbe_atomdetails BEGIN"
                " UPDATE wbe_counts SET kept = kept + 1; END"
            )
        )


FILLED: dict[str, Callable[[sa.Connection], None]] = {
    "0003": fill_0003,
    "0004": fill_0004,
    "0005": fill_0005,
    "0006": fill_0006,
    "0007": fill_0007,
    "0008": fill_0008,
    "0009": fill_0009,
    "0010": fill_0010,
}
#: Creation time of the logbook.
CREATED = 1767323045.0


def check(connection: sql.SQLConnection) -> None:
    """Check that all inserted data is read."""
    (book,) = connection.get_logbooks()
    assert book.name == "a book" and book.meta == {"a": (1,)} and book.created_at is not None
    (flow,) = book
    assert flow.state == states.RUNNING
    atoms = {atom.uuid: atom for atom in flow}
    task, retry = atoms["task"], atoms["retry"]
    assert isinstance(task, models.TaskDetail) and isinstance(retry, models.RetryDetail)
    assert (task.name, task.attempt, task.epoch) == ("Füße 🦊", 3, 2)
    assert task.results == {"x": [1]} and task.worker == "w" and task.ended == 2.5
    assert retry.results == [("one", {})]
    assert flow.epoch == 7
    assert [item.results for item in atoms["map"].items or ()] == ["done", "done"]
    assert flow.created == CREATED
    assert task.past == () and flow.history == ()
    (row,) = connection.list_flows(since=CREATED).flows
    assert (row.uuid, row.created, row.error) == ("flow", CREATED, None)
    assert row.counts["SUCCESS"] == 1
    assert connection.get_outline("flow") is None and connection.commands(["flow"]) == {}
    whole = connection.get_changes("flow")
    assert whole.whole and len(whole.atoms) == len(flow)
    later = connection.get_changes("flow", whole.cursor)
    assert not later.whole and later.atoms == []


# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", layout.REVISIONS)
def test_database_of_each_revision_is_upgraded_with_its_data(
    url: str, backend: sql.SQLBackend, revision: str
) -> None:
    """The upgrade is refused while a flow runs. The upgraded database has the same columns, types,
    keys and indexes as a new one.
    """
    layout.upgrade(backend.engine, revision)
    with backend.engine.begin() as raw:
        FILLED[revision](raw)
    connection = backend.get_connection()
    if revision != layout.HEAD:
        for refused in (connection.validate, lambda: connection.get_logbook("book")):
            with pytest.raises(exceptions.StorageFailure, match=f"{layout.HEAD}, got {revision}"):
                refused()
        # An engine of the earlier version could not write after the upgrade.
        let_lease_end(backend, 60)
        with pytest.raises(
            exceptions.StorageFailure, match=r"^1 flows of this database .*: wait until they end"
        ):
            layout.upgrade(backend.engine)
        assert backend.revision() == revision
        let_lease_end(backend, -1)
    with backends.backend(url) as upgraded:
        assert isinstance(upgraded, sql.SQLBackend)
        assert differences(upgraded) == []
        later = upgraded.get_connection()
        later.validate()
        check(later)
        if revision >= "0005":
            with boards.backend("b", "sql", persistence=upgraded) as board:
                jobs = list(board.iterjobs())
                assert [(job.uuid, job.state) for job in jobs] == [
                    ("job", states.UNCLAIMED),
                    ("later", states.UNCLAIMED),
                ]
                assert [job.uuid for job in board.iterjobs(only_unclaimed=True)] == ["job"]
                with pytest.raises(exceptions.UnclaimableJob, match="is not due"):
                    board.claim(jobs[1], "me")
        assert len(Schedules(upgraded).all()) == (revision >= "0007")
        assert len(later.signals(["flow"])) == (revision >= "0008")
        lease = later.acquire_lease("flow", "you", 60)
        flow = later.get_flow_details("flow")
        more = models.TaskDetail("more")
        cursor = later.get_changes("flow").cursor
        later.save_changes(flow, [*flow, more], lease=lease)
        assert len(later.get_changes("flow", cursor).atoms) == len(flow) + 1
        assert len(later.get_flow_details("flow")) == len(flow) + 1
        later.upgrade()
        assert len(later.get_flow_details("flow")) == len(flow) + 1


def let_lease_end(backend: sql.SQLBackend, seconds: float) -> None:
    """Let the lease of the flow expire in `seconds` seconds."""
    now = dialects.now(backend.options.dialect)
    with backend.engine.begin() as raw:
        raw.execute(sa.text(f"UPDATE wbe_flowdetails SET lease_until = {now} + ({seconds})"))


def test_all_revisions_have_test_data() -> None:
    """The list of revisions does not require alembic."""
    place = Path(layout.__file__).parent / "migrations"
    known = [found.revision for found in script.ScriptDirectory(str(place)).walk_revisions()]
    assert list(reversed(known)) == list(layout.REVISIONS) == list(FILLED)


def differences(backend: sql.SQLBackend) -> list[Any]:
    """Return the differences between the tables and their definitions."""
    with backend.engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": tables.VERSION_TABLE,
                "compare_type": True,
                "compare_server_default": True,
            },
        )
        return list(autogenerate.compare_metadata(context, tables.METADATA))


@pytest.mark.parametrize("kept", [None, "0003"])
def test_interrupted_upgrade_is_completed(
    mariadb_url: str, kept: str | None, database_servers: servers.Databases
) -> None:
    """MySQL cannot roll back layout changes of a process that died."""
    with contextlib.closing(backends.fetch(mariadb_url)) as made:
        assert isinstance(made, sql.SQLBackend)
        layout.upgrade(made.engine)
        with made.engine.begin() as raw:
            FILLED["0009"](raw)
            if kept is None:
                raw.execute(sa.text("DROP TABLE wbe_itemdetails"))
                raw.execute(sa.text("DROP INDEX ix_wbe_flowdetails_created ON wbe_flowdetails"))
                raw.execute(sa.text(f"DELETE FROM {tables.VERSION_TABLE}"))
            else:
                raw.execute(sa.text("DROP INDEX ix_wbe_flowdetails_state ON wbe_flowdetails"))
                raw.execute(sa.text(f"UPDATE {tables.VERSION_TABLE} SET version_num = '{kept}'"))
        connection = made.get_connection()
        connection.upgrade()
        connection.validate()
        assert connection.get_flow_details("flow", lazy=True).epoch == 7
        assert differences(made) == []


def test_tables_of_other_programs_are_unchanged(backend: sql.SQLBackend) -> None:
    with backend.engine.begin() as raw:
        raw.execute(sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
        raw.execute(sa.text("INSERT INTO alembic_version VALUES ('theirs')"))
        raw.execute(sa.text("CREATE TABLE logbooks (uuid VARCHAR(64))"))
    connection = backend.get_connection()
    assert list(connection.get_logbooks()) == []
    connection.save_logbook(models.LogBook("b"))
    assert [book.name for book in connection.get_logbooks()] == ["b"]
    with backend.engine.connect() as raw:
        assert raw.scalar(sa.text("SELECT version_num FROM alembic_version")) == "theirs"
