"""Transactions on an sqlite database: all or nothing, and what is said when it cannot be."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from wbengine import _sql, exceptions
from wbengine._sql import dialects

INSERT = sa.text("INSERT INTO t (k, v) VALUES (:k, :v)")
COUNT = sa.text("SELECT COUNT(*) FROM t")


def execute(text: str, **values: Any) -> Any:
    return lambda connection: connection.execute(sa.text(text), values).all()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    made = _sql.make_engine(f"sqlite:///{tmp_path}/x.db")
    _sql.transact(
        made,
        "Making",
        lambda it: it.execute(sa.text("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT)")),
    )
    yield made
    made.dispose()


def count(engine: sa.Engine) -> int:
    found: int = _sql.transact(engine, "Counting", lambda it: it.scalar(COUNT), write=False)
    return found


def test_sqlite_is_set_up(engine: sa.Engine) -> None:
    """For two processes, foreign keys, and the end of the power."""
    for pragma, value in [("foreign_keys", 1), ("journal_mode", "wal"), ("synchronous", 2)]:
        found = _sql.transact(engine, "Asking", execute(f"PRAGMA {pragma}"), write=False)
        assert found == [(value,)], pragma


def test_interrupted_lease_leaves_later_turns_durable(engine: sa.Engine) -> None:
    """What need not survive by itself is written without a sync, and only that."""

    def interrupted(connection: sa.Connection) -> None:
        assert execute("PRAGMA synchronous")(connection) == [(1,)]
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            _sql.transact(engine, "Taking", interrupted, durable=False)
        found = _sql.turn(engine, "Saving", lambda it: it.execute("PRAGMA synchronous").fetchall())
        assert found == [(2,)]


def test_postgresql_does_not_wait_for_the_disk_where_it_need_not(postgresql_url: str) -> None:
    """For a lease, say; and what is written next is durable again."""
    made = _sql.make_engine(postgresql_url)
    try:
        for durable, level in [(True, "on"), (False, "off"), (True, "on")]:
            found = _sql.transact(
                made, "Asking", execute("SHOW synchronous_commit"), durable=durable
            )
            assert found == [(level,)]
    finally:
        made.dispose()


def test_interrupted_turn_is_not_written_later(engine: sa.Engine) -> None:
    """Others may have written since, and nobody waits for it any more."""

    def interrupted(driver: Any) -> None:
        seen.append(driver)
        if len(seen) == 1:
            raise KeyboardInterrupt

    seen: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        _sql.turn(engine, "Saving", interrupted)
    _sql.turn(engine, "Saving", lambda it: it.execute("SELECT 1"))
    assert len(seen) == 1


def test_file_to_wait_at_that_cannot_be_opened_is_named(engine: sa.Engine) -> None:
    path = f"{engine.url.database}-queue"
    os.mkdir(path)
    with contextlib.closing(sqlite3.connect(str(engine.url.database))) as other:
        other.execute("BEGIN IMMEDIATE")
        told = f"Saving failed: other processes write, and {path} cannot be used to wait"
        for save in (_sql.transact, _sql.turn):
            with pytest.raises(exceptions.StorageFailure, match=re.escape(told)):
                save(engine, "Saving", lambda it: it.execute("SELECT 1"))  # type: ignore[operator]


def test_what_is_raised_undoes_it(engine: sa.Engine) -> None:
    """It goes through as it is."""

    def work(connection: sa.Connection) -> None:
        connection.execute(INSERT, {"k": "a", "v": "b"})
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        _sql.transact(engine, "Writing", work)
    assert count(engine) == 0


def test_who_reads_sees_one_moment(engine: sa.Engine) -> None:
    """Whatever is written meanwhile; and who writes waits for nobody who reads."""

    def work(connection: sa.Connection) -> list[int]:
        before = connection.scalar(COUNT)
        writer = threading.Thread(
            target=lambda: _sql.transact(
                engine, "Writing", lambda it: it.execute(INSERT, {"k": "a", "v": "b"})
            )
        )
        writer.start()
        writer.join()
        return [before or 0, connection.scalar(COUNT) or 0]

    assert _sql.transact(engine, "Counting", work, write=False) == [0, 0]
    assert count(engine) == 1


def test_who_writes_is_alone_from_the_start(engine: sa.Engine) -> None:
    """So nobody is refused who reads first and writes then."""
    threads = []

    def add(connection: sa.Connection) -> None:
        present = connection.scalar(COUNT)
        connection.execute(INSERT, {"k": str(present), "v": ""})

    for _ in range(8):
        threads.append(threading.Thread(target=_sql.transact, args=(engine, "Adding", add)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert count(engine) == 8


def test_upsert(engine: sa.Engine) -> None:
    """Of rows with the same key the last counts; columns to keep are those of the first.

    What is given by an expression is no part of a row.
    """
    put = dialects.upsert("sqlite", "t", ["k", "v"], ["k"])
    keep = dialects.upsert("sqlite", "t", ["k", "v"], ["k"], keep=["v"])
    rows = [{"k": "a", "v": "1"}, {"k": "b", "v": "2"}, {"k": "a", "v": "3"}]
    _sql.transact(engine, "Writing", lambda it: it.execute(put, rows))
    _sql.transact(engine, "Writing", lambda it: it.execute(keep, {"k": "a", "v": "4"}))
    found = _sql.transact(engine, "Reading", execute("SELECT k, v FROM t ORDER BY k"), write=False)
    assert found == [("a", "3"), ("b", "2")]
    twice = dialects.upsert("sqlite", "t", ["k", "v"], ["k"], given={"v": "upper(:k)"})
    _sql.transact(engine, "Writing", lambda it: it.execute(twice, {"k": "b"}))
    assert _sql.transact(engine, "Reading", execute("SELECT v FROM t WHERE k = 'b'")) == [("B",)]


def test_an_error_is_one_line_without_values(engine: sa.Engine) -> None:
    """Neither the text nor the causes have what was to be written."""
    row = {"k": "a", "v": "confidential"}
    _sql.transact(engine, "Writing", lambda it: it.execute(INSERT, row))
    with pytest.raises(exceptions.StorageFailure) as caught:
        _sql.transact(engine, "Writing it", lambda it: it.execute(INSERT, row))
    assert str(caught.value) == "Writing it failed: UNIQUE constraint failed: t.k"
    told = "".join(traceback.format_exception(caught.value))
    assert "confidential" not in told


def test_a_ledger_has_errors_of_its_own(engine: sa.Engine) -> None:
    with pytest.raises(exceptions.LedgerFailure, match="Claiming failed: no such table"):
        _sql.transact(engine, "Claiming", execute("SELECT * FROM u"), kind=exceptions.LedgerFailure)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """It is damaged, and named."""
    path = tmp_path / "x.db"
    path.write_bytes(b"all but a database" * 100)
    engine = _sql.make_engine(f"sqlite:///{path}")
    with pytest.raises(exceptions.CorruptRecord, match=r"Reading failed.*not a database") as caught:
        _sql.transact(engine, "Reading", execute("SELECT 1"), write=False)
    assert caught.value.path == str(path)
    with pytest.raises(exceptions.LedgerFailure, match="not a database"):
        _sql.transact(engine, "Reading", execute("SELECT 1"), kind=exceptions.LedgerFailure)
    assert path.read_bytes() == b"all but a database" * 100


def test_a_folder_that_is_not_there() -> None:
    engine = _sql.make_engine("sqlite:////no/such/folder/x.db")
    expected = "Reading failed: unable to open.*: /no/such/folder/x.db .*no folder /no/such/folder"
    with pytest.raises(exceptions.StorageFailure, match=expected):
        _sql.transact(engine, "Reading", execute("SELECT 1"), write=False)


def test_a_file_that_is_a_folder(tmp_path: Path) -> None:
    engine = _sql.make_engine(f"sqlite:///{tmp_path}")
    with pytest.raises(exceptions.StorageFailure, match=r"unable to open.*this is a folder"):
        _sql.transact(engine, "Reading", execute("SELECT 1"), write=False)


def test_no_room(engine: sa.Engine) -> None:
    """What was there stays, and once there is room it goes on."""
    limit = execute("PRAGMA max_page_count = 10")
    text = "x" * 100_000

    def work(connection: sa.Connection) -> None:
        limit(connection)
        connection.execute(INSERT, {"k": "a", "v": text})

    with pytest.raises(exceptions.StorageFailure, match="Writing failed: database or disk is full"):
        _sql.transact(engine, "Writing", work)
    assert count(engine) == 0
    _sql.dispose(engine)
    _sql.transact(engine, "Writing", lambda it: it.execute(INSERT, {"k": "a", "v": text}))
    assert count(engine) == 1


def test_all_connections_in_use(tmp_path: Path) -> None:
    """The error names the options; a database in memory has one."""
    engine = _sql.make_engine("sqlite://", {"pool_timeout": 0})
    with engine.connect(), pytest.raises(exceptions.StorageFailure, match="max_pool_size"):
        _sql.transact(engine, "Reading", execute("SELECT 1"))


def test_a_database_in_memory_is_one_for_all_threads() -> None:
    engine = _sql.make_engine("sqlite://")
    _sql.transact(engine, "Making", lambda it: it.execute(sa.text("CREATE TABLE t (k, v)")))
    row = {"k": "a", "v": "b"}
    threads = [
        threading.Thread(
            target=_sql.transact, args=(engine, "Writing", lambda it: it.execute(INSERT, row))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(engine) == 4


def test_statements_are_logged_without_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = _sql.make_engine(f"sqlite:///{tmp_path}/x.db", {"log_statements": True})
    with caplog.at_level(logging.DEBUG, logger="wbengine"):
        _sql.transact(engine, "Reading", execute("SELECT :a", a="confidential"), write=False)
    assert "SELECT ?" in caplog.text and "confidential" not in caplog.text


def test_the_clock(engine: sa.Engine) -> None:
    """It goes on, and is in seconds."""
    clock = execute(f"SELECT {dialects.now('sqlite')}")
    ((first,),) = _sql.transact(engine, "Asking", clock, write=False)
    ((second,),) = _sql.transact(engine, "Asking", clock, write=False)
    ((told,),) = _sql.transact(engine, "Asking", execute("SELECT strftime('%s')"), write=False)
    assert first <= second < first + 60 and abs(first - float(told)) < 60
