"""MySQL transport: locks, limits of the server, and servers that refuse."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pymysql
import pytest

from tests.support import servers, sql_ends
from tests.support.sql_ends import Database, finish, publish, take
from tests.support.waiting import until
from wbengine import engines, exceptions, task
from wbengine.diagnosis import _mysql_checks
from wbengine.diagnosis.findings import Place
from wbengine.patterns import linear_flow
from wbengine.testing import worker_in_thread
from wbengine.transports import _ledger, resolve
from wbengine.transports._broker import Frame
from wbengine.transports._sql import mysql_statements as sql
from wbengine.transports._sql.mysql_broker import MySQLBroker
from wbengine.transports._sql.mysql_session import MySQLSession, check_version


@pytest.fixture
def database(mariadb_server: servers.Server) -> Iterator[Database]:
    with sql_ends.new_database(mariadb_server) as database:
        yield database


# -- locks


def test_take_skips_message_that_another_transaction_locks(database: Database) -> None:
    worker = database.open("w")
    database.put(worker, "a", "b")
    worker.refresh()
    with contextlib.closing(database.connect()) as other, other.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        values = {"queue": "q", "consumer": worker._name, "limit": 1}
        assert cursor.execute(sql.PICK, values) == 1
        (taken,) = take(worker)
        assert taken.data == b"b?"


def test_take_reads_messages_in_order_of_index(database: Database) -> None:
    """A take that sorts would lock all waiting messages of the queue."""
    worker = database.open()
    worker.refresh()
    values = {"queue": "q", "consumer": worker._name, "limit": 9}
    with database.connect() as connection, connection.cursor() as cursor:
        for _ in range(40):
            cursor.execute(
                "INSERT INTO wbe_messages(queue, place, at) VALUES ('q', 0, 0), ('r', 9, 0)"
            )
        cursor.execute(f"EXPLAIN {sql.PICK}", values)
        plans = [dict(zip([c[0] for c in cursor.description], row, strict=True))
                 for row in cursor.fetchall()]  # fmt: skip
    (plan,) = (plan for plan in plans if plan["table"] == "wbe_messages")
    assert plan["key"] == "wbe_messages_place" and "filesort" not in plan["Extra"]


def test_finish_is_repeated_after_deadlock(database: Database) -> None:
    """It holds the lock of its message, and waits for that of its row."""
    worker = database.open("w")
    database.put(worker, "a")
    (message,) = take(worker)
    lock = "SELECT 1 FROM wbe_messages FOR UPDATE"
    with contextlib.closing(database.connect()) as other, other.cursor() as cursor:
        # The server rolls back the transaction with fewer changes.
        for number in range(20):
            cursor.execute("INSERT INTO wbe_bindings VALUES ('x', %s, 'q')", (number,))
        cursor.execute("SELECT 1 FROM wbe_ledger WHERE id = 'a' FOR UPDATE")
        with ThreadPoolExecutor(1) as pool:
            finishing = pool.submit(worker.finish, finish(message))
            until(lambda: not database.ask(f"{lock} SKIP LOCKED"))
            cursor.execute(lock)
            other.rollback()
            assert finishing.result() == [True]
    assert database.ledger.state("a") == _ledger.Row("a", 1, "done", None, b"done")


def test_open_transaction_of_lost_session_is_ended_by_next_one(database: Database) -> None:
    """The server may notice only after minutes that the network has lost a client."""
    worker = database.open("w")
    database.put(worker, "a")
    lost = database.open()._session
    lost._driver.cursor().execute("SELECT 1 FROM wbe_messages FOR UPDATE")
    assert take(worker) == []
    lost._note_loss()
    database.open()
    assert len(take(worker)) == 1


@pytest.mark.parametrize("statement", ["INSERT INTO wbe_ledger", "SELECT id, epoch"])
def test_engine_frozen_within_a_transaction_until_next_run_opens_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """The next run may have completed the request, and deleted its row."""
    engine = database.open()
    execute = pymysql.cursors.Cursor.execute

    def execute_late(cursor: pymysql.cursors.Cursor, query: str, *values: Any) -> int:
        if query.startswith(statement):
            monkeypatch.undo()
            database.ledger.raise_fence(_ledger.Fence.of("flow", 2))
            assert database.ledger.state("a") is None
        return int(execute(cursor, query, *values))

    monkeypatch.setattr(pymysql.cursors.Cursor, "execute", execute_late)
    row = _ledger.Opening("a", 1, _ledger.Fence.of("flow", 1))
    engine.open_and_publish([row], [Frame("", "q", 0, b"a?")])
    assert pymysql.cursors.Cursor.execute is execute
    assert database.ledger.state("a") is None and database.messages() == []


def test_step_of_ledger_ends_without_rollback(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server ended before it, SQLAlchemy would log an error with a traceback."""
    rollbacks: list[object] = []
    connection = pymysql.connections.Connection
    monkeypatch.setattr(connection, "rollback", lambda self: rollbacks.append(self))
    database.ledger.open_many([("a", 1), ("b", 1)])
    assert database.ledger.claim("a", 1, "w").granted
    database.ledger.drop_many(["a", "b"])
    assert rollbacks == [] and database.ledger.ids() == set()


# -- limits


MAX_PACKET = 48_192


@pytest.fixture
def small_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each session read a small limit from its server."""
    configure = MySQLSession._configure

    def configure_small(session: MySQLSession) -> tuple[int, str]:
        identity = configure(session)
        session.max_message_bytes = MAX_PACKET // 2 - 4096
        return identity

    monkeypatch.setattr(MySQLSession, "_configure", configure_small)


class _Repeat(task.Task):
    def execute(self, text: str, times: int) -> str:
        return text * times


@pytest.mark.usefixtures("small_packets")
@pytest.mark.parametrize(("text", "times"), [("x" * 30_000, 0), ("x", 30_000)])
def test_task_fails_if_its_request_or_result_exceeds_packet_of_server(
    mariadb_url: str, text: str, times: int
) -> None:
    """Otherwise the server would close the connection, and the message would be resent forever."""
    flow = linear_flow.Flow("large").add(_Repeat("repeat"))
    inputs = {"text": text, "times": times}
    with (
        worker_in_thread(mariadb_url, _Repeat),
        pytest.raises(exceptions.TooLarge, match="max_allowed_packet"),
    ):
        engines.run(flow, engine="workers", url=mariadb_url, inputs=inputs)


@pytest.mark.usefixtures("small_packets")
def test_statements_with_several_messages_fit_into_packet_of_server(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = database.open()
    sizes = []
    execute = pymysql.cursors.Cursor.execute

    def execute_measured(cursor: pymysql.cursors.Cursor, query: str, *values: Any) -> int:
        sizes.append(len(query))
        return int(execute(cursor, query, *values))

    monkeypatch.setattr(pymysql.cursors.Cursor, "execute", execute_measured)
    assert all(engine.publish_many([Frame("", "q", 0, b"x" * 9_000)] * 8))
    assert len(database.messages()) == 8 and max(sizes) < MAX_PACKET


def test_result_that_exceeds_packet_of_server_is_a_failure_of_the_ledger(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the worker would neither store nor publish a reply."""
    database.ledger.open("a", 1)
    assert database.ledger.claim("a", 1, "w").granted
    execute = pymysql.cursors.Cursor.execute

    def refuse(cursor: pymysql.cursors.Cursor, query: str, *values: Any) -> int:
        if query.startswith("UPDATE"):
            raise pymysql.OperationalError(1153, "Got a packet bigger than 'max_allowed_packet'")
        return int(execute(cursor, query, *values))

    monkeypatch.setattr(pymysql.cursors.Cursor, "execute", refuse)
    (stored,) = database.ledger.finish_many("w", [("a", 1, b"result")])
    assert isinstance(stored, exceptions.LedgerFailure) and "max_allowed_packet" in str(stored)


@pytest.mark.slow
def test_message_of_a_third_of_the_packet_is_published(database: Database) -> None:
    worker = database.open("w")
    assert isinstance(worker, MySQLBroker)
    data = bytes(range(256)) * (worker._session.max_message_bytes // 256)
    worker.check_size(Frame("", "q", 0, data))
    assert publish(worker, data)
    (message,) = take(worker)
    assert message.data == data


# -- servers that refuse


@pytest.mark.parametrize("version", ["10.6.0-MariaDB", "11.4.2-MariaDB-log", "8.0.36", "9.1.0"])
def test_version_with_skip_locked_is_accepted(version: str) -> None:
    check_version("mysql://h/d", version)


@pytest.mark.parametrize(
    ("version", "least"),
    [
        ("10.5.12-MariaDB-log", "MariaDB must be version 10.6"),
        ("5.7.44-log", "MySQL must be version 8.0"),
    ],
)
def test_version_without_skip_locked_is_refused(version: str, least: str) -> None:
    """Otherwise the first take would fail with an error of syntax."""
    with pytest.raises(exceptions.TransportFailure, match=f"{least} or later, got {version}"):
        check_version("mysql://h/d", version)


@pytest.fixture
def account(database: Database) -> Iterator[str]:
    """Account that may only read, whose password is its name."""
    name = f"u{uuid.uuid4().hex[:12]}"
    database.ask(f"CREATE USER {name}@'127.0.0.1' IDENTIFIED BY '{name}'")
    database.ask(f"GRANT SELECT ON {database.url.rpartition('/')[2]}.* TO {name}@'127.0.0.1'")
    yield name
    database.ask(f"DROP USER {name}@'127.0.0.1'")


def test_account_that_must_not_write_gets_one_error(database: Database, account: str) -> None:
    database.open()
    url = f"mysql://{account}:{account}@{database.url.partition('@')[2]}"
    with pytest.raises(exceptions.TransportFailure, match="command denied to user") as caught:
        database.open(url=url)
    kind = resolve(url).kind
    assert kind.is_refusal(caught.value.__cause__) and not kind.may_pass(caught.value)


def test_doctor_accepts_default_settings(database: Database) -> None:
    findings = [*_mysql_checks.check(Place(url=database.url))]
    assert [one.check for one in findings if one.good is False] == []
    assert "broker clock" in {one.check for one in findings}


def test_doctor_reports_settings_that_lose_messages() -> None:
    settings = {"innodb_flush_log_at_trx_commit": "2", "log_bin": "ON", "sync_binlog": "0",
                "binlog_format": "STATEMENT"}  # fmt: skip
    texts = [one.text for one in _mysql_checks._durability_problems(settings)]
    assert [text.split()[0] for text in texts] == [
        "innodb_flush_log_at_trx_commit", "sync_binlog", "binlog_format",
    ]  # fmt: skip
