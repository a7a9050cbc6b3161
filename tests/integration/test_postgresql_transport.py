"""PostgreSQL transport: faults, and several connections at the same moment."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.support import forks, servers, tcp_proxy
from tests.support.waiting import SOON, until
from wbengine import exceptions
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based.ledger import _base
from wbengine.transports import _encoding, resolve
from wbengine.transports import _postgresql_statements as sql
from wbengine.transports._broker import Delivery, Finish, Frame
from wbengine.transports._postgresql_broker import PostgreSQLBroker
from wbengine.transports._postgresql_session import LOST, PostgreSQLSession
from wbengine.transports._sql_session import Place

DEAD_AFTER_SECONDS = 10.0

Open = Callable[..., PostgreSQLBroker]


class Database:
    """A database with a ledger, and connections of workers and engines to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.stack = contextlib.ExitStack()
        ledger = ledgers.for_target(resolve(url))
        assert ledger is not None
        self.ledger: _base.Ledger = ledger
        self.stack.callback(ledger.close)
        self.admin = self.stack.enter_context(psycopg.connect(url, autocommit=True))

    def open(self, holder: str = "", url: str = "") -> PostgreSQLBroker:
        """Connect as this worker, or as an engine, with the queues `q` and `answers`."""
        target = resolve(url or self.url, None, {"dead_after": DEAD_AFTER_SECONDS})
        if holder:
            ledgers.attach_claims(self.ledger, target, holder)
            target.options.setdefault("claims", self.ledger.claims(self.place, holder))
        broker = target.open()
        assert isinstance(broker, PostgreSQLBroker)
        self.stack.callback(broker.close)
        for queue in ("q", "answers"):
            broker.declare_queue(queue)
        return broker

    @property
    def place(self) -> Place:
        return Place.parse(self.url)

    def put(self, broker: PostgreSQLBroker, *ids: str) -> None:
        """Open rows and publish their requests."""
        for id in ids:
            self.ledger.open(id, 1)
            headers = {"wbe-ledger": self.ledger.digest, "wbe-epoch": 1}
            assert publish(broker, _encoding.label(f"{id}?".encode(), headers, id))

    def ask(self, statement: str, *values: Any) -> list[Any]:
        cursor = self.admin.execute(statement, values)
        return cursor.fetchall() if cursor.description else []

    def messages(self) -> list[tuple[str | None, bool]]:
        """Return of each message the name of its consumer, and whether it is redelivered."""
        return self.ask("SELECT consumer, again FROM wbe_messages ORDER BY n")

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
def database(postgresql_url: str) -> Iterator[Database]:
    database = Database(postgresql_url)
    with database.stack:
        yield database


def publish(broker: PostgreSQLBroker, data: bytes, queue: str = "q") -> bool:
    return next(iter(broker.publish_many([Frame("", queue, 0, data)])))


def take(broker: PostgreSQLBroker) -> list[Delivery]:
    broker.watch("q")
    broker.refresh()
    messages = [message for _, message in broker.take_many([(10, ["q"])])]
    broker.unwatch("q")
    return messages


def terminate(database: Database, broker: PostgreSQLBroker) -> None:
    """End the session of a connection, and wait until it has ended."""
    pid = broker._session._driver.info.backend_pid
    database.ask("SELECT pg_terminate_backend(%s, 60000)", pid)


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
    assert engine.open_and_publish([("a", 1, False)], [Frame("", "q", 0, b"a?")]) == [1]
    assert len(database.messages()) == 1
    assert database.ledger.state("a") == _base.Row("a", 1, "open")


def test_message_is_published_once_if_the_connection_is_lost_after_it(database: Database) -> None:
    engine, other = database.open(), database.open()
    database.fail_notifications("PERFORM pg_terminate_backend(pg_backend_pid())")
    frames = [Frame("", "q", 0, b"a?")]
    with pytest.raises(LOST):
        engine.open_and_publish([("a", 1, False)], frames)
    assert len(database.messages()) == 1
    database.ask("DROP TABLE wbe_waiters CASCADE")
    assert other.open_and_publish([("a", 1, True)], frames) == [1]
    assert len(database.messages()) == 1


def test_notifications_of_one_consumer_do_not_wait_for_each_other(database: Database) -> None:
    """Two that delete the registrations of two queues would be a deadlock."""
    database.open()
    database.ask("INSERT INTO wbe_waiters VALUES ('q', 'c', 0), ('r', 'c', 0)")
    with psycopg.connect(database.url) as other:
        other.execute("SELECT 1 FROM wbe_waiters WHERE queue = 'r' FOR UPDATE")
        database.ask("SET lock_timeout = '1s'")
        database.admin.execute(sql.RING, {"queues": ["q"], "counts": [1]})
    assert database.ask("SELECT queue FROM wbe_waiters") == [("r",)]


def test_message_of_unknown_queue_is_deleted_by_hourly_sweep(database: Database) -> None:
    """A queue may be deleted while a message is published to it."""
    broker = database.open()
    for queue, age in ("q", 9999), ("deleted", 9999), ("deleted", 1):
        database.ask(
            "INSERT INTO wbe_messages(queue, place, at)"
            f" SELECT %s, 0, {sql.NOW} - %s::double precision",
            queue, age,
        )  # fmt: skip
    database.ask("UPDATE wbe_transport SET swept = 0")
    broker._sweep_queues(0.0)
    assert database.ask("SELECT queue FROM wbe_messages ORDER BY n") == [("q",), ("deleted",)]


def test_row_without_epoch_is_refused_by_table(database: Database) -> None:
    """A consumer could not read it, and would requeue it together with other messages."""
    database.open()
    with pytest.raises(psycopg.errors.CheckViolation):
        database.ask("INSERT INTO wbe_messages(queue, place, at, id) VALUES ('q', 0, 0, 'a')")


# -- connections that are lost


def test_take_during_outage_is_undone_by_next_connection(
    database: Database, postgresql_server: servers.Server
) -> None:
    """The holder lives, so no other consumer would release the row."""
    with tcp_proxy.threaded(postgresql_server.port) as proxy:
        url = database.url.replace(f":{postgresql_server.port}/", f":{proxy.port}/")
        database.put(database.open(), "a")
        worker = database.open("w", url)
        worker.watch("q")
        worker.refresh()
        proxy.lose("to-client")
        with ThreadPoolExecutor(1) as pool:
            taking = pool.submit(worker.take_many, [(10, ["q"])])
            until(lambda: database.messages()[0][0])
            assert database.ledger.state("a") == _base.Row("a", 1, "claimed", "w")
            proxy.refuse()
            proxy.cut()
            with pytest.raises(LOST):
                taking.result()
        worker.close()
        assert database.messages()[0][0]
        proxy.accept()
        database.open("w", url)
    assert database.messages() == [(None, False)]
    assert database.ledger.state("a") == _base.Row("a", 1, "open")


def test_threads_can_reconnect_at_the_same_moment(database: Database) -> None:
    """Each new connection ends the sessions that were lost, as long as they are registered."""
    for _ in range(4):
        database.open()._session._note_loss()
    barrier = threading.Barrier(8)

    def connect() -> None:
        barrier.wait()
        PostgreSQLSession(database.place).close()

    with ThreadPoolExecutor(8) as pool:
        for connected in [pool.submit(connect) for _ in range(8)]:
            connected.result()


def test_child_process_does_not_end_consumer_of_its_parent(database: Database) -> None:
    worker = database.open("w")
    database.put(worker, "a")
    (message,) = take(worker)
    assert forks.answer_of_fork(worker.close) == "None"
    assert worker.settle_many([message]) is True


# -- dead consumers


def test_new_consumer_gives_others_time_to_report(database: Database) -> None:
    """After an outage of the server, the first consumer to reconnect would requeue all messages."""
    worker, other = database.open("w"), database.open()
    other.declare_queue("mine", owned=True)
    database.put(worker, "a")
    (message,) = take(worker)
    database.ask("UPDATE wbe_consumers SET beat = beat - 1000")
    database.ask("UPDATE wbe_queues SET used = used - 1000")
    database.open().refresh()
    assert worker.settle_many([message]) is True
    assert database.ask("SELECT name FROM wbe_queues WHERE owned") == [("mine",)]


def test_consumer_that_is_treated_as_dead_takes_nothing(database: Database) -> None:
    """It may have been frozen after its last report. Others would requeue the message again."""
    worker = database.open("w")
    database.put(worker, "a")
    worker.watch("q")
    worker.refresh()
    database.ask("DELETE FROM wbe_consumers")
    assert worker.take_many([(10, ["q"])]) == []
    assert database.messages() == [(None, False)]
    worker._next_report_at = 0.0
    assert len(take(worker)) == 1


def test_sweep_keeps_messages_that_another_consumer_took_meanwhile(database: Database) -> None:
    """A sweep waits for the lock of a message while another one requeues it."""
    living, other = database.open(), database.open()
    living.refresh()
    publish(living, b"a?")
    database.ask("UPDATE wbe_messages SET consumer = 'dead'")
    with psycopg.connect(database.url) as first, ThreadPoolExecutor(1) as pool:
        first.execute(sql.SWEEP, {"seconds": DEAD_AFTER_SECONDS})
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


# -- lost replies


@pytest.fixture
def proxy(postgresql_server: servers.Server) -> Iterator[tcp_proxy.Proxy]:
    with tcp_proxy.threaded(postgresql_server.port) as proxy:
        yield proxy


@pytest.fixture
def proxied(database: Database, postgresql_server: servers.Server, proxy: tcp_proxy.Proxy) -> str:
    return database.url.replace(f":{postgresql_server.port}/", f":{proxy.port}/")


def lose_reply(proxy: tcp_proxy.Proxy, call: Callable[[], Any], done: Callable[[], Any]) -> None:
    """Call, and cut the connection when its effect is `done` and its reply was discarded."""
    proxy.lose("to-client")
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(call)
        until(done)
        proxy.cut()
        with pytest.raises(LOST):
            calling.result()


def finish(message: Delivery) -> list[Finish]:
    return [Finish("a", 1, message, Frame("", "answers", 0, b"done"))]


def test_result_without_reply_can_be_finished_again(
    database: Database, proxy: tcp_proxy.Proxy, proxied: str
) -> None:
    worker = database.open("w", proxied)
    database.put(worker, "a")
    (message,) = take(worker)
    lose_reply(
        proxy,
        lambda: worker.finish(finish(message)),
        lambda: database.ledger.state("a") == _base.Row("a", 1, "done", None, b"done"),
    )
    worker.close()
    again = database.open("w", proxied)
    assert again.finish(finish(message)) == [True]
    assert database.ledger.state("a") == _base.Row("a", 1, "done", None, b"done")
    assert take(again) == []


def test_next_requests_without_reply_are_requeued_unmarked(
    database: Database, proxy: tcp_proxy.Proxy, proxied: str
) -> None:
    """The reply to a finished request contained them; another connection had sent it."""
    worker, sender = database.open("w"), database.open("w", proxied)
    database.put(worker, "a")
    (message,) = take(worker)
    database.put(worker, "b")
    order = worker.prepare_take(10, ["q"])
    lose_reply(
        proxy,
        lambda: sender._finish(finish(message), order),
        lambda: database.ledger.state("b") == _base.Row("b", 1, "claimed", "w"),
    )
    assert order is not None
    worker.fail_taken(order)
    with pytest.raises(LOST):
        worker.refresh()
    worker.close()
    assert database.ledger.state("b") == _base.Row("b", 1, "open")
    waiting = "SELECT again FROM wbe_messages WHERE queue = 'q' AND consumer IS NULL"
    assert database.ask(waiting) == [(False,)]


def test_terminated_session_changes_nothing(database: Database) -> None:
    worker = database.open("w")
    database.put(worker, "a")
    (message,) = take(worker)
    before = database.ask("SELECT * FROM wbe_messages"), database.ledger.state("a")
    calls: list[Callable[[PostgreSQLBroker], Any]] = [
        lambda broker: broker.finish(finish(message)),
        lambda broker: broker.open_and_publish([("b", 1, False)], [Frame("", "q", 0, b"b?")]),
        lambda broker: broker.requeue(message),
        lambda broker: broker.settle_many([message]),
        lambda broker: broker.refuse(message),
    ]
    for call in calls:
        broker, message.token = database.open("w"), (worker._name, message.token[1])
        terminate(database, broker)
        with pytest.raises(LOST):
            call(broker)
        message.token = worker._name, before[0][0][0]
    assert (database.ask("SELECT * FROM wbe_messages"), database.ledger.state("a")) == before


# -- servers that refuse


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
    worker._vacuum(0.0)
    assert database.ledger.state("a") == _base.Row("a", 1, "done", None, b"done")


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
        lambda: engine.open_and_publish([("a", 1, False)], [Frame("", "q", 0, b"a?")]),
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
