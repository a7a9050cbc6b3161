"""Connections that submissions refuse, and conflicts with other transactions."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import django.db
import django.utils.connection
import psycopg
import pytest
import sqlalchemy as sa
from django.db import transaction
from sqlalchemy import orm

from tests.support import callers, servers
from tests.support.callers import Caller, Place
from wbengine import engines, exceptions
from wbengine._sql import caller_connections
from wbengine.jobs import backends as boards
from wbengine.persistence import backends as stores
from wbengine.persistence.backends._sql import tables

on_servers = callers.on("postgresql driver", "postgresql session", "mysql connection")
AUTOCOMMIT = "must be in a transaction, but each of its statements is committed at once"
OTHER = r"connection must be to the database \(and schema\) of <SQLBackend .*>, got another one"
FAILED = "its transaction has failed or is closed: roll it back"


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_connections, "LOCK_TIMEOUT_SECONDS", 1)


@callers.on("sqlite driver", "postgresql driver", "mysql connection")
def test_autocommit_is_refused(place: Place) -> None:
    kinds: dict[str, dict[str, Any]] = {"connection": {"isolation_level": "AUTOCOMMIT"}}
    if place.url.startswith("sqlite"):
        kinds["driver"] = {"isolation_level": None}
    elif place.url.startswith("postgresql"):
        kinds["driver"] = {"autocommit": True}
    for kind, options in kinds.items():
        with (
            callers.opened(kind, place.url, **options) as connection,
            pytest.raises(ValueError, match=AUTOCOMMIT),
        ):
            place.submit(connection)
    assert place.flows() == set()


@callers.on("sqlite django", "postgresql django")
def test_block_of_django_is_required_and_used(place: Place, caller: Caller) -> None:
    connection = caller.connection
    connection.set_autocommit(True)
    with pytest.raises(ValueError, match=AUTOCOMMIT):
        place.submit(connection)
    proxy = django.utils.connection.ConnectionProxy(django.db.connections, callers.ALIAS)
    with transaction.atomic(using=callers.ALIAS):
        caller.add("x")
        kept = place.submit(proxy)
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=callers.ALIAS):
            place.submit(connection)
            raise ZeroDivisionError
    with contextlib.suppress(ZeroDivisionError), transaction.atomic(using=callers.ALIAS):
        place.submit(connection)
        raise ZeroDivisionError
    assert place.flows() == place.jobs() == {kept.id} and caller.orders() == ["x"]
    with transaction.atomic(using=callers.ALIAS):
        transaction.set_rollback(True, using=callers.ALIAS)
        with pytest.raises(ValueError, match=FAILED):
            place.submit(connection)


@callers.on("postgresql driver", "sqlite driver")
def test_explicit_transaction_in_autocommit_is_used(place: Place) -> None:
    if place.url.startswith("sqlite"):
        with callers.opened("driver", place.url, isolation_level=None) as connection:
            connection.execute("BEGIN")
            place.submit(connection)
            connection.execute("ROLLBACK")
            assert place.flows() == set()
            connection.execute("BEGIN")
            handle = place.submit(connection)
            connection.execute("COMMIT")
    else:
        with callers.opened("driver", place.url, autocommit=True) as connection:
            with connection.transaction(force_rollback=True):
                place.submit(connection)
            assert place.flows() == set()
            with connection.transaction():
                handle = place.submit(connection)
    assert place.flows() == {handle.id}


@callers.on("postgresql driver", "postgresql connection", "postgresql session")
def test_failed_transaction_is_refused(place: Place, caller: Caller) -> None:
    with pytest.raises((psycopg.Error, sa.exc.DBAPIError)):
        caller.execute("SELECT 1 / 0")
    with pytest.raises(ValueError, match=FAILED):
        place.submit(caller.connection)
    caller.rollback()
    place.submit(caller.connection)
    caller.commit()
    assert len(place.flows()) == 1


@callers.on("sqlite session", "sqlite connection")
def test_closed_or_failed_objects_of_sqlalchemy_are_refused(place: Place, caller: Caller) -> None:
    connection = caller.connection
    if isinstance(connection, orm.Session):
        registry = orm.registry(metadata=sa.MetaData())
        table = sa.Table("orders", registry.metadata, sa.Column("mark", sa.Text, primary_key=True))
        order: type[Any] = type("Order", (), {})
        registry.map_imperatively(order, table)
        caller.execute("CREATE UNIQUE INDEX one ON orders (mark)")
        caller.add("x")
        connection.add(order())
        for each in connection.new:
            each.mark = "x"
        with pytest.raises(sa.exc.IntegrityError):
            connection.flush()
        with pytest.raises(ValueError, match=FAILED):
            place.submit(connection)
    else:
        connection.close()
        with pytest.raises(ValueError, match=FAILED):
            place.submit(connection)


@callers.on("sqlite driver", "postgresql driver", "mysql connection")
def test_other_database_is_refused(
    place: Place, tmp_path: Path, database_servers: servers.Databases
) -> None:
    kind = place.url.partition(":")[0]
    with contextlib.ExitStack() as stack:
        if kind == "sqlite":
            url = f"sqlite:///{tmp_path}/other.db"
        else:
            url = stack.enter_context(database_servers[kind].database())
        for has_tables in (False, True):
            if has_tables:
                stack.enter_context(stores.backend(url))
            with (
                callers.opened("connection", url) as other,
                pytest.raises(ValueError, match=OTHER) as raised,
            ):
                place.submit(other)
            assert "password" not in str(raised.value)
    with (
        callers.opened("connection", "sqlite://") as in_memory,
        pytest.raises(ValueError, match=OTHER),
    ):
        place.submit(in_memory)


@callers.on("postgresql driver")
def test_other_schema_is_refused(place: Place, caller: Caller) -> None:
    caller.execute("CREATE SCHEMA other")
    caller.execute("SET LOCAL search_path = other")
    with pytest.raises(ValueError, match=OTHER):
        place.submit(caller.connection)
    caller.execute("SET LOCAL search_path = public")
    place.submit(caller.connection)
    caller.commit()
    assert len(place.flows()) == 1


@callers.on("postgresql driver")
def test_recreated_tables_are_accepted(place: Place, caller: Caller) -> None:
    place.submit(caller.connection)
    caller.rollback()
    tables.JOBS.drop(place.store.engine)
    tables.JOBS.create(place.store.engine)
    handle = place.submit(caller.connection)
    caller.commit()
    assert place.jobs() == {handle.id}


@callers.on("sqlite driver")
def test_objects_of_other_types_are_refused(place: Place) -> None:
    wrong: list[Any] = [place.store, place.url, place.store.engine, object()]
    for each in wrong:
        with pytest.raises(TypeError, match="connection must be a Connection or Session of SQLAl"):
            place.submit(each)
    with pytest.raises(ValueError, match="requires a Session with one database"):
        place.submit(orm.Session())


def test_missing_tables_are_not_created(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/flows.db"
    with (
        contextlib.closing(stores.fetch(url)) as store,
        contextlib.closing(sqlite3.connect(tmp_path / "flows.db")) as connection,
    ):
        connection.execute("CREATE TABLE orders (mark TEXT)")
        started = time.monotonic()
        with pytest.raises(exceptions.StorageFailure, match="contains no tables: call upgrade"):
            engines.submit(
                callers.GREETING, inputs={"name": "Ada"}, backend=store, connection=connection
            )
        assert time.monotonic() - started < 10
        connection.commit()
        names = connection.execute("SELECT name FROM sqlite_master").fetchall()
        assert names == [("orders",)]


@callers.on("sqlite driver")
def test_board_in_another_store_is_refused(place: Place, caller: Caller, tmp_path: Path) -> None:
    with (
        boards.backend(
            "b", {"board": "sql", "connection": f"sqlite:///{tmp_path}/jobs.db"},
            persistence=place.store,
        ) as board,
        pytest.raises(ValueError, match="connection= requires a flow and a job in the same"),
    ):  # fmt: skip
        place.submit(caller.connection, board=board)


@callers.on(*callers.ALL_KINDS)
def test_unique_key_of_another_flow_leaves_the_transaction_usable(
    place: Place, caller: Caller
) -> None:
    first = place.submit(caller.connection, unique="k")
    assert place.submit(caller.connection, unique="k").id == first.id
    caller.commit()
    caller.add("x")
    assert place.submit(caller.connection, unique="k").id == first.id
    for name, key in (("Ada", "other"), ("Bob", "other")):
        with contextlib.suppress(exceptions.UniqueKeyConflict):
            place.submit(caller.connection, name, unique=key, unique_for="1h")
    caller.commit()
    assert caller.orders() == ["x"] and len(place.flows()) == len(place.jobs()) == 2


@on_servers
@pytest.mark.parametrize("commits", [True, False])
def test_key_of_an_open_transaction_is_waited_for(
    place: Place, caller: Caller, commits: bool
) -> None:
    with callers.opened("connection", place.url) as other, futures.ThreadPoolExecutor() as pool:
        first = place.submit(other, unique="k")
        caller.add("x")
        waiting = pool.submit(place.submit, caller.connection, unique="k")
        with pytest.raises(futures.TimeoutError):
            waiting.result(0.5)
        (other.commit if commits else other.rollback)()
        second = waiting.result(30)
        assert (second.id == first.id) is commits
        caller.commit()
    assert place.flows() == {second.id} and caller.orders() == ["x"]


@on_servers
@pytest.mark.usefixtures("short_waits")
def test_wait_for_an_open_transaction_is_limited(place: Place, caller: Caller) -> None:
    show = "SELECT @@innodb_lock_wait_timeout"
    if place.url.startswith("postgresql"):
        show = "SELECT current_setting('lock_timeout')"
    before = caller.execute(show)
    with callers.opened("connection", place.url) as other:
        first = place.submit(other, unique="k")
        caller.add("x")
        with pytest.raises(exceptions.JobFailure, match=r"Submitting 1 flows failed: .*timeout"):
            place.submit(caller.connection, unique="k")
        assert caller.execute(show) == before
        other.commit()
        place.submit(caller.connection, unique="zz")
        assert caller.execute(show) == before
        caller.commit()
    assert caller.orders() == ["x"] and len(place.flows()) == 2 and first.id in place.flows()


@on_servers
@pytest.mark.usefixtures("short_waits")
def test_open_transactions_submit_to_one_queue_at_once(place: Place, caller: Caller) -> None:
    with callers.opened("connection", place.url) as other:
        first = place.submit(other)
        second = place.submit(caller.connection)
        other.commit()
        caller.commit()
    assert place.flows() == {first.id, second.id}


@callers.on("mysql connection")
@pytest.mark.usefixtures("short_waits")
def test_keys_do_not_wait_for_others_with_read_committed(place: Place) -> None:
    options = {"isolation_level": "READ COMMITTED"}
    with (
        callers.opened("connection", place.url, **options) as first,
        callers.opened("connection", place.url, **options) as second,
    ):
        flows = {
            place.submit(first, unique="order-2").id,
            place.submit(second, unique="order-1").id,
        }
        second.commit()
        first.commit()
    assert place.flows() == flows


@callers.on("mysql connection")
def test_deadlock_is_reported_although_it_ends_the_transaction(
    place: Place, caller: Caller
) -> None:
    for table in ("large", "small"):
        caller.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY)")
    numbers = ", ".join(f"({number})" for number in range(50))
    add = sa.text("INSERT INTO small VALUES (1)")
    with callers.opened("connection", place.url) as other, futures.ThreadPoolExecutor() as pool:
        # The database ends the transaction that has changed fewer rows.
        other.execute(sa.text(f"INSERT INTO large VALUES {numbers}"))
        caller.connection.execute(add)
        waiting = pool.submit(other.execute, add)
        with (
            pytest.raises(sa.exc.OperationalError, match="Deadlock found"),
            caller_connections.limited_waits(caller.connection),
        ):
            caller.execute("INSERT INTO large VALUES (1)")
        waiting.result(60)


@callers.on("postgresql driver")
def test_shorter_lock_timeout_of_the_caller_applies(place: Place, caller: Caller) -> None:
    with callers.opened("connection", place.url) as other:
        place.submit(other, unique="k")
        caller.execute("SET lock_timeout = '100ms'")
        started = time.monotonic()
        with pytest.raises(exceptions.JobFailure, match="lock timeout"):
            place.submit(caller.connection, unique="k")
        assert time.monotonic() - started < 5


@callers.on("postgresql driver")
def test_serialization_failure_leaves_the_transaction_usable(place: Place, caller: Caller) -> None:
    caller.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    caller.add("x")
    place.submit(None, unique="k")
    with pytest.raises(exceptions.JobFailure, match="could not serialize") as raised:
        place.submit(caller.connection, unique="k")
    assert raised.value.__cause__ is not None
    caller.commit()
    assert caller.orders() == ["x"]


@callers.on("sqlite driver")
def test_busy_file_is_reported_after_the_timeout_of_the_caller(
    place: Place, caller: Caller
) -> None:
    caller.execute("PRAGMA busy_timeout = 100")
    with callers.opened("driver", place.url) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(exceptions.JobFailure, match="database is locked"):
            place.submit(caller.connection)
    place.submit(caller.connection)
    caller.commit()
    assert len(place.flows()) == 1
