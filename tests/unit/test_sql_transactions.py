"""Transactions and errors of SQL databases."""

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

from tests.support.threads import call_in_threads
from wbengine import _sql, exceptions
from wbengine._sql import dialects

INSERT = sa.text("INSERT INTO t (k, v) VALUES (:k, :v)")
COUNT = sa.text("SELECT COUNT(*) FROM t")


def execute(text: str, **values: Any) -> Any:
    return lambda connection: connection.execute(sa.text(text), values).all()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    made = _sql.make_engine(_sql.parse(f"sqlite:///{tmp_path}/x.db"))
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


def test_sqlite_uses_foreign_keys_wal_and_full_sync(engine: sa.Engine) -> None:
    for pragma, value in [("foreign_keys", 1), ("journal_mode", "wal"), ("synchronous", 2)]:
        found = _sql.transact(engine, "Asking", execute(f"PRAGMA {pragma}"), write=False)
        assert found == [(value,)], pragma


def test_interrupted_non_durable_write_leaves_later_writes_durable(engine: sa.Engine) -> None:
    """Only writes that need not survive a power loss are not synced."""

    def interrupted(connection: sa.Connection) -> None:
        assert execute("PRAGMA synchronous")(connection) == [(1,)]
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            _sql.transact(engine, "Taking", interrupted, durable=False)
        found = _sql.transact_batched(
            engine, "Saving", lambda it: it.execute("PRAGMA synchronous").fetchall()
        )
        assert found == [(2,)]


def test_postgresql_commits_asynchronously_if_not_durable(postgresql_url: str) -> None:
    """An example is a lease. The next write is durable again."""
    made = _sql.make_engine(_sql.parse(postgresql_url))
    try:
        for durable, level in [(True, "on"), (False, "off"), (True, "on")]:
            found = _sql.transact(
                made, "Asking", execute("SHOW synchronous_commit"), durable=durable
            )
            assert found == [(level,)]
    finally:
        made.dispose()


def test_interrupted_batch_is_not_written_later(engine: sa.Engine) -> None:
    """The caller has ended, and other processes may have written since."""

    def interrupted(driver: Any) -> None:
        seen.append(driver)
        if len(seen) == 1:
            raise KeyboardInterrupt

    seen: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        _sql.transact_batched(engine, "Saving", interrupted)
    _sql.transact_batched(engine, "Saving", lambda it: it.execute("SELECT 1"))
    assert len(seen) == 1


def test_unusable_queue_file_is_named_in_the_error(engine: sa.Engine) -> None:
    path = f"{engine.url.database}-queue"
    os.mkdir(path)
    with contextlib.closing(sqlite3.connect(str(engine.url.database))) as other:
        other.execute("BEGIN IMMEDIATE")
        told = f"Saving failed: other processes are writing, and the file {path}, which orders"
        for save in (_sql.transact, _sql.transact_batched):
            with pytest.raises(exceptions.StorageFailure, match=re.escape(told)):
                save(engine, "Saving", lambda it: it.execute("SELECT 1"))  # type: ignore[operator]


def test_exception_rolls_the_transaction_back(engine: sa.Engine) -> None:
    def work(connection: sa.Connection) -> None:
        connection.execute(INSERT, {"k": "a", "v": "b"})
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        _sql.transact(engine, "Writing", work)
    assert count(engine) == 0


def test_read_transaction_has_a_consistent_snapshot(engine: sa.Engine) -> None:
    """A writer does not wait for readers."""

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


def test_write_transaction_locks_from_its_start(engine: sa.Engine) -> None:
    """A transaction that reads first and writes later is therefore never rejected."""

    def add(connection: sa.Connection) -> None:
        present = connection.scalar(COUNT)
        connection.execute(INSERT, {"k": str(present), "v": ""})

    call_in_threads(lambda _: _sql.transact(engine, "Adding", add), range(8))
    assert count(engine) == 8


def test_upsert_replaces_keeps_and_computes_columns(engine: sa.Engine) -> None:
    """The last of several rows with one key is stored; `keep` columns have the value of the first.

    The columns in `given` are expressions and not part of a row.
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


def test_database_error_is_one_line_without_values(engine: sa.Engine) -> None:
    """Neither the message nor its causes contain the values."""
    row = {"k": "a", "v": "confidential"}
    _sql.transact(engine, "Writing", lambda it: it.execute(INSERT, row))
    with pytest.raises(exceptions.StorageFailure) as caught:
        _sql.transact(engine, "Writing it", lambda it: it.execute(INSERT, row))
    assert str(caught.value) == "Writing it failed: UNIQUE constraint failed: t.k"
    told = "".join(traceback.format_exception(caught.value))
    assert "confidential" not in told


def test_ledger_errors_are_ledger_failures(engine: sa.Engine) -> None:
    with pytest.raises(exceptions.LedgerFailure, match="Claiming failed: no such table"):
        _sql.transact(engine, "Claiming", execute("SELECT * FROM u"), kind=exceptions.LedgerFailure)


def test_file_that_is_not_a_database_raises_corrupt_record(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"all but a database" * 100)
    engine = _sql.make_engine(_sql.parse(f"sqlite:///{path}"))
    with pytest.raises(exceptions.CorruptRecord, match=r"Reading failed.*not a database") as caught:
        _sql.transact(engine, "Reading", execute("SELECT 1"), write=False)
    assert caught.value.path == str(path)
    with pytest.raises(exceptions.LedgerFailure, match="not a database"):
        _sql.transact(engine, "Reading", execute("SELECT 1"), kind=exceptions.LedgerFailure)
    assert path.read_bytes() == b"all but a database" * 100


UNUSABLE_PATHS = {
    "missing folder": ("/no/such/folder/x.db", "/x.db .*folder /no/such/folder does not exist"),
    "folder": ("{}", "this is a folder"),
}


@pytest.mark.parametrize(("path", "reason"), UNUSABLE_PATHS.values(), ids=UNUSABLE_PATHS)
def test_unusable_path_is_named_in_the_error(tmp_path: Path, path: str, reason: str) -> None:
    engine = _sql.make_engine(_sql.parse(f"sqlite:///{path.format(tmp_path)}"))
    with pytest.raises(
        exceptions.StorageFailure, match=f"^Reading failed: unable to open.*{reason}"
    ):
        _sql.transact(engine, "Reading", execute("SELECT 1"), write=False)


def test_full_disk_rolls_back_and_writing_succeeds_later(engine: sa.Engine) -> None:
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


def test_exhausted_pool_error_names_the_option(tmp_path: Path) -> None:
    """An in-memory database has one connection."""
    engine = _sql.make_engine(_sql.parse("sqlite://", {"pool_timeout": 0}))
    with engine.connect(), pytest.raises(exceptions.StorageFailure, match="max_pool_size"):
        _sql.transact(engine, "Reading", execute("SELECT 1"))


def test_in_memory_database_is_shared_by_all_threads() -> None:
    engine = _sql.make_engine(_sql.parse("sqlite://"))
    _sql.transact(engine, "Making", lambda it: it.execute(sa.text("CREATE TABLE t (k, v)")))
    row = {"k": "a", "v": "b"}
    call_in_threads(
        lambda _: _sql.transact(engine, "Writing", lambda it: it.execute(INSERT, row)), range(4)
    )
    assert count(engine) == 4


def test_statements_are_logged_without_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = _sql.make_engine(_sql.parse(f"sqlite:///{tmp_path}/x.db", {"log_statements": True}))
    with caplog.at_level(logging.DEBUG, logger="wbengine"):
        _sql.transact(engine, "Reading", execute("SELECT :a", a="confidential"), write=False)
    assert "SELECT ?" in caplog.text and "confidential" not in caplog.text


def test_database_clock_increases_and_counts_seconds(engine: sa.Engine) -> None:
    clock = execute(f"SELECT {dialects.now('sqlite')}")
    ((first,),) = _sql.transact(engine, "Asking", clock, write=False)
    ((second,),) = _sql.transact(engine, "Asking", clock, write=False)
    ((told,),) = _sql.transact(engine, "Asking", execute("SELECT strftime('%s')"), write=False)
    assert first <= second < first + 60 and abs(first - float(told)) < 60
