"""PostgreSQL behind PgBouncer in transaction mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from tests.support import servers
from wbengine import _sql, engines, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, models
from wbengine.persistence.backends._sql import SQLBackend
from wbengine.testing import worker_in_thread
from wbengine.transports._sql import sql_ledger as ledgers

SETTINGS = ("lock_timeout", "idle_in_transaction_session_timeout")


@pytest.fixture(scope="module")
def pooler_port(postgresql_server: servers.Server) -> Iterator[int]:
    upstream = (
        f"host=127.0.0.1 port={postgresql_server.port} user={servers.USER}"
        f" password={postgresql_server.password}"
    )
    try:
        with servers.keeping("pgbouncer", upstream=upstream) as pooler:
            yield pooler.details["port"]
    except servers.ServerMissing as error:
        servers.skip_or_fail(str(error))


@pytest.fixture
def url(postgresql_url: str, postgresql_server: servers.Server, pooler_port: int) -> str:
    return postgresql_url.replace(f":{postgresql_server.port}/", f":{pooler_port}/")


def opened(url: str) -> contextlib.AbstractContextManager[Any]:
    return backends.backend(url)


def save(backend: SQLBackend) -> None:
    book, flow = models.LogBook("b"), models.FlowDetail("f")
    flow.add(models.TaskDetail("t"))
    book.add(flow)
    connection = backend.get_connection()
    connection.save_logbook(book)
    lease = connection.acquire_lease(flow.uuid, "engine", 60)
    connection.save_changes(flow, flow, lease=lease)
    connection.release_lease(lease)


def test_two_clients_of_one_session_can_repeat_their_statements(url: str) -> None:
    """PostgreSQL names prepared statements for each session, which clients of a pooler share."""
    with opened(url) as first, opened(url) as second:
        for _ in range(8):
            save(first)
            save(second)


def test_settings_of_transactions_do_not_affect_other_clients(url: str) -> None:
    def settings(connection: Any) -> list[str]:
        return [connection.execute(f"SHOW {name}").fetchone()[0] for name in SETTINGS]

    with opened(url) as backend, psycopg.connect(url, prepare_threshold=None) as other:
        save(backend)
        assert settings(other) == ["0", "0"]
        other.commit()
        with backend.engine.begin() as connection:
            assert [connection.scalar(sa.text(f"SHOW {name}")) for name in SETTINGS] == [
                "45s",
                "30s",
            ]
        assert settings(other) == ["0", "0"]


def test_no_client_listens_through_a_pooler(url: str) -> None:
    """Notifications would reach the session of another client."""
    with opened(url) as backend:
        calls: list[str] = []
        _sql.listen(backend.engine, "wbe_jobs", "b", lambda: calls.append("x"), lambda: False)
        channels = sa.text("SELECT pg_listening_channels()")
        with backend.engine.connect() as connection:
            assert not calls and not connection.execute(channels).all()


def test_creation_of_a_ledger_leaves_no_lock(
    url: str, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session of the lock may be in use when the lock is released."""
    with contextlib.ExitStack() as stack:

        def take_session(*args: Any) -> None:
            if "CREATE TABLE" in args[2] and not stack_is_used:
                stack_is_used.append(True)
                other = stack.enter_context(psycopg.connect(url, prepare_threshold=None))
                other.execute("SELECT 1")

        stack_is_used: list[bool] = []
        sa.event.listen(sa.Engine, "before_cursor_execute", take_session)
        stack.callback(sa.event.remove, sa.Engine, "before_cursor_execute", take_session)
        stack.enter_context(contextlib.closing(ledgers.SQLLedger(url)))
        # Other tests use other databases of the server.
        locks = (
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        with psycopg.connect(postgresql_url) as direct:
            assert stack_is_used and direct.execute(locks).fetchone() == (0,)


class Double(task.Task):
    def execute(self, number: int) -> int:
        return 2 * number


@pytest.mark.slow
def test_flow_runs_on_workers_that_poll(url: str, postgresql_url: str) -> None:
    """Workers behind the pooler and an engine with direct connections use the same queues."""
    flow = linear_flow.Flow("f")
    for number in range(12):
        flow.add(
            Double(f"double-{number}", rebind={"number": f"n{number}"}, provides=f"n{number + 1}")
        )
    with worker_in_thread(url, Double):
        for engine_url in (url, postgresql_url):
            results = engines.run(flow, engine="worker-based", url=engine_url, inputs={"n0": 1})
            assert results["n12"] == 4096
        # Other tests use other databases of the server.
        channels = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
            " AND datname = current_database()"
        )
        with psycopg.connect(postgresql_url) as direct:
            assert direct.execute(channels).fetchone() == (0,)
            assert direct.execute("SELECT count(*) FROM wbe_messages").fetchone() == (0,)
