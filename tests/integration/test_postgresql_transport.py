"""PostgreSQL transport: faults, and several connections at the same moment."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import socket
import struct
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.seams import requests
from tests.support import servers, sql_ends
from tests.support.sql_ends import DEAD_AFTER_SECONDS, finish, publish, take
from tests.support.waiting import MARGIN, SOON, until
from wbengine import exceptions
from wbengine.transports import _ledger, resolve
from wbengine.transports._broker import Delivery, Frame
from wbengine.transports._sql import postgresql_statements as sql
from wbengine.transports._sql.postgresql_broker import PostgreSQLBroker
from wbengine.transports._sql.postgresql_session import LOST, SETTINGS, PostgreSQLSession
from wbengine.transports._sql.sql_broker import SQLBroker

#: Option of Linux, and a filter with which a socket receives nothing: one instruction, "return 0".
SO_ATTACH_FILTER = 26
RETURN_0 = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
DROP_ALL = struct.pack("HP", 1, ctypes.addressof(RETURN_0))


class Database(sql_ends.Database):
    def fail_notifications(self, action: str) -> None:
        """Let notifications fail by an action in PL/pgSQL. One consumer waits for them."""
        self.ask("INSERT INTO wbe_waiters VALUES ('q', 'c', 0)")
        self.ask(
            f"CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {action}; RETURN OLD; END $$"
        )
        self.ask(
            "CREATE TRIGGER fail BEFORE DELETE ON wbe_waiters FOR EACH ROW EXECUTE FUNCTION fail()"
        )


@pytest.fixture
def database(postgresql_server: servers.Server, postgresql_url: str) -> Iterator[Database]:
    database = Database(postgresql_server, postgresql_url)
    with database.stack:
        yield database


# -- publishing and notifications


@pytest.mark.parametrize(
    "action",
    [
        "RAISE EXCEPTION USING ERRCODE = 'deadlock_detected'",
        "RAISE EXCEPTION USING ERRCODE = 'insufficient_privilege'",
    ],
)
def test_message_is_published_once_if_its_notification_fails(
    database: Database, action: str
) -> None:
    """The message is committed before the notification, so an error must not report a failure."""
    engine = database.open()
    database.fail_notifications(action)
    assert engine.open_and_publish([_ledger.Opening("a", 1)], [Frame("", "q", 0, b"a?")]) == [1]
    assert len(database.messages()) == 1
    assert database.ledger.state("a") == _ledger.Row("a", 1, "open")


def test_message_is_published_once_if_the_connection_is_lost_after_it(database: Database) -> None:
    engine, other = database.open(), database.open()
    database.fail_notifications("PERFORM pg_terminate_backend(pg_backend_pid())")
    frames = [Frame("", "q", 0, b"a?")]
    with pytest.raises(LOST):
        engine.open_and_publish([_ledger.Opening("a", 1)], frames)
    assert len(database.messages()) == 1
    database.ask("DROP TABLE wbe_waiters CASCADE")
    assert other.open_and_publish([_ledger.Opening("a", 1, tried=True)], frames) == [1]
    assert len(database.messages()) == 1


def test_notifications_of_one_consumer_do_not_wait_for_each_other(database: Database) -> None:
    """Two that delete the registrations of two queues would be a deadlock."""
    database.open()
    database.ask("INSERT INTO wbe_waiters VALUES ('q', 'c', 0), ('r', 'c', 0)")
    with psycopg.connect(database.url) as other:
        other.execute("SELECT 1 FROM wbe_waiters WHERE queue = 'r' FOR UPDATE")
        database.ask("SET lock_timeout = '1s'")
        database.admin.execute(sql.RING, {"queues": ["q"], "counts": [1], "prefix": ""})
    assert database.ask("SELECT queue FROM wbe_waiters") == [("r",)]


def test_row_without_epoch_is_refused_by_table(database: Database) -> None:
    """A consumer could not read it, and would requeue it together with other messages."""
    database.open()
    with pytest.raises(psycopg.errors.CheckViolation):
        database.ask("INSERT INTO wbe_messages(queue, place, at, id) VALUES ('q', 0, 0, 'a')")


# -- sessions that are ended


@pytest.fixture
def late_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let libpq notice the end of a connection only after the last message of the server."""
    closed: list[object] = []
    close = psycopg.Connection.close

    def close_noted(connection: psycopg.Connection[Any]) -> None:
        closed.append(connection)
        close(connection)

    monkeypatch.setattr(psycopg.Connection, "close", close_noted)
    is_closed = property(lambda session: session._driver in closed)
    monkeypatch.setattr(PostgreSQLSession, "is_broken", is_closed)


@pytest.mark.usefixtures("late_end")
def test_session_that_ends_before_the_commit_has_published_nothing(database: Database) -> None:
    """The results of the statements arrive before the commit."""
    engine, other = database.open(), database.open()
    database.ask(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
    )
    database.ask(
        "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON wbe_messages DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION die()"
    )
    frames = [Frame("", "q", 0, b"a?")]
    with pytest.raises(LOST):
        engine.open_and_publish([_ledger.Opening("a", 1)], frames)
    assert database.messages() == [] and engine._session._driver.closed
    database.ask("DROP FUNCTION die() CASCADE")
    assert other.open_and_publish([_ledger.Opening("a", 1, tried=True)], frames) == [1]
    assert len(database.messages()) == 1


@pytest.mark.usefixtures("late_end")
def test_message_of_the_server_that_ends_the_session_is_a_loss(database: Database) -> None:
    """The statement may have been committed: a refusal would mean that nothing was done."""
    broker = database.open()
    with pytest.raises(LOST, match="administrator"):
        broker._run("SELECT pg_terminate_backend(pg_backend_pid())")
    assert broker._session._driver.closed


# -- searches that do not depend on statistics


def plan(database: Database, statement: str, **values: Any) -> str:
    """Return the plan of a statement, with the settings of the transport."""
    with psycopg.connect(database.url, cursor_factory=psycopg.ClientCursor) as connection:
        for name, value in SETTINGS.items():
            connection.execute(f"SET {name} = {value}")
        rows = connection.execute(f"EXPLAIN {statement}", values).fetchall()
    return "\n".join(line for (line,) in rows)


def ranges(*queues: str) -> dict[str, list[Any]]:
    count = len(queues)
    return {
        "queues": [*queues], "places": [0] * count, "lows": [0] * count, "befores": [10] * count,
    }  # fmt: skip


ONE_FINISHED: dict[str, Any] = {
    "ids": ["a"], "epochs": [1], "taken": [1], "data": [b"x"], "numbers": [1], "queues": ["q"],
    "places": [9], "holder": "w", "consumers": ["c"], "routes": 0,
}  # fmt: skip
TAKEN: dict[str, Any] = {
    **ranges("q"), "limit": 64, "bytes": 1, "holder": "w", "consumer": "c", "take": 1, "routes": 0,
    "waiting": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        (sql.TAKE, TAKEN),
        (sql.FINISH, ONE_FINISHED),
        (sql.SETTLE, {"numbers": [1], "consumers": ["c"]}),
        (sql.NONEMPTY, ranges("q")),
        (sql.LEAVE, {"consumer": "c", "holder": "w", "undelivered": [], "unanswered": []}),
        (sql.SWEEP, {"seconds": 1.0, "gone": 1.0}),
    ],
)
def test_rows_and_messages_are_found_by_index(
    database: Database, statement: str, values: dict[str, Any]
) -> None:
    """Each row is compared in the collation of its index."""
    database.open()
    text = plan(database, statement.replace("%(data)b", "%(data)s"), **values)
    assert "Seq Scan on wbe_messages" not in text and "Seq Scan on wbe_ledger" not in text, text


def test_sweep_does_not_read_messages_of_living_consumers(database: Database) -> None:
    database.open()
    text = plan(database, sql.SWEEP, seconds=1.0, gone=1.0)
    assert "Index Cond: ((consumer > gaps.low) AND" in text


def test_taken_message_is_found_by_its_number_in_each_index(database: Database) -> None:
    """The entries of a consumer may be many: of deleted messages, and of unacknowledged ones."""
    database.open()
    database.ask("ALTER TABLE wbe_messages DROP CONSTRAINT wbe_messages_pkey")
    for statement, values in (
        (sql.FINISH.replace("%(data)b", "%(data)s"), ONE_FINISHED),
        (sql.SETTLE, {"numbers": [1], "consumers": ["c"]}),
    ):
        text = plan(database, statement, **values)
        assert "(n = ANY" in text and "Filter: (n" not in text, text


def test_take_starts_at_first_message_of_an_earlier_take(database: Database) -> None:
    """As long as a transaction is open, messages deleted since its start remain in the index."""
    broker = database.open()
    broker.watch("q")
    starts = []
    for _ in range(4):
        publish(broker, b"a?")
        broker._next_report_at = broker._next_poll_at = 0.0  # A new interval begins.
        broker.refresh()
        for _ in range(2):
            order = broker.prepare_take(1, ["q"])
            assert order is not None
            starts.append(order.values["lows"][-1])
            broker._take(order, ())
            publish(broker, b"b?")
    assert starts == [0, 0, 0, 1, 0, 3, 0, 5]


def test_requeued_message_before_start_of_takes_is_found_later(
    database: Database,
) -> None:
    broker = database.open()
    broker.watch("q")
    for data in b"first", b"second", b"third":
        publish(broker, data)
    broker.refresh()
    ((_, first),) = broker.take_many([(1, ["q"])])
    broker._marks["q"] = broker._tested_marks["q"] = 9, first.token[1] + 1
    broker.requeue(first)
    taken = broker.take_many([(1, ["q"])])
    assert [message.data for _, message in taken] == [b"second"]
    broker._next_report_at = broker._next_poll_at = 0.0
    broker.refresh()
    taken = broker.take_many([(10, ["q"])])
    assert [message.data for _, message in taken] == [b"first", b"third"]


def test_waiting_consumer_searches_requeued_messages_at_once(database: Database) -> None:
    """Requeued messages are before the start of takes."""
    waiting, other = database.open(), database.open()
    publish(other, b"a?")
    (message,) = take(other)
    database.ask("DELETE FROM wbe_waiters")
    database.ask("INSERT INTO wbe_waiters VALUES ('q', 'c', 0)")
    with psycopg.connect(database.url, autocommit=True) as listener:
        listener.execute(f"LISTEN {sql.CHANNEL}c")
        other.requeue(message)
        (notification,) = listener.notifies(timeout=MARGIN * SOON, stop_after=1)
    waiting.watch("q")
    waiting.refresh()
    waiting._marks["q"] = 9, 1 << 40
    waiting._on_ring(notification.payload)
    assert [taken.data for _, taken in waiting.take_many([(1, ["q"])])] == [b"a?"]


def test_message_with_higher_priority_than_the_start_of_takes_is_first(database: Database) -> None:
    broker = database.open()
    broker.watch("q")
    for priority in 0, 9, 5:
        frame = Frame("", "q", priority, str(priority).encode())
        assert list(broker.publish_many([frame])) == [True]
    broker._marks["q"] = 9, 1
    broker.refresh()
    broker._marks["q"] = 9, 1
    taken = broker.take_many([(10, ["q"])])
    assert [message.data for _, message in taken] == [b"9", b"5", b"0"]


# -- takes


def waiting_consumer(database: Database) -> PostgreSQLBroker:
    """Return a consumer that a take of nothing has registered, and that polls no more."""
    consumer = database.open()
    assert isinstance(consumer, PostgreSQLBroker)
    consumer.watch("q")
    consumer.refresh()
    assert consumer.take_many([(10, ["q"])]) == []
    assert database.ask("SELECT queue FROM wbe_waiters") == [("q",)]
    consumer._next_poll_at = consumer._next_report_at = consumer._next_sweep_at = math.inf
    return consumer


def test_message_published_during_a_take_is_found_without_notification(database: Database) -> None:
    """The publisher sees no registration, which the take commits later."""
    consumer = waiting_consumer(database)
    database.ask("INSERT INTO wbe_messages(queue, place, at) VALUES ('q', 0, 0)")
    until(lambda: consumer.wait(0.01, ["q"]) or consumer._nonempty)


def test_consumer_without_capacity_does_not_wait_for_a_search(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = waiting_consumer(database)
    consumer._next_search_at = 0.0
    waits: list[float] = []
    monkeypatch.setattr(consumer, "_wait_for_input", waits.append)
    consumer.wait(SOON, [])
    assert waits == [SOON]


def test_steps_read_only_rows_of_their_requests(database: Database) -> None:
    """Plans are made while the tables are almost empty. A full scan would be slow later."""
    worker, engine = database.open("w"), database.open()
    for broker in worker, engine:
        broker.refresh()
        for table in "ledger(id, epoch, state, changed)", "messages(queue, place, at, consumer)":
            values = "n::text || %s, 1, 1, 0" if "ledger" in table else "'q', 1, n, %s"
            database.ask(
                f"INSERT INTO wbe_{table} SELECT {values} FROM generate_series(1, 1000) n",
                broker._name,
            )
    read_count = rows_read(database, worker, engine)
    database.put(engine, "a", "b")
    (message,) = take_one(worker, "q")
    _, (other,) = worker._finish(finish(message), worker.prepare_take(1, ["q"]))
    worker.settle_many([other])
    engine.settle_many(take_one(engine, "answers"))
    assert rows_read(database, worker, engine) - read_count < 100


def take_one(broker: SQLBroker, queue: str) -> list[Delivery]:
    broker.watch(queue)
    return [message for _, message in broker.take_many([(1, [queue])])]


def rows_read(database: Database, *brokers: SQLBroker) -> int:
    """Return the number of rows that have been read from the ledger and the messages."""
    for broker in brokers:
        broker._run("SELECT pg_stat_force_next_flush()")
    ((count,),) = database.ask(
        "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_user_tables"
        " WHERE relname IN ('wbe_ledger', 'wbe_messages')"
    )
    return int(count)


# -- dead consumers


def test_sweep_keeps_messages_that_another_consumer_took_meanwhile(database: Database) -> None:
    """A sweep waits for the lock of a message while another one requeues it."""
    living, other = database.open(), database.open()
    living.refresh()
    publish(living, b"a?")
    database.ask("UPDATE wbe_messages SET consumer = 'dead'")
    with psycopg.connect(database.url) as first, ThreadPoolExecutor(1) as pool:
        first.execute(sql.SWEEP, {"seconds": DEAD_AFTER_SECONDS, "gone": 600.0})
        second = pool.submit(other._sweep)
        until(lambda: database.ask("SELECT 1 FROM pg_locks WHERE NOT granted"))
        first.execute("UPDATE wbe_messages SET consumer = %s", (living._name,))
        first.commit()
        second.result(SOON)
    assert database.messages() == [(living._name, True)]


def test_queue_of_owner_that_reports_during_a_sweep_is_kept(database: Database) -> None:
    owner, other = database.open(), database.open()
    owner.declare_queue("mine", owned=True)
    database.ask("UPDATE wbe_queues SET used = 0 WHERE owned")
    other._next_queue_sweep_at = 0.0
    with psycopg.connect(database.url) as reporting, ThreadPoolExecutor(1) as pool:
        reporting.execute(f"UPDATE wbe_queues SET used = {sql.NOW} WHERE owned")
        sweep = pool.submit(other._sweep_queues, 0.0)
        until(lambda: database.ask("SELECT 1 FROM pg_locks WHERE NOT granted"))
        reporting.commit()
        sweep.result(SOON)
    assert publish(owner, b"a?", "mine")


# -- servers that refuse


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs filters of sockets")
@pytest.mark.parametrize("are_results_sent", [False, True])
def test_locks_of_dead_host_are_released_within_25_seconds(
    database: Database, monkeypatch: pytest.MonkeyPatch, are_results_sent: bool
) -> None:
    """It died in the step that finishes a request and takes the next one.

    The server sends results before the end of the step only if they are large.
    """
    worker, engine = database.open("w"), database.open()
    database.put(engine, "a")
    (message,) = take(worker)
    publish(engine, b"x" * (100_000 if are_results_sent else 1))
    flush = PostgreSQLSession._flush
    connection = os.dup(worker._session.fileno())
    is_executed = (
        "SELECT 1 FROM pg_stat_activity"
        " WHERE pid = %s AND state = 'active' AND wait_event LIKE 'Client%%'"
    )

    def die(session: PostgreSQLSession) -> None:
        def stop_receiving() -> None:
            with socket.socket(fileno=os.dup(connection)) as end:
                end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, DROP_ALL)

        if are_results_sent:  # They are not confirmed.
            stop_receiving()
        flush(session)
        until(lambda: database.ask(is_executed, session._driver.info.backend_pid))
        stop_receiving()
        with socket.socket() as unused:  # The end of the connection is not sent.
            os.dup2(unused.fileno(), session.fileno())
        session._driver.close()
        raise psycopg.OperationalError("the host died")

    monkeypatch.setattr(PostgreSQLSession, "_flush", die)
    try:
        with pytest.raises(psycopg.OperationalError, match="died"):
            worker._finish(finish(message), worker.prepare_take(1, ["q"]))
        database.ask("SET lock_timeout = '40s'")
        update = "UPDATE wbe_ledger SET epoch = 2 WHERE id = 'a' RETURNING state"
        assert database.ask(update) == [(1,)]
    finally:
        os.close(connection)


@pytest.mark.parametrize("is_cut", [False, True])
def test_consumer_that_leaves_during_an_order_requeues_ordered_requests(
    database: Database, is_cut: bool
) -> None:
    """The worker lives, so the request would be lost: no worker received it, or can claim it."""
    with contextlib.ExitStack() as stack:
        worker, writer, engine = (
            stack.enter_context(contextlib.closing(requests.Requests(database.url, name)))
            for name in ("w", "w", "")
        )
        engine.open(("a", 1), ("b", 1))
        consumer, received = worker.consume(1)
        worker.broker.drain(60)
        with pytest.raises(TimeoutError):
            worker.broker.drain(0.01)
        order = consumer.order([received[0].delivery])
        database.ask(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN OLD; END $$"
        )
        database.ask(
            "CREATE CONSTRAINT TRIGGER wait AFTER UPDATE ON wbe_messages DEFERRABLE INITIALLY"
            " DEFERRED FOR EACH ROW WHEN (NEW.take IS NOT NULL) EXECUTE FUNCTION wait()"
        )
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted"
        with psycopg.connect(database.url) as other, ThreadPoolExecutor(2) as pool:
            other.execute("SELECT pg_advisory_xact_lock(1)")
            finishing = pool.submit(writer.finish, (received[0], b"r"), order=order)
            until(lambda: len(database.ask(waiting)) == 1)
            worker.broker._session._driver.close()  # The connection is lost.
            leaving = pool.submit(worker.broker.release)
            until(lambda: len(database.ask(waiting)) == 2)
            if is_cut:
                with socket.socket(fileno=os.dup(writer.broker._session.fileno())) as end:
                    end.shutdown(socket.SHUT_RDWR)
                with pytest.raises(psycopg.OperationalError):
                    finishing.result()
            other.rollback()
            if not is_cut:
                assert finishing.result() == [True]
                order.deliver()
            leaving.result()
        if is_cut:  # The worker connects again, and repeats the step.
            requests.Requests(database.url, "w").close()
        assert len(received) == 1
        assert database.ledger.state("b") == _ledger.Row("b", 1, "open")
        assert (None, False) in database.messages()


def test_reply_to_a_row_that_is_concluded_meanwhile_is_not_foreign(database: Database) -> None:
    """The statement waits for the lock of the row, and began before the row was DONE."""
    engine, worker = database.open(), database.open("w")
    database.put(engine, "a")
    (message,) = take(worker)
    with contextlib.closing(database.connect()) as other, ThreadPoolExecutor(1) as pool:
        other.execute(
            "UPDATE wbe_ledger SET state = 2, holder = NULL, result = 'lost' WHERE id = 'a'"
        )
        finished = pool.submit(worker.finish, finish(message))
        until(
            lambda: database.ask(
                "SELECT 1 FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )
        other.commit()
        assert finished.result(MARGIN * SOON) == [True]
    row = database.ledger.state("a")
    assert row is not None and row.result == b"lost"


@pytest.fixture
def role(database: Database, postgresql_server: servers.Server) -> Iterator[str]:
    """Role without rights, whose password is its name."""
    name = f"role_{id(database)}"
    database.ask(f"CREATE ROLE {name} LOGIN PASSWORD '{name}'")
    yield name
    database.stack.close()
    with psycopg.connect(database.url, autocommit=True) as admin:
        admin.execute(f"DROP OWNED BY {name}")
        admin.execute(f"DROP ROLE {name}")


def url_of(database: Database, role: str) -> str:
    return f"postgresql://{role}:{role}@{database.url.partition('@')[2]}"


def test_role_that_only_reads_and_writes_rows_can_work(database: Database, role: str) -> None:
    owner = database.open()
    database.ask("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO " + role)
    worker = database.open("w", url_of(database, role))
    database.put(owner, "a")
    (message,) = take(worker)
    assert worker.finish(finish(message)) == [True]
    warnings: list[str | None] = []
    for broker in (worker, owner):
        broker._session._driver.add_notice_handler(lambda one: warnings.append(one.message_primary))
        broker._vacuum(0.0)
    assert worker._next_vacuum_at == math.inf > owner._next_vacuum_at and warnings == []
    assert database.ledger.state("a") == _ledger.Row("a", 1, "done", None, b"done")


def test_role_without_rights_gets_one_error(database: Database, role: str) -> None:
    database.open()
    with pytest.raises(exceptions.TransportFailure, match="permission denied for table"):
        database.open(url=url_of(database, role))


def test_full_server_is_an_error_that_may_pass(database: Database, role: str) -> None:
    database.open()
    database.ask(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {role}")
    database.ask(f"ALTER ROLE {role} CONNECTION LIMIT 1")
    database.open(url=url_of(database, role))
    with pytest.raises(LOST, match="too many connections"):
        database.open(url=url_of(database, role))


def test_read_only_server_refuses_and_changes_nothing(database: Database) -> None:
    engine = database.open()
    engine._run("SET default_transaction_read_only = on")
    target = resolve(database.url)
    for call in (
        lambda: publish(engine, b"a?"),
        lambda: engine.open_and_publish([_ledger.Opening("a", 1)], [Frame("", "q", 0, b"a?")]),
        engine.refresh,
    ):
        with pytest.raises(exceptions.TransportFailure, match="read-only") as caught:
            call()
        assert target.kind.may_pass(caught.value)
    assert database.messages() == [] and database.ledger.ids() == set()
    engine._run("SET default_transaction_read_only = off")
    assert publish(engine, b"a?")


def test_database_of_wrong_encoding_is_refused(postgresql_server: servers.Server) -> None:
    options = "ENCODING 'LATIN1' TEMPLATE template0"
    with postgresql_server.database(options) as url:
        target = resolve(url)
        with pytest.raises(exceptions.TransportFailure, match="must be UTF8, got LATIN1"):
            target.open()


def test_isolation_level_of_database_does_not_affect_takes(database: Database) -> None:
    """Takes at a higher level fail if another consumer has taken one of the messages."""
    name = database.url.rpartition("/")[2]
    database.ask(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    assert database.open()._run("SHOW transaction_isolation") == [("read committed",)]


def test_request_larger_than_buffer_of_the_socket_is_published(database: Database) -> None:
    """In a pipeline, psycopg waits for results of data that it has not sent."""
    worker = database.open("w")
    with socket.socket(fileno=os.dup(worker._session.fileno())) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    body = bytes(range(256)) * 4_096
    assert publish(worker, body)
    (message,) = take(worker)
    assert message.data == body
