"""Layouts of databases: creation, upgrade, and use by other releases."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import autogenerate, script
from alembic.runtime.migration import MigrationContext

import wbengine
from tests.support.later_layout import LATER, later_release
from wbengine import engines, exceptions, states, task
from wbengine.jobs import backends as boards
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, models
from wbengine.persistence.backends import _sql
from wbengine.persistence.backends._sql import schema_revisions, tables
from wbengine.schedules import Schedule, Schedules

#: Statements that create the tables of release 0.1.0 in SQLite.
RELEASE_0_1 = Path(__file__).parent.parent / "support" / "release_0_1.sql"

#: Revision of this release, also while a test is a later one.
CURRENT = schema_revisions.HEAD


@pytest.fixture
def url(sql_uri: str) -> str:
    """URL of an empty database of each kind."""
    return sql_uri


@pytest.fixture
def backend(url: str) -> Iterator[_sql.SQLBackend]:
    with contextlib.closing(backends.fetch(url)) as made:
        assert isinstance(made, _sql.SQLBackend)
        yield made


def differences(backend: _sql.SQLBackend) -> list[Any]:
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


def execute(backend: _sql.SQLBackend, *statements: str) -> None:
    with backend.engine.begin() as raw:
        for statement in statements:
            raw.execute(sa.text(statement))


class Call(task.Task):
    """Task that calls a function."""

    def __init__(self, name: str, function: Any = lambda: None) -> None:
        super().__init__(name)
        self._function = function

    def execute(self) -> None:
        self._function()


# Revisions.


def test_known_revisions_are_those_of_the_migrations() -> None:
    """The mapping of revisions does not require alembic."""
    place = Path(schema_revisions.__file__).parent / "migrations"
    known = [found.revision for found in script.ScriptDirectory(str(place)).walk_revisions()]
    assert list(reversed(known)) == list(schema_revisions.REVISIONS)


def test_oldest_of_each_revision_is_known_and_never_decreases() -> None:
    known = list(schema_revisions.REVISIONS)
    numbers = [known.index(oldest) for oldest in schema_revisions.REVISIONS.values()]
    assert numbers == sorted(numbers)
    assert all(number <= at for at, number in enumerate(numbers))


def test_new_database_has_the_defined_tables(backend: _sql.SQLBackend) -> None:
    assert backend.stored_layout() is None
    backend.upgrade()
    assert differences(backend) == []
    assert backend.stored_layout() == (
        schema_revisions.HEAD,
        schema_revisions.REVISIONS[schema_revisions.HEAD],
    )


def test_database_of_release_0_1_gets_the_defined_tables(tmp_path: Path) -> None:
    path = tmp_path / "flows.db"
    with contextlib.closing(sqlite3.connect(path)) as raw:
        raw.executescript(RELEASE_0_1.read_text())
    with contextlib.closing(backends.fetch(f"sqlite:///{path}")) as made:
        assert isinstance(made, _sql.SQLBackend)
        assert made.stored_layout() == ("0001", "0001")
        made.upgrade()
        assert differences(made) == []


def test_unique_keys_of_unfinished_flows_of_release_0_1_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "flows.db"
    books = [("running", "one", "one"), ("suspended", "two", "two"), ("ended", "three", "three")]
    flows = [("one", None), ("two", states.SUSPENDED), ("three", states.SUCCESS)]
    with contextlib.closing(sqlite3.connect(path)) as raw:
        raw.executescript(RELEASE_0_1.read_text())
        for name, uuid, flow in [*books, ("plain", "four", None)]:
            meta = '{"made_by":"wbengine"}' if flow is None else f'{{"unique":"{flow}"}}'
            raw.execute(
                "INSERT INTO wbe_logbooks (name, uuid, meta) VALUES (?, ?, ?)", (name, uuid, meta)
            )
        for uuid, state in [*flows, ("four", None)]:
            raw.execute(
                "INSERT INTO wbe_flowdetails (uuid, book_uuid, name, state) VALUES (?, ?, 'f', ?)",
                (uuid, uuid, state),
            )
        raw.commit()
    with contextlib.closing(backends.fetch(f"sqlite:///{path}")) as made:
        assert isinstance(made, _sql.SQLBackend)
        made.upgrade()
        for lifetime in (None, "1h"):
            options: dict[str, Any] = {"backend": made, "unique_for": lifetime}
            for key, owner in (("running", "one"), ("suspended", "two")):
                handle = engines.submit(f"{__name__}:one_call", unique=key, **options)
                assert handle.id == owner
        assert engines.submit(f"{__name__}:one_call", unique="ended", backend=made).id != "three"
        assert engines.submit(f"{__name__}:one_call", unique="plain", backend=made).id != "four"


def one_call() -> linear_flow.Flow:
    return linear_flow.Flow("one call").add(Call("call"))


def test_tables_of_other_programs_are_unchanged(backend: _sql.SQLBackend) -> None:
    execute(
        backend,
        "CREATE TABLE alembic_version (version_num VARCHAR(32))",
        "INSERT INTO alembic_version VALUES ('theirs')",
        "CREATE TABLE logbooks (uuid VARCHAR(64))",
    )
    connection = backend.get_connection()
    assert list(connection.get_logbooks()) == []
    connection.save_logbook(models.LogBook("b"))
    assert [book.name for book in connection.get_logbooks()] == ["b"]
    with backend.engine.connect() as raw:
        assert raw.scalar(sa.text("SELECT version_num FROM alembic_version")) == "theirs"


def test_interrupted_creation_is_completed(mariadb_url: str) -> None:
    """MySQL cannot roll back the tables of a process that died."""
    with contextlib.closing(backends.fetch(mariadb_url)) as made:
        assert isinstance(made, _sql.SQLBackend)
        made.upgrade()
        execute(
            made,
            "DROP TABLE wbe_itemdetails",
            "DROP INDEX ix_wbe_flowdetails_created ON wbe_flowdetails",
            f"DELETE FROM {tables.VERSION_TABLE}",
        )
        made.upgrade()
        made.get_connection().validate()
        assert differences(made) == []


def test_release_0_1_can_read_the_history_of_a_flow(tmp_path: Path) -> None:
    """It reads the state, the time and the reason of each change, and refuses records with more."""

    def fail() -> None:
        raise LookupError("gone")

    with contextlib.closing(backends.fetch(f"sqlite:///{tmp_path}/flows.db")) as made:
        assert isinstance(made, _sql.SQLBackend)
        with pytest.raises(LookupError):
            engines.run(linear_flow.Flow("f").add(Call("call", fail)), backend=made)
        with made.engine.connect() as raw:
            fields = json.loads(raw.scalar(sa.text("SELECT more FROM wbe_flowdetails")) or "{}")
    changes = fields["history"]
    assert [change[0] for change in changes][-1] == states.REVERTED
    assert {len(change) for change in changes} == {3}


#: Command to cancel a flow, as release 0.1 stores it.
CANCEL_OF_RELEASE_0_1 = '{"what":"cancel","reason":"enough","by":"me","at":12.5,"epoch":0}'


def test_engine_carries_out_a_command_of_release_0_1(tmp_path: Path) -> None:
    with contextlib.closing(backends.fetch(f"sqlite:///{tmp_path}/flows.db")) as made:
        assert isinstance(made, _sql.SQLBackend)

        def cancel() -> None:
            with made.engine.begin() as raw:
                wish = {"wish": CANCEL_OF_RELEASE_0_1}
                raw.execute(sa.text("UPDATE wbe_flowdetails SET wish = :wish"), wish)

        flow = linear_flow.Flow("f").add(Call("call", cancel), task.WaitFor("go"))
        with pytest.raises(exceptions.Cancelled, match="enough"):
            engines.run(flow, backend=made, deadline=10)


# Layouts of later releases.


def test_older_layout_is_refused_until_it_is_upgraded(
    url: str, backend: _sql.SQLBackend, tmp_path: Path
) -> None:
    backend.get_connection().save_logbook(models.LogBook("b", uuid="book"))
    with later_release(tmp_path), contextlib.closing(backends.fetch(url)) as later:
        connection = later.get_connection()
        for call in (connection.validate, lambda: connection.get_logbook("book")):
            with pytest.raises(
                exceptions.StorageFailure, match=f"{LATER}, got {CURRENT}: .*upgrade"
            ):
                call()
        connection.upgrade()
        connection.validate()
        assert connection.get_logbook("book").name == "b"
        connection.upgrade()


def test_compatible_later_layout_is_used_by_the_previous_release(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with backends.backend(url) as backend:
        engine = engines.load(
            linear_flow.Flow("f").add(Call("a", lambda: engine.suspend()), Call("b")),
            backend=backend,
        )
        engine.run()
        uuid = engine.storage.flow_uuid
        assert engine.storage.get_flow_state() == states.SUSPENDED
    with later_release(tmp_path), backends.backend(url) as later:
        assert isinstance(later, _sql.SQLBackend)
        assert later.stored_layout() == (LATER, CURRENT)

    caplog.set_level("INFO", "wbengine.persistence.backends._sql")
    with backends.backend(url) as backend:
        assert isinstance(backend, _sql.SQLBackend)
        assert backend.stored_layout() == (LATER, CURRENT)
        connection = backend.get_connection()
        connection.validate()
        resumed = engines.load(
            linear_flow.Flow("f").add(Call("a"), Call("b")),
            flow_detail=connection.get_flow_details(uuid),
            backend=backend,
        )
        resumed.run()
        engines.run(linear_flow.Flow("g").add(Call("a")), backend=backend)
        assert [row.state for row in connection.list_flows().flows] == [states.SUCCESS] * 2
        with boards.backend("b", "sql", persistence=backend) as board:
            job = board.post("j")
            board.claim(job, "me")
            board.consume(job, "me")
            board.post("k")
            assert [each.name for each in board.iterjobs()] == ["k"]
        schedules = Schedules(backend)
        schedules.add(Schedule(name="s", factory="tests.operations.flows:steps", every=60))
        assert [entry.name for entry in schedules.all()] == ["s"]
        connection.destroy_flow(uuid)
        connection.upgrade()
        with backend.engine.connect() as raw:
            values = raw.execute(sa.text("SELECT later, later_text FROM wbe_flowdetails"))
            assert values.all() == [(7, None)]
        assert backend.stored_layout() == (LATER, CURRENT)
    message = f"has revision {LATER}, newer than {CURRENT}, and can be used"
    assert [message in text for text in caplog.messages] == [True]


def test_incompatible_later_layout_is_refused(
    url: str, backend: _sql.SQLBackend, tmp_path: Path
) -> None:
    with backends.backend(url), later_release(tmp_path, oldest=LATER), backends.backend(url):
        pass
    connection = backend.get_connection()
    message = (
        f"The layout of the database has revision {LATER}, and wbengine {wbengine.__version__}"
        f" supports revisions up to {CURRENT}: use a newer version of wbengine"
    )
    for call in (connection.validate, connection.get_logbooks, connection.upgrade):
        with pytest.raises(exceptions.StorageFailure) as caught:
            call()
        assert str(caught.value) == message
    assert backend.stored_layout() == (LATER, LATER)


@pytest.mark.parametrize("oldest", [CURRENT, LATER])
def test_upgrade_during_a_run_is_refused_unless_compatible(
    url: str, tmp_path: Path, oldest: str
) -> None:
    def upgrade() -> None:
        with later_release(tmp_path, oldest), contextlib.closing(backends.fetch(url)) as later:
            later.get_connection().upgrade()

    def check_refused() -> None:
        with pytest.raises(exceptions.StorageFailure, match=r"^1 flows of this database .*: wait"):
            upgrade()

    during = upgrade if oldest == CURRENT else check_refused
    with backends.backend(url) as backend:
        assert isinstance(backend, _sql.SQLBackend)
        engines.run(
            linear_flow.Flow("f").add(Call("a"), Call("upgrade", during), Call("b")),
            backend=backend,
        )
        stored = backend.stored_layout()
        assert stored is not None and stored.revision == (LATER if during is upgrade else CURRENT)
        upgrade()  # no engine runs the flow
        assert backend.stored_layout() == (LATER, oldest)


def test_interrupted_upgrade_is_completed(mariadb_url: str, tmp_path: Path) -> None:
    """MySQL cannot roll back layout changes of a process that died."""
    with contextlib.closing(backends.fetch(mariadb_url)) as made:
        assert isinstance(made, _sql.SQLBackend)
        made.upgrade()
        with later_release(tmp_path):
            made.upgrade()
            execute(
                made,
                f"UPDATE {tables.VERSION_TABLE} SET version_num = '{CURRENT}'",
                "ALTER TABLE wbe_jobs DROP COLUMN later",
                "DROP TABLE wbe_later",
            )
            made.upgrade()
            made.get_connection().validate()
            columns = sa.inspect(made.engine).get_columns("wbe_jobs")
            assert {"later", "later_text"} < {column["name"] for column in columns}
            assert sa.inspect(made.engine).has_table("wbe_later")


# Contents.


@pytest.mark.slow
def test_upgrade_adds_stored_tags_to_index(backend: _sql.SQLBackend) -> None:
    connection, book = backend.get_connection(), models.LogBook("b")
    for number in range(1002):  # The migration reads 1000 flows at a time.
        flow = models.FlowDetail(str(number))
        flow.meta["tags"] = {"team": "a"} if number % 500 else {"team": "b", "bad key": "x"}
        book.add(flow)
    connection.save_logbook(book)
    execute(
        backend,
        "DROP TABLE wbe_tags",
        "UPDATE wbe_flowdetails SET meta = '{damaged' WHERE name = '7'",
        f"UPDATE {tables.VERSION_TABLE} SET version_num = '0006'",
    )
    with contextlib.closing(backends.fetch(backend.engine.url.render_as_string(False))) as again:
        again.get_connection().upgrade()
        assert isinstance(again, _sql.SQLBackend)
        assert differences(again) == []
        rows = again.get_connection().list_flows(tags={"team": "b"}, newest_first=False).flows
        assert [row.name for row in rows] == ["0", "500", "1000"]
        assert len(again.get_connection().list_flows(tags={"team": "a"}, limit=2000).flows) == 998
