"""PostgreSQL transport: logs, errors that may pass, searches for unused queues, connections."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.integration import rabbitmq_clients as clients
from tests.support import servers, sql_ends, tcp_proxy
from tests.support.waiting import SOON, until
from tests.support.workers import REPOSITORY
from wbengine import exceptions
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.transports import resolve
from wbengine.transports._sql import postgresql_statements as sql
from wbengine.transports._sql.postgresql_session import LOST


@pytest.fixture
def database(postgresql_server: servers.Server, postgresql_url: str) -> Iterator[sql_ends.Database]:
    database = sql_ends.Database(postgresql_server, postgresql_url)
    with database.stack:
        yield database


def test_consumer_logs_once_in_each_outage_why_it_cannot_reconnect(
    database: sql_ends.Database, caplog: pytest.LogCaptureFixture
) -> None:
    port = database.server.port
    with (
        tcp_proxy.threaded(port) as proxy,
        clients.Client(
            database.url.replace(f":{port}/", f":{proxy.port}/"), "a"
        ).running() as client,
    ):
        for number in range(2):
            caplog.clear()
            proxy.refuse()
            proxy.cut()
            until(lambda: "cannot reach the broker" in caplog.text)
            client.send(number, "a")
            until(lambda: "cannot publish" in caplog.text)
            proxy.accept()
            until(lambda number=number: number in client.received)
            assert sum("cannot reach the broker" in text for text in caplog.messages) == 1
            assert {each.name.partition(".")[0] for each in caplog.records} == {"wbengine"}


def test_failed_statement_in_pipeline_is_one_error_without_log(
    database: sql_ends.Database, caplog: pytest.LogCaptureFixture
) -> None:
    """psycopg would log errors of the pipeline that follow from it."""
    session = database.open()._session
    with pytest.raises(exceptions.TransportFailure, match="division by zero"):
        session.run_all([("SELECT 1/0", {}), ("SELECT 1", {})], [("SELECT 1", {})])
    assert session.run_all([("SELECT 1", {})]) == [[(1,)]]
    with pytest.raises(LOST):
        session.run_all([("SELECT pg_terminate_backend(pg_backend_pid())", {})], [("SELECT 1", {})])
    assert caplog.text == ""


PASSING = ["08006", "25006", "40001", "40P01", "53100", "55P03", "57014", "57P03", "58030"]


@pytest.mark.parametrize("state", [*PASSING, "42501", "23505", "22012"])
def test_only_error_of_the_state_of_the_server_may_pass(
    database: sql_ends.Database, state: str
) -> None:
    broker, kind = database.open(), resolve(database.url).kind
    with pytest.raises(exceptions.TransportFailure) as caught:
        broker._run(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{state}'; END $$")
    assert kind.may_pass(caught.value) is (state in PASSING)


def test_consumer_starts_when_a_locked_table_becomes_free(
    database: sql_ends.Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.open()
    client = clients.Client(f"{database.url}?options=-cstatement_timeout%3D200", "a")
    with psycopg.connect(database.url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("LOCK TABLE wbe_queues")
        starting = pool.submit(client.proxy.start)
        until(lambda: "due to statement timeout" in caplog.text)
        assert not starting.done()
        other.rollback()
        assert client.proxy.wait(SOON)
        client.proxy.stop()
        starting.result(SOON)


def test_unused_queues_are_searched_about_once_a_minute(database: sql_ends.Database) -> None:
    """Each search writes, and every consumer takes part."""
    broker = database.open()

    def is_searched(now: float) -> bool:
        database.ask("UPDATE wbe_transport SET swept = 0")
        broker._sweep_queues(now)
        return bool(database.ask("SELECT 1 FROM wbe_transport WHERE swept > 0"))

    assert [is_searched(now) for now in (0.0, 2.0, 29.0, 91.0, 93.0)] == [
        True, False, False, True, False,
    ]  # fmt: skip


def test_queue_of_dead_owner_is_deleted_by_young_consumer(database: sql_ends.Database) -> None:
    """In a fleet whose processes live for minutes, no consumer is older."""
    owner, other = database.open(), database.open()
    owner.declare_queue("dead", owned=True)
    for seconds, queues in (599, ["answers", "dead", "q"]), (601, ["answers", "q"]):
        database.ask(
            f"UPDATE wbe_queues SET used = {sql.NOW} - {seconds}::double precision WHERE owned"
        )
        other._postpone_sweeps()
        other._sweep_queues(time.monotonic())
        other._sweep_queues(time.monotonic() + 61)
        assert [
            name for (name,) in database.ask("SELECT name FROM wbe_queues ORDER BY 1")
        ] == queues


def test_ledgers_of_one_process_share_connections(database: sql_ends.Database) -> None:
    """A conductor opens one for each flow that it runs."""

    def connections() -> int:
        ((count,),) = database.ask(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
        return int(count)

    others = [ledgers.choose(None, resolve(database.url)) for _ in range(3)]
    for number, ledger in enumerate(others):
        assert ledger is not None
        ledger.open(f"r{number}", 1)
    assert connections() == 1
    for ledger in (*others, *others):
        assert ledger is not None
        ledger.close()
    assert database.ledger.ids() == {"r0", "r1", "r2"}
    assert connections() == 1
    database.ledger.close()
    until(lambda: connections() == 0)


def test_columns_of_all_tables_are_documented(database: sql_ends.Database) -> None:
    database.open()
    columns = database.ask(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND NOT table_name ~ '^wbe_ledger'"
    )
    page = (REPOSITORY / "doc/source/reference/database.rst").read_text()
    section = page.partition("Queues in PostgreSQL")[2]
    rows = {
        table: section.partition(f"``{table}``")[2].partition("* - ")[0] for table, _ in columns
    }
    assert len(rows) == 6
    assert [(table, name) for table, name in columns if f"``{name}``" not in rows[table]] == []
