"""Transports through PostgreSQL and MySQL: lost connections, and consumers that die."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support import forks, servers, sql_ends, tcp_proxy
from tests.support.sql_ends import Database, finish, publish, take
from tests.support.waiting import until
from wbengine.transports import _encoding, _ledger
from wbengine.transports._broker import Frame
from wbengine.transports._sql.sql_broker import SQLBroker


@pytest.fixture(params=["postgresql", "mysql"])
def database(
    request: pytest.FixtureRequest, database_servers: servers.Databases
) -> Iterator[Database]:
    with sql_ends.new_database(database_servers[request.param]) as database:
        yield database


class Lossy:
    """A database behind a proxy that loses replies."""

    def __init__(self, database: Database, proxy: tcp_proxy.Proxy) -> None:
        self.database, self.proxy = database, proxy
        self._url = database.url.replace(f":{database.server.port}/", f":{proxy.port}/")

    def open(self, holder: str = "") -> SQLBroker:
        return self.database.open(holder, self._url)

    def lose_commit(self, broker: SQLBroker) -> None:
        """Lose the reply to the commit of the next transaction."""
        driver: Any = broker._session._driver
        if broker.place.dialect == "postgresql":  # The statement is the transaction.
            self.proxy.lose("to-client")
            return
        commit = driver.commit

        def lose() -> None:
            self.proxy.lose("to-client")
            commit()

        driver.commit = lose

    def call(self, broker: SQLBroker, call: Callable[[], Any], done: Callable[[], Any]) -> None:
        """Call, and cut the connection when its effect is `done` and its reply was discarded."""
        self.lose_commit(broker)
        with ThreadPoolExecutor(1) as pool:
            calling = pool.submit(call)
            until(done)
            self.proxy.cut()
            with pytest.raises(broker.recoverable_connection_errors):
                calling.result()


@pytest.fixture
def lossy(database: Database) -> Iterator[Lossy]:
    with tcp_proxy.threaded(database.server.port) as proxy:
        yield Lossy(database, proxy)


def terminate(database: Database, broker: SQLBroker) -> None:
    """End the session of a connection, and wait until it has ended."""
    identity = broker._session._identity
    until(lambda: not database.open()._session._kill(identity))


def test_message_of_unknown_queue_is_deleted_by_hourly_sweep(database: Database) -> None:
    """A queue may be deleted while a message is published to it."""
    broker = database.open()
    for queue, age in ("q", 9999), ("deleted", 9999), ("deleted", 1):
        database.ask(
            f"INSERT INTO wbe_messages(queue, place, at) SELECT %s, 0, {broker.sql.NOW} - %s",
            queue, age,
        )  # fmt: skip
    database.ask("UPDATE wbe_transport SET swept = 0")
    broker._sweep_queues(0.0)
    assert database.ask("SELECT queue FROM wbe_messages ORDER BY n") == [("q",), ("deleted",)]


def lose_take(lossy: Lossy, worker: SQLBroker) -> None:
    """Let the worker take `a`, and lose the reply and the server."""
    worker.watch("q")
    worker.refresh()
    with ThreadPoolExecutor(1) as pool:
        lossy.lose_commit(worker)
        taking = pool.submit(worker.take_many, [(10, ["q"])])
        until(lambda: lossy.database.messages()[0][0])
        assert lossy.database.ledger.state("a") == _ledger.Row("a", 1, "claimed", "w")
        lossy.proxy.refuse()
        lossy.proxy.cut()
        with pytest.raises(worker.recoverable_connection_errors):
            taking.result()


def test_take_during_outage_is_undone_by_next_connection(database: Database, lossy: Lossy) -> None:
    """The holder lives, so no other consumer would release the row."""
    database.put(database.open(), "a")
    worker = lossy.open("w")
    lose_take(lossy, worker)
    worker.close()
    assert database.messages()[0][0]
    lossy.proxy.accept()
    lossy.open("w")
    assert database.messages() == [(None, False)]
    assert database.ledger.state("a") == _ledger.Row("a", 1, "open")


def be_silent(database: Database, seconds: float) -> None:
    """Let all consumers and workers be silent for some time."""
    database.ask("UPDATE wbe_consumers SET beat = beat - %s", seconds)
    database.ask("UPDATE wbe_ledger_holders SET beat = beat - %s", seconds)


def test_take_is_undone_after_a_silence_of_the_worker(database: Database, lossy: Lossy) -> None:
    """Otherwise its task would fail with WorkerLost, although no worker received it."""
    other = database.open()
    database.put(other, "a")
    worker = lossy.open("w")
    lose_take(lossy, worker)
    worker.close()
    be_silent(database, 300)
    other._sweep()
    assert database.ask("SELECT 1 FROM wbe_consumers WHERE name = %s", worker._name) == []
    lossy.proxy.accept()
    lossy.open("w")
    assert database.messages() == [(None, False)]
    assert database.ledger.state("a") == _ledger.Row("a", 1, "open")


def test_undelivered_request_is_undone_after_its_consumer_was_renamed(database: Database) -> None:
    """A frozen worker is treated as dead, and continues under another name."""
    worker, other = database.open("w"), database.open()
    database.put(other, "a", "b", "c")
    delivered, undelivered, late = take(worker)
    be_silent(database, 300)
    other._sweep()
    former_name, worker._next_report_at = worker._name, 0.0
    worker.refresh()
    assert worker._name != former_name
    assert worker.settle_many([delivered]) is True
    worker.requeue(undelivered, delivered=False)
    assert database.ledger.state("b") == _ledger.Row("b", 1, "open")
    worker._undelivered.add(late.token[1])
    worker.close()
    assert database.messages() == [(None, False)] * 2
    assert database.ledger.state("c") == _ledger.Row("c", 1, "open")


@pytest.mark.parametrize("change", ["dead", "reopened", "done", "dropped"])
def test_claimed_request_stays_until_worker_is_dead_or_row_changes(
    database: Database, change: str
) -> None:
    worker, other = database.open("w"), database.open()
    database.put(other, "a")
    take(worker)
    be_silent(database, 300)
    other._sweep()
    assert database.messages() == [(worker._name, False)]
    if change == "dead":
        be_silent(database, 301)
    elif change == "reopened":
        database.ledger.reopen("a", 2)
        assert database.ledger.claim("a", 2, "other").granted
    elif change == "done":
        assert database.ledger.finish("a", 1, "w", b"lost")
    else:
        database.ledger.drop("a")
    other._sweep()
    assert database.messages() == [(None, True)]


def test_close_after_end_of_session_logs_no_error(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLAlchemy would log that a rollback failed, with a traceback."""
    broker = database.open()
    terminate(database, broker)
    broker.close()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_threads_can_reconnect_at_the_same_moment(database: Database) -> None:
    """Each new connection ends the sessions that were lost, as long as they are registered."""
    session_type = database.open().session_type
    for _ in range(4):
        database.open()._session._note_loss()
    barrier = threading.Barrier(8)

    def connect() -> None:
        barrier.wait()
        session_type(database.place).close()

    with ThreadPoolExecutor(8) as pool:
        for connected in [pool.submit(connect) for _ in range(8)]:
            connected.result()


@pytest.mark.slow
def test_child_process_does_not_end_consumer_of_its_parent(database: Database) -> None:
    worker = database.open("w")
    database.put(worker, "a")
    (message,) = take(worker)
    assert forks.answer_of_fork(worker.close) == "None"
    assert worker.settle_many([message]) is True


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


def test_consumer_that_died_before_the_clock_was_set_back_is_dead(database: Database) -> None:
    """A failover may change the clock of the server."""
    worker, other = database.open("w"), database.open()
    database.put(worker, "a")
    take(worker)
    other.refresh()
    database.ask("UPDATE wbe_consumers SET beat = beat + 3600")
    database.ask("UPDATE wbe_ledger_holders SET beat = beat + 3600")
    other._next_report_at = 0.0
    other.refresh()  # This postpones the sweep, so that others can report.
    assert len(database.messages()) == 1 and database.messages()[0][0] == worker._name
    other._sweep()
    assert database.messages() == [(None, True)]
    silence = database.ledger.silence("w")
    assert silence is not None and silence > 3000


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


def test_request_opened_without_reply_is_published_once(database: Database, lossy: Lossy) -> None:
    headers = {"wbe-ledger": database.ledger.digest, "wbe-epoch": 1}
    rows = [_ledger.Opening("a", 1)]
    frames = [Frame("", "q", 0, _encoding.label(b"a?", headers, "a"))]
    engine = lossy.open()
    assert publish(engine, b"x", "answers")  # This reads the routing.
    lossy.call(
        engine, lambda: engine.open_and_publish(rows, frames), lambda: database.ledger.state("a")
    )
    assert database.open().open_and_publish(rows, frames) == [1]
    (message,) = take(database.open("w"))
    assert message.claim.granted and message.data == b"a?"


def test_message_requeued_without_reply_is_requeued_once(database: Database, lossy: Lossy) -> None:
    worker = lossy.open("w")
    database.put(worker, "a")
    (message,) = take(worker)
    lossy.call(
        worker, lambda: worker.requeue(message), lambda: database.messages() == [(None, True)]
    )
    worker.close()
    assert database.messages() == [(None, True)]


def test_result_without_reply_can_be_finished_again(database: Database, lossy: Lossy) -> None:
    worker = lossy.open("w")
    database.put(worker, "a")
    (message,) = take(worker)
    lossy.call(
        worker,
        lambda: worker.finish(finish(message)),
        lambda: database.ledger.state("a") == _ledger.Row("a", 1, "done", None, b"done"),
    )
    worker.close()
    again = lossy.open("w")
    assert again.finish(finish(message)) == [True]
    assert database.ledger.state("a") == _ledger.Row("a", 1, "done", None, b"done")
    assert take(again) == []


def test_next_requests_without_reply_are_requeued_unmarked(
    database: Database, lossy: Lossy
) -> None:
    """The reply to a finished request contained them; another connection had sent it."""
    worker, sender = database.open("w"), lossy.open("w")
    database.put(worker, "a")
    (message,) = take(worker)
    database.put(worker, "b")
    order = worker.prepare_take(10, ["q"])
    lossy.call(
        sender,
        lambda: sender._finish(finish(message), order),
        lambda: database.ledger.state("b") == _ledger.Row("b", 1, "claimed", "w"),
    )
    assert order is not None
    worker.fail_taken(order)
    with pytest.raises(worker.recoverable_connection_errors):
        worker.refresh()
    worker.close()
    assert database.ledger.state("b") == _ledger.Row("b", 1, "open")
    waiting = "SELECT again FROM wbe_messages WHERE queue = 'q' AND coalesce(consumer, '') = ''"
    assert database.ask(waiting) == [(False,)]


def test_terminated_session_changes_nothing(database: Database) -> None:
    worker = database.open("w")
    database.put(worker, "a")
    (message,) = take(worker)
    before = database.ask("SELECT * FROM wbe_messages"), database.ledger.state("a")
    calls: list[Callable[[SQLBroker], Any]] = [
        lambda broker: broker.finish(finish(message)),
        lambda broker: broker.open_and_publish(
            [_ledger.Opening("b", 1)], [Frame("", "q", 0, b"b?")]
        ),
        lambda broker: broker.requeue(message),
        lambda broker: broker.settle_many([message]),
        lambda broker: broker.refuse(message),
    ]
    for call in calls:
        broker, message.token = database.open("w"), (worker._name, message.token[1])
        terminate(database, broker)
        with pytest.raises(broker.recoverable_connection_errors):
            call(broker)
        message.token = worker._name, before[0][0][0]
    assert (database.ask("SELECT * FROM wbe_messages"), database.ledger.state("a")) == before
