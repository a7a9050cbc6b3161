"""Costs, schema revisions and damaged records of SQL stores (see also `tests/contract`)."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from wbengine import _sql, exceptions, states
from wbengine._sql import transactions
from wbengine.persistence import backends, base, models
from wbengine.persistence.backends import _sql as sql
from wbengine.signals import Signal
from wbengine.types import failure as ft

Damage = Callable[..., None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.db"


@pytest.fixture
def backend(path: Path) -> Iterator[sql.SQLBackend]:
    with backends.backend(f"sqlite:///{path}") as made:
        assert isinstance(made, sql.SQLBackend)
        yield made


@pytest.fixture
def damage(path: Path) -> Damage:
    """Return a function that changes rows without the backend."""

    def change(statement: str, *values: Any) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            assert connection.execute(statement, values).rowcount > 0

    return change


def keep(backend: sql.SQLBackend, *names: str) -> tuple[models.LogBook, list[models.FlowDetail]]:
    """Save a book with a flow of each name; each flow has a task 't' and a Map 'm'."""
    book = models.LogBook("b")
    for name in names:
        flow = models.FlowDetail(name)
        done, mapped = models.TaskDetail("t"), models.TaskDetail("m")
        done.put(states.SUCCESS, {"answer": 42})
        mapped.items = models.Items(1, ["one", "two"])
        flow.add_all([done, mapped])
        book.add(flow)
    with backend.get_connection() as connection:
        connection.save_logbook(book)
    return book, list(book)


def atom_of(flow: models.FlowDetail, name: str) -> models.AtomDetail:
    return next(atom for atom in flow if atom.name == name)


class Counter:
    """Counts consecutive SQL statements of a database."""

    def __init__(self, engine: sa.Engine) -> None:
        self.sent: list[tuple[str, int]] = []
        _sql.dispose(engine)  # Existing connections have no trace callback.
        sa.event.listen(engine, "connect", lambda made, _: made.set_trace_callback(self._count))

    def _count(self, statement: str) -> None:
        head = " ".join(statement.split()[:3])
        if self.sent and self.sent[-1][0] == head:
            self.sent[-1] = head, self.sent[-1][1] + 1
        else:
            self.sent.append((head, 1))

    def of(self, work: Callable[[], object]) -> list[tuple[str, int]]:
        self.sent = []
        work()
        return self.sent


@pytest.mark.parametrize("size", [1, 400])
def test_number_of_statements_per_save_is_independent_of_size(
    backend: sql.SQLBackend, size: int
) -> None:
    flow = models.FlowDetail("f")
    atoms = [models.TaskDetail(f"t{n}") for n in range(size)]
    mapped = models.TaskDetail("m")
    mapped.items = models.Items(1, range(size))
    flow.add_all([*atoms, mapped])
    book = models.LogBook("b")
    book.add(flow)
    counter = Counter(backend.engine)
    with backend.get_connection() as connection:
        connection.save_logbook(book)
        lease = connection.acquire_lease(flow.uuid, "me", 60)
        one = counter.of(lambda: connection.save_changes(flow, atoms[:1], lease=lease))
        assert one == [
            ("BEGIN IMMEDIATE", 1),
            ("UPDATE wbe_flowdetails SET", 1),
            ("INSERT INTO wbe_atomdetails", 1),
            ("COMMIT", 1),
        ]
        changes = {mapped.uuid: [mapped.items[0]]}
        item = counter.of(
            lambda: connection.save_changes(flow, [], items=changes, flow_row=False, lease=lease)
        )
        assert item == [
            ("BEGIN IMMEDIATE", 1),
            ("SELECT 1 FROM", 1),
            ("INSERT INTO wbe_itemdetails", 1),
            ("UPDATE wbe_atomdetails SET", 1),
            ("COMMIT", 1),
        ]
        every = counter.of(
            lambda: connection.save_changes(
                flow, flow, items={mapped.uuid: list(mapped.items or ())}, lease=lease
            )
        )
        assert every == [
            ("BEGIN IMMEDIATE", 1),
            ("UPDATE wbe_flowdetails SET", 1),
            ("INSERT INTO wbe_atomdetails", size + 1),
            ("DELETE FROM wbe_itemdetails", 1),
            ("INSERT INTO wbe_itemdetails", size),
            ("COMMIT", 1),
        ]


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        ({}, "ix_wbe_flowdetails_created"),
        ({"newest_first": False}, "ix_wbe_flowdetails_created"),
        ({"after": "[5.0, 7]"}, "ix_wbe_flowdetails_created"),
        ({"since": 5.0}, "ix_wbe_flowdetails_created"),
        ({"states": ["RUNNING"]}, "ix_wbe_flowdetails_state"),
        ({"states": ["SUCCESS", "FAILURE", "PENDING"]}, "ix_wbe_flowdetails_state"),
        ({"book": "b"}, "ix_wbe_flowdetails_book"),
        ({"resent": True}, "ix_wbe_flowdetails_resent_at"),
        (
            {"commanded": True, "states": ["SUSPENDED", "FAILURE", "SUCCESS"]},
            "ix_wbe_flowdetails_wish",
        ),
        ({"uuid": "3f2a"}, "sqlite_autoindex_wbe_flowdetails_1"),
    ],
)
def test_list_flows_uses_an_index(
    backend: sql.SQLBackend, wanted: dict[str, Any], index: str
) -> None:
    """The index has the order of the page, so that only its rows are read."""
    sent: list[tuple[str, Any]] = []
    sa.event.listen(
        backend.engine,
        "before_cursor_execute",
        lambda connection, cursor, statement, told, *_: sent.append((statement, told)),
    )
    backend.get_connection().list_flows(**wanted)
    ((statement, told),) = [each for each in sent if "LIMIT" in each[0]]
    with backend.engine.connect() as connection:
        plan = [
            row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", told)
        ]
    of_flows = [step for step in plan if step.startswith(("SCAN f", "SEARCH f"))]
    assert of_flows and all(f"INDEX {index}" in step for step in of_flows), plan
    # Otherwise several lists are merged, or the result is small.
    if len(of_flows) == 1 and not {"uuid", "resent", "commanded"} & wanted.keys():
        assert not any("ORDER BY" in step for step in plan), plan


def test_flows_by_code_are_counted_without_reading_ended_flows(backend: sql.SQLBackend) -> None:
    """Each scrape of the metrics counts them."""
    with backend.engine.connect() as connection:
        statement = f"EXPLAIN QUERY PLAN {backend.statements.flows_by_code.text}"
        plan = [row[3] for row in connection.exec_driver_sql(statement)]
    assert not any(step.startswith("SCAN") for step in plan), plan
    assert any("ix_wbe_flowdetails_state (state=?)" in step for step in plan), plan


def test_items_of_earlier_attempts_are_deleted(backend: sql.SQLBackend) -> None:
    _, (flow,) = keep(backend, "f")
    mapped = atom_of(flow, "m")
    with backend.get_connection() as connection:
        mapped.items = models.Items(2, ["other"])
        connection.save_changes(flow, [mapped], items={mapped.uuid: list(mapped.items)})
    rows = sa.text("SELECT attempt, item FROM wbe_itemdetails")
    with backend.engine.connect() as connection_:
        assert connection_.execute(rows).all() == [(2, 0)]


def test_rows_store_plain_columns_json_and_null(backend: sql.SQLBackend) -> None:
    _, (flow,) = keep(backend, "Füße 🦊")
    done = atom_of(flow, "t")
    done.failure = ft.Failure.from_exception(ValueError("漢字"))
    with backend.get_connection() as connection:
        connection.save_changes(flow, [done])
    with backend.engine.connect() as connection_:
        rows = connection_.execute(
            sa.text(
                "SELECT f.name AS flow, a.kind, a.name, a.state, a.results, a.failure, a.meta"
                " FROM wbe_atomdetails a JOIN wbe_flowdetails f ON a.flow_uuid = f.uuid"
                " WHERE a.name = 't'"
            )
        ).mappings()
        (row,) = rows
    assert (row["flow"], row["kind"], row["state"]) == ("Füße 🦊", "task", states.SUCCESS)
    assert row["results"] == '{"answer":42}' and row["meta"] is None
    assert "漢字" in row["failure"]


@pytest.mark.parametrize("uuid", ["", "x" * 256, "ends with a space ", "a\0b", "\ud800"])
def test_invalid_uuid_is_rejected_and_nothing_is_saved(backend: sql.SQLBackend, uuid: str) -> None:
    with backend.get_connection() as connection:
        with pytest.raises(exceptions.InvalidFormat, match="str of 1 to 255 storable characters"):
            connection.save_logbook(models.LogBook("b", uuid))
        assert list(connection.get_logbooks()) == []


# Schema revisions.


@pytest.mark.parametrize("scheme", ["sqlite:///", "dir://"])
def test_reading_a_missing_store_creates_no_file(scheme: str, path: Path) -> None:
    with contextlib.closing(backends.fetch(f"{scheme}{path}")) as backend:
        connection = backend.get_connection()
        assert list(connection.get_logbooks()) == []
        for read in (connection.get_logbook, connection.get_flow_details, connection.get_lease):
            with pytest.raises(exceptions.NotFound):
                read("x")
        connection.validate()
        assert not path.exists()


def test_upgrade_of_the_current_layout_needs_no_lock(backend: sql.SQLBackend, path: Path) -> None:
    backend.upgrade()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with (
            backends.backend(f"sqlite:///{path}") as other,
            contextlib.closing(other.get_connection()) as connection,
        ):
            connection.upgrade()
        assert writer.in_transaction


@pytest.mark.parametrize("oldest", ["0999", "", None])
def test_unknown_revision_without_known_oldest_is_refused(
    path: Path, backend: sql.SQLBackend, damage: Damage, oldest: str | None
) -> None:
    damage("UPDATE wbe_alembic_version SET version_num = '0999', oldest = ?", oldest)
    _refuses_everything(path, "revision 0999, and .*: use a newer version of wbengine$")


def test_unknown_revision_with_known_oldest_is_used(
    path: Path, backend: sql.SQLBackend, damage: Damage
) -> None:
    damage("UPDATE wbe_alembic_version SET version_num = '0999'")
    with backends.backend(f"sqlite:///{path}") as fresh, fresh.get_connection() as connection:
        connection.validate()
        connection.save_logbook(models.LogBook("b"))
        assert len(list(connection.get_logbooks())) == 1


def test_version_table_without_column_oldest_is_refused(
    path: Path, backend: sql.SQLBackend
) -> None:
    with backend.engine.begin() as raw:
        raw.execute(sa.text("ALTER TABLE wbe_alembic_version DROP COLUMN oldest"))
        raw.execute(sa.text("UPDATE wbe_alembic_version SET version_num = '9999'"))
    _refuses_everything(path, "revision 9999, and .*: use a newer version of wbengine$")


def _refuses_everything(path: Path, words: str) -> None:
    with contextlib.closing(backends.fetch(f"sqlite:///{path}")) as backend:
        connection = backend.get_connection()
        for call in (
            connection.validate,
            connection.upgrade,
            lambda: connection.save_logbook(models.LogBook("b")),
            connection.get_logbooks,
            lambda: connection.get_logbook("x"),
        ):
            with pytest.raises(exceptions.StorageFailure, match=words):
                call()


# Damage.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE wbe_atomdetails SET results = '{' WHERE uuid = ?", "JSON|Expect"),
        ("UPDATE wbe_atomdetails SET name = CAST(X'80ff' AS TEXT) WHERE uuid = ?", "invalid name:"),
        ("UPDATE wbe_atomdetails SET state = 'SUCCES' WHERE uuid = ?", "invalid state: 'SUCCES'"),
        ("UPDATE wbe_atomdetails SET kind = 'x' WHERE uuid = ?", "invalid x record"),
        ("UPDATE wbe_atomdetails SET attempt = 'x' WHERE uuid = ?", "invalid attempt: 'x'"),
        ("UPDATE wbe_atomdetails SET more = '[1]' WHERE uuid = ?", "convert"),
        ("UPDATE wbe_itemdetails SET value = '\"x' WHERE atom_uuid = ?", "string"),
        (f"UPDATE wbe_atomdetails SET results = '{'[' * 100_000}' WHERE uuid = ?", "recursion"),
        (
            "DELETE FROM wbe_itemdetails WHERE item = 0 AND atom_uuid = ?",
            "must be at most 0, got 1",
        ),
    ],
)
def test_damaged_row_is_named_and_other_rows_are_read(
    backend: sql.SQLBackend, damage: Damage, change: str, words: str
) -> None:
    book, (first, second) = keep(backend, "first", "second")
    atom = atom_of(first, "t" if "wbe_atomdetails" in change else "m")
    other = atom_of(first, "m" if atom.name == "t" else "t")
    damage(change, atom.uuid)
    with backend.get_connection() as connection:
        for read in (
            lambda: connection.get_atom_details(atom.uuid),
            lambda: connection.get_flow_details(first.uuid),
            lambda: connection.get_logbook(book.uuid),
            lambda: next(connection.get_logbooks()),
        ):
            with pytest.raises(exceptions.CorruptRecord, match=words) as caught:
                read()
            assert caught.value.flow == first.uuid
            assert caught.value.path.startswith("wbe_") and atom.uuid in caught.value.path
        assert connection.get_atom_details(other.uuid).name == other.name
        assert len(connection.get_flow_details(second.uuid)) == 2
        assert len(connection.get_logbook(book.uuid, lazy=True)) == 0
        flows = connection.get_flows_for_book(book.uuid)
        assert next(flows).name == "second"
        with pytest.raises(exceptions.CorruptRecord):
            next(flows)


@pytest.mark.parametrize(
    "text", ["{", "[1]", "{}", "[" * 100_000], ids=["unclosed", "list", "empty", "deep"]
)
def test_damaged_command_does_not_affect_commands_of_other_flows(
    backend: sql.SQLBackend, damage: Damage, text: str
) -> None:
    _, (first, second) = keep(backend, "first", "second")
    command = base.FlowCommand("suspend")
    with backend.get_connection() as connection:
        for flow in (first, second):
            connection.acquire_lease(flow.uuid, "me", 60)
            connection.send_command(flow.uuid, command)
        damage(f"UPDATE wbe_flowdetails SET wish = '{text}' WHERE uuid = ?", first.uuid)
        found = connection.commands([first.uuid, second.uuid])
    assert list(found) == [second.uuid]


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lose the confirmation of the next commit. Return a list with an item for each write."""
    once, writes = transactions._once, list[int]()

    def lose_reply(engine: sa.Engine, work: Any, write: bool, durable: bool) -> Any:
        result = once(engine, work, write, durable)
        if write:
            writes.append(len(writes))
        if writes == [0] and write:
            error = ConnectionError("lost")
            raise sa.exc.OperationalError(None, None, error, connection_invalidated=True)
        return result

    monkeypatch.setattr(transactions, "_once", lose_reply)
    return writes


def test_signal_is_sent_once_if_its_commit_is_not_confirmed(
    backend: sql.SQLBackend, request: pytest.FixtureRequest
) -> None:
    _, (flow,) = keep(backend, "f")
    with backend.get_connection() as connection:
        writes = request.getfixturevalue("writes")
        sent = connection.send_signal(flow.uuid, Signal.of("paid", 1, 1.0))
        assert (sent.number, len(writes)) == (1, 2)
        assert [each.value for each in connection.signals([flow.uuid])[flow.uuid]] == [1]


@pytest.mark.parametrize("ends_run", [False, True])
def test_lease_is_released_if_the_commit_is_not_confirmed(
    backend: sql.SQLBackend, request: pytest.FixtureRequest, ends_run: bool
) -> None:
    _, (flow,) = keep(backend, "f")
    with backend.get_connection() as connection:
        lease = connection.acquire_lease(flow.uuid, "me", 60)
        writes = request.getfixturevalue("writes")
        if ends_run:
            assert connection.end_lease(lease, None) is None
        else:
            connection.release_lease(lease)
        assert len(writes) == 2
        assert connection.get_lease(flow.uuid) is None


def test_row_changed_from_outside_is_read_with_its_new_value(
    backend: sql.SQLBackend, damage: Damage
) -> None:
    _, (flow,) = keep(backend, "f")
    change = "UPDATE wbe_atomdetails SET results = '[7]' WHERE uuid = ?"
    damage(change, atom_of(flow, "t").uuid)
    with backend.get_connection() as connection:
        assert connection.get_atom_details(atom_of(flow, "t").uuid).results == [7]


@pytest.mark.slow
def test_damaged_file_raises_storage_failure_or_is_read(path: Path) -> None:
    """Each changed bit or truncation is harmless, or raises an exception of this package."""
    with backends.backend(f"sqlite:///{path}") as made:
        assert isinstance(made, sql.SQLBackend)
        book, _ = keep(made, "first", "second")
    whole = path.read_bytes()
    refused = 0
    # Zero bytes are mostly unused space.
    places = [place for place in range(0, len(whole), 37) if whole[place]]
    for number, place in enumerate(places):
        other = bytes([whole[place] ^ (1 << number % 8)])
        for text in (
            whole[:place] + other + whole[place + 1 :],
            whole[: place * (number % 9 == 0)],
        ):
            if text:
                for name in os.listdir(path.parent):
                    os.unlink(path.parent / name)
                path.write_bytes(text)
                refused += not _is_read(path, book.uuid)
    assert 50 < refused < len(places) * 2


def _is_read(path: Path, uuid: str) -> bool:
    """Return whether the book can be read."""
    with contextlib.closing(backends.fetch(f"sqlite:///{path}")) as backend:
        try:
            return backend.get_connection().get_logbook(uuid).uuid == uuid
        except (exceptions.StorageFailure, exceptions.NotFound):
            return False
