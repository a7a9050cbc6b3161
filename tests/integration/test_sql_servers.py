"""Faults of connections to database servers."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support import python, servers, wiretap
from tests.support.waiting import until
from wbengine import _sql, exceptions, states
from wbengine._transactions import user_engines
from wbengine.diagnosis import _store_checks, findings
from wbengine.persistence import backends, models
from wbengine.persistence.backends import _sql as sql
from wbengine.transports._sql import sql_ledger

#: Statements that end all other connections to the database.
KILL = {
    "postgresql": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mysql": "SELECT CONCAT('KILL ', id) FROM information_schema.processlist"
    " WHERE db = DATABASE() AND id <> CONNECTION_ID()",
}


@pytest.fixture(scope="module", params=["mysql", "postgresql"])
def server(request: pytest.FixtureRequest, database_servers: servers.Databases) -> servers.Server:
    return database_servers[request.param]


@pytest.fixture(scope="module")
def url(server: servers.Server) -> Iterator[str]:
    with server.database() as made:
        yield made


@pytest.fixture
def backend(url: str) -> Iterator[sql.SQLBackend]:
    with backends.backend(url) as made:
        assert isinstance(made, sql.SQLBackend)
        yield made


def kill_others(url: str) -> None:
    engine = _sql.make_engine(_sql.parse(url))
    with engine.connect() as connection:
        found = connection.execute(sa.text(KILL[engine.dialect.name])).scalars().all()
        for statement in found if engine.dialect.name == "mysql" else ():
            with contextlib.suppress(sa.exc.OperationalError):  # it has already ended
                connection.exec_driver_sql(str(statement))
    engine.dispose()


def keep(backend: sql.SQLBackend) -> models.FlowDetail:
    book, flow = models.LogBook("b"), models.FlowDetail("f")
    flow.add(models.TaskDetail("t"))
    book.add(flow)
    backend.get_connection().save_logbook(book)
    return flow


def test_lost_connections_are_replaced(url: str, backend: sql.SQLBackend) -> None:
    flow = keep(backend)
    kill_others(url)
    connection = backend.get_connection()
    connection.save_changes(flow, flow)
    kill_others(url)
    assert connection.get_flow_details(flow.uuid).name == "f"


def test_pool_does_not_log_traceback_of_lost_connection(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = _sql.make_engine(_sql.parse(url))
    connection = engine.raw_connection()
    connection.cursor().execute("SELECT 1")
    kill_others(url)
    connection.close()
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT 1")).scalar() == 1
    engine.dispose()
    assert caplog.text == ""


def test_connections_to_postgresql_show_their_program(
    postgresql_url: str,
) -> None:
    for query, name in ("", f"wbengine {os.getpid()}@"), ("?application_name=mine", "mine"):
        engine = _sql.make_engine(_sql.parse(postgresql_url + query))
        with engine.connect() as connection:
            shown = connection.execute(sa.text("SHOW application_name")).scalar()
            assert str(shown).startswith(name)
        engine.dispose()


def test_save_succeeds_after_connection_was_lost(url: str, backend: sql.SQLBackend) -> None:
    flow, connection = keep(backend), backend.get_connection()
    lease = connection.acquire_lease(flow.uuid, "engine", 60)
    for state in (states.RUNNING, states.SUCCESS):
        kill_others(url)
        flow.state = state
        connection.save_changes(flow, flow, lease=lease)
        assert connection.get_flow_details(flow.uuid).state == state


#: Round trips of one save. MariaDB needs several statements.
EXCHANGES = {"postgresql": 1, "mysql": 5}


def test_save_needs_fixed_number_of_round_trips(server: servers.Server, url: str) -> None:
    """Each round trip costs the latency of the network, and a run saves often."""
    with (
        wiretap.to(server.port) as tap,
        backends.backend(url.replace(f":{server.port}/", f":{tap.port}/")) as backend,
    ):
        flow, connection = keep(backend), backend.get_connection()
        (atom,) = flow
        atom.attempt, atom.items = 1, models.Items(1, range(3))
        lease = connection.acquire_lease(flow.uuid, "engine", 60)
        connection.save_changes(flow, flow, items={atom.uuid: list(atom.items)}, lease=lease)
        before = tap.exchanges
        for _ in range(10):
            connection.save_changes(flow, flow, lease=lease)
        # By now the driver has prepared its frequent statements on the server.
        assert tap.exchanges - before <= 10 * EXCHANGES[server.kind] + 1
        atom.attempt, atom.items = 2, models.Items(2, range(2))
        connection.save_changes(flow, flow, items={atom.uuid: list(atom.items)}, lease=lease)
        count = sa.text("SELECT count(*) FROM wbe_itemdetails")
        with backend.engine.connect() as raw:
            assert raw.scalar(count) == 2  # items of the earlier attempt are deleted


@pytest.mark.parametrize("server", ["postgresql"], indirect=True, scope="module")
def test_save_with_lost_reply_takes_effect_once(server: servers.Server, url: str) -> None:
    """The server executed the save and receives it again: no change and no error."""
    with (
        wiretap.to(server.port) as tap,
        backends.backend(url.replace(f":{server.port}/", f":{tap.port}/")) as backend,
        backends.backend(url) as onlooker,
    ):
        flow, connection = keep(backend), backend.get_connection()
        lease = connection.acquire_lease(flow.uuid, "engine", 60)
        connection.save_changes(flow, flow, lease=lease)  # opens the connection for saves
        flow.state = states.RUNNING
        tap.mutes = True
        turn = threading.Thread(
            target=connection.save_changes, args=(flow, flow), kwargs={"lease": lease}
        )
        turn.start()
        look = onlooker.get_connection()
        until(lambda: look.get_flow_details(flow.uuid).state == states.RUNNING)
        seen = look.get_changes(flow.uuid)
        tap.cut()
        turn.join()
        later = look.get_changes(flow.uuid, seen.cursor)
        assert len(later.atoms) == 1  # written again
        assert len(look.get_flow_details(flow.uuid)) == 1
        connection.save_changes(flow, flow, lease=lease)


def test_connection_lost_in_each_attempt_is_one_error(url: str, backend: sql.SQLBackend) -> None:
    """The transaction has no effect, and the next one succeeds."""

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.text("DELETE FROM wbe_logbooks"))
        kill_others(url)
        connection.execute(sa.text("DELETE FROM wbe_logbooks"))

    flow = keep(backend)
    with pytest.raises(exceptions.StorageFailure, match=r"^Removing failed: ") as caught:
        _sql.transact(backend.engine, "Removing", work)
    assert "\n" not in str(caught.value)
    assert backend.get_connection().get_flow_details(flow.uuid).name == "f"


@contextlib.contextmanager
def cut_before(server: servers.Server, url: str, backend: sql.SQLBackend, number: int) -> Any:
    """Lose all connections before the statement of this number, or at the commit after the last.

    Yield a list of the statements so far.
    """
    statements: list[str] = []

    def cut(*args: Any) -> None:
        statements.append(args[2] if len(args) > 1 else "COMMIT")
        if len(statements) == number:
            server.cut(url)

    for event in ("before_cursor_execute", "commit"):
        sa.event.listen(backend.engine, event, cut)
    try:
        yield statements
    finally:
        for event in ("before_cursor_execute", "commit"):
            sa.event.remove(backend.engine, event, cut)


@pytest.mark.slow
def test_records_are_written_if_the_connection_is_lost_at_any_moment(
    server: servers.Server, url: str, backend: sql.SQLBackend
) -> None:
    connection = backend.get_connection()
    for number in itertools.count(1):
        with cut_before(server, url, backend, number) as statements:
            flow = keep(backend)
            with contextlib.suppress(exceptions.FlowBusy):  # The commit may have succeeded.
                lease = connection.acquire_lease(flow.uuid, "engine", 60)
                flow.state = states.RUNNING
                connection.save_changes(flow, flow, lease=lease)
        assert connection.get_flow_details(flow.uuid, lazy=True).name == "f"
        if len(statements) < number:
            break
    assert number > 10


def test_lost_commit_is_an_error_unless_the_work_is_idempotent(
    server: servers.Server, url: str, backend: sql.SQLBackend
) -> None:
    """The server may have executed the commit."""
    runs = []

    def work(connection: sa.Connection) -> None:
        runs.append(connection.scalar(sa.text("SELECT 1")))

    for idempotent in (True, False):
        with cut_before(server, url, backend, 2) as statements, contextlib.ExitStack() as stack:
            if not idempotent:
                stack.enter_context(pytest.raises(exceptions.StorageFailure))
            _sql.transact(backend.engine, "Writing", work, idempotent=idempotent)
        assert statements[:2] == ["SELECT 1", "COMMIT"]
    assert len(runs) == 3


def test_backend_closed_while_a_thread_uses_it_leaves_no_connection(
    server: servers.Server, url: str, backend: sql.SQLBackend
) -> None:
    """The thread returns its connection to the old pool, which closes it."""
    pool = backend.engine.pool
    with backend.engine.connect() as connection:
        connection.execute(sa.text("SELECT 1"))
        backend.close()
        assert server.connections(url) == 1
    until(lambda: not server.connections(url))
    assert pool is not backend.engine.pool


def test_backend_that_a_thread_uses_after_the_end_leaves_no_connection(
    server: servers.Server, url: str, backend: sql.SQLBackend
) -> None:
    """The thread that renews leases may read the store after the last flow ended."""
    flow, connection = keep(backend), backend.get_connection()
    for _ in range(2):
        backend.close()
        assert connection.get_flow_details(flow.uuid).name == "f"
        connection.acquire_lease(flow.uuid, "engine", 0)
        until(lambda: not server.connections(url))


def test_first_error_of_a_transaction_is_raised(url: str, backend: sql.SQLBackend) -> None:
    """A failing rollback on the lost connection must not hide the first error."""

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.text("DELETE FROM wbe_logbooks"))
        kill_others(url)
        raise KeyError("mine")

    flow = keep(backend)
    with pytest.raises(KeyError, match="mine"):
        _sql.transact(backend.engine, "Removing", work)
    assert backend.get_connection().get_flow_details(flow.uuid).name == "f"


def test_names_with_unsupported_characters_are_preserved(backend: sql.SQLBackend) -> None:
    """The name column has a replacement character; the record keeps the exact name."""
    book = models.LogBook("a\0b 🦊")
    connection = backend.get_connection()
    connection.save_logbook(book)
    assert connection.get_logbook(book.uuid).name == book.name
    select = sa.text("SELECT name FROM wbe_logbooks WHERE uuid = :uuid")
    with backend.engine.connect() as raw:
        assert raw.scalar(select, {"uuid": book.uuid}) == "a\N{REPLACEMENT CHARACTER}b 🦊"


def test_wrong_password_is_one_error_without_the_password(server: servers.Server, url: str) -> None:
    wrong = url.replace(server.password, "mistaken")
    words = r"(?i)denied|authentication"
    with (
        contextlib.closing(backends.fetch(wrong)) as backend,
        pytest.raises(exceptions.StorageFailure, match=words) as caught,
    ):
        backend.get_connection().validate()
    assert "mistaken" not in "".join(traceback.format_exception(caught.value))


def test_connection_is_retried_as_often_as_configured(server: servers.Server, url: str) -> None:
    tried = []
    engine = _sql.make_engine(_sql.parse(url, {"max_retries": 2}))

    def refuse_first(dialect: Any, record: Any, arguments: Any, options: dict[str, Any]) -> None:
        tried.append(1)
        options["port"] = 1 if len(tried) < 3 else server.port

    sa.event.listen(engine, "do_connect", refuse_first)
    one = sa.text("SELECT 1")
    assert _sql.transact(engine, "Asking", lambda it: it.scalar(one)) == 1
    engine.dispose()
    assert tried == [1] * 3
    tried.clear()
    never = _sql.make_engine(
        _sql.parse(f"{url.replace(str(server.port), '1')}", {"max_retries": 0})
    )
    sa.event.listen(never, "do_connect", lambda *told: tried.append(1))
    with pytest.raises(exceptions.StorageFailure, match=r"(?i)^Asking failed: .*refused"):
        _sql.transact(never, "Asking", lambda it: it.scalar(one))
    assert tried == [1]


def test_frozen_client_does_not_block_others(backend: sql.SQLBackend) -> None:
    """The server ends idle transactions before others exceed their lock timeout."""
    idle, lock = {
        "postgresql": ("SHOW idle_in_transaction_session_timeout", "SHOW lock_timeout"),
        "mysql": ("SELECT @@idle_transaction_timeout", "SELECT @@innodb_lock_wait_timeout"),
    }[backend.options.dialect]
    with backend.engine.connect() as connection:
        found = [connection.scalar(sa.text(text)) for text in (idle, lock)]
    assert [str(value).rstrip("s") for value in found] == ["30", "45"]


def test_mysql_sql_mode_is_strict_unless_configured(mariadb_url: str) -> None:
    ask = sa.text("SELECT @@sql_mode")
    modes = []
    for options in ({}, {"mysql_sql_mode": "ANSI_QUOTES"}, {"mysql_sql_mode": None}):
        engine = _sql.make_engine(_sql.parse(mariadb_url, options))
        modes.append(_sql.transact(engine, "Asking", lambda it: str(it.scalar(ask)), write=False))
        engine.dispose()
    assert "STRICT_ALL_TABLES" in modes[0] and modes[1] == "ANSI_QUOTES"
    assert modes[2] not in modes[:2]


def test_store_opens_on_a_server_with_ansi_quotes(mariadb_url: str) -> None:
    """SQLAlchemy reads the mode of the first connection, and quotes all names accordingly."""
    arguments = {"connect_args": {"init_command": "SET SESSION sql_mode = 'ANSI_QUOTES'"}}
    for mode in ("TRADITIONAL", "ANSI", None):
        with backends.backend(
            {"connection": mariadb_url, "engine_args": arguments, "mysql_sql_mode": mode}
        ) as backend:
            assert isinstance(backend, sql.SQLBackend)
            keep(backend)


@pytest.mark.parametrize("where", ["environment LATIN1", "environment SQL_ASCII", "url"])
def test_texts_are_utf8_for_every_encoding_of_the_client(
    where: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "url":
        url += "?charset=utf8" if url.startswith("mysql") else "?client_encoding=latin1"
    else:
        monkeypatch.setenv("PGCLIENTENCODING", where.split()[1])
    book = models.LogBook("€ 🦊")
    with backends.backend(url) as backend:
        connection = backend.get_connection()
        connection.save_logbook(book)
        assert connection.get_logbook(book.uuid).name == book.name


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_database_with_another_encoding_is_rejected(
    postgresql_server: servers.Server, encoding: str
) -> None:
    words = f"The encoding of the database must be UTF8, got {encoding}"
    with postgresql_server.database(f"TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'") as url:
        with (
            contextlib.closing(backends.fetch(url)) as backend,
            pytest.raises(exceptions.StorageFailure, match=words),
        ):
            backend.get_connection().validate()
        assert not postgresql_server.connections(url)
        (finding,) = _store_checks.check(findings.Place(persistence=url))
        assert finding.good is False and words in finding.text


def test_deadlocked_transaction_is_repeated(backend: sql.SQLBackend) -> None:
    rows = [keep(backend).uuid, keep(backend).uuid]
    meet = threading.Barrier(2)
    runs: list[int] = []
    change = sa.text("UPDATE wbe_flowdetails SET state = :state WHERE uuid = :uuid")

    def write(number: int) -> None:
        first = [True]

        def work(connection: sa.Connection) -> None:
            runs.append(number)
            state = f"by {number}"
            connection.execute(change, {"uuid": rows[number], "state": state})
            if first.pop() if first else False:
                meet.wait()
            connection.execute(change, {"uuid": rows[1 - number], "state": state})

        _sql.transact(backend.engine, "Writing", work)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) > 2
    select = sa.text("SELECT DISTINCT state FROM wbe_flowdetails WHERE uuid IN (:a, :b)")
    with backend.engine.connect() as connection:
        (state,) = connection.execute(select, {"a": rows[0], "b": rows[1]}).scalars()
    assert state in ("by 0", "by 1")


def test_store_without_pool_keeps_no_connections(
    postgresql_server: servers.Server, postgresql_url: str
) -> None:
    with backends.backend(postgresql_url, max_pool_size=0) as store:
        with contextlib.closing(store.get_connection()) as connection:
            connection.save_logbook(models.LogBook("b"))
            assert connection.count_flows() == 0
        until(lambda: postgresql_server.connections(postgresql_url) == 0)


def test_database_of_tasks_without_pool_keeps_no_connections(
    postgresql_server: servers.Server, postgresql_url: str
) -> None:
    engine = user_engines.engine(f"{postgresql_url}?max_pool_size=0")
    with contextlib.closing(engine.connect()) as connection:
        assert connection.scalar(sa.text("SELECT 42")) == 42
        assert postgresql_server.connections(postgresql_url) == 1
    until(lambda: postgresql_server.connections(postgresql_url) == 0)


@pytest.mark.slow
def test_too_large_packet_error_names_server_setting(database_servers: servers.Databases) -> None:
    mariadb = database_servers["own mysql"]
    with mariadb.database() as url, backends.backend(url) as backend:
        assert isinstance(backend, sql.SQLBackend)
        flow = keep(backend)
        (atom,) = flow
        atom.results = "x" * (3 << 20)
        mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
        try:
            backend.engine.dispose()
            with pytest.raises(exceptions.RecordTooLarge, match="max_allowed_packet"):
                backend.get_connection().save_changes(flow, [atom])
            atom.results = "x" * (1 << 19)
            backend.get_connection().save_changes(flow, [atom])
            atom.results = '"' * (1 << 19)  # The driver escapes it.
            with pytest.raises(exceptions.RecordTooLarge, match="max_allowed_packet"):
                backend.get_connection().save_changes(flow, [atom])
        finally:
            mariadb.execute("SET GLOBAL max_allowed_packet = 67108864")
        backend.engine.dispose()
        backend.get_connection().save_changes(flow, [atom])
        assert backend.get_connection().get_atom_details(atom.uuid).results == atom.results


@pytest.mark.slow
def test_too_large_result_is_reported_with_its_size_in_a_statement(
    database_servers: servers.Databases,
) -> None:
    """The driver writes a byte as two digits: the result itself is smaller than a packet."""
    mariadb = database_servers["own mysql"]
    mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        with mariadb.database() as url, contextlib.closing(sql_ledger.SQLLedger(url)) as ledger:
            ledger.open("a", 1)
            assert ledger.claim("a", 1, "w").granted
            (stored,) = ledger.finish_many("w", [("a", 1, b"\xff" * 600_000)])
    finally:
        mariadb.execute("SET GLOBAL max_allowed_packet = 67108864")
    assert re.search(r"1,048,576 bytes .*, got 1,200,\d\d\d$", str(stored))


FORK = """
import os, sys
import sqlalchemy as sa
from wbengine.persistence import backends, models
backend = backends.fetch(sys.argv[1])
connection = backend.get_connection()
connection.upgrade()
asks = {"mysql": "SELECT CONNECTION_ID()", "postgresql": "SELECT pg_backend_pid()"}
def mine():
    with backend.engine.connect() as raw:
        return raw.scalar(sa.text(asks.get(raw.dialect.name, "SELECT 1")))
book = connection.save_logbook(models.LogBook("mine"))
before = mine()
child = os.fork()
if not child:
    assert backend.engine.pool.checkedin() == 0
    assert mine() != before or backend.engine.dialect.name == "sqlite"
    for _ in range(3):
        connection.save_logbook(models.LogBook("the child's"))
    assert connection.get_logbook(book.uuid).name == "mine"
    backend.close()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert mine() == before
names = sorted(book.name for book in connection.get_logbooks())
connection.save_logbook(models.LogBook("later"))
backend.close()
print(names)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "mysql", "postgresql"])
def test_forked_process_uses_separate_connections(
    kind: str, tmp_path: Any, database_servers: servers.Databases
) -> None:
    with contextlib.ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/x.db"
        if kind != "sqlite":
            url = stack.enter_context(database_servers[kind].database())
        command = ["-c", FORK, url]
        environment = {**os.environ, "PYTHONWARNINGS": "ignore::DeprecationWarning"}
        said = python.run(command, capture_output=True, text=True, env=environment)
    assert said.stdout.strip() == str(["mine", *["the child's"] * 3]), said.stderr
    assert not said.stderr
