"""Brokers with a ledger at the same place: claims of received requests, and their results."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.seams.transports import Folder
from tests.support.servers import Databases
from wbengine._text import data_formats
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based.ledger import _base
from wbengine.transports import _encoding, resolve
from wbengine.transports._broker import Broker, Consumer, Delivery, Finish, Frame
from wbengine.transports._filesystem import FileBroker
from wbengine.transports._sql_broker import SQLBroker

#: Kinds of databases that are brokers.
SERVERS = ("postgresql", "mysql")


class Place:
    """A place with a ledger, and connections of workers and engines to it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder
        self._stack = contextlib.ExitStack()
        opened = ledgers.for_target(resolve(url))
        assert opened is not None
        self.ledger = opened
        self._stack.callback(self.ledger.close)

    def open(self, holder: str = "") -> Broker:
        """Connect as this worker, or as an engine, with the queues `q` and `answers`."""
        target = resolve(self.url, None, {})
        assert ledgers.attach_claims(self.ledger if holder else None, target, holder) is bool(
            holder
        )
        broker = target.open()
        self._stack.callback(broker.close)
        for queue in ("q", "answers"):
            broker.declare_queue(queue)
        return broker

    @property
    def headers(self) -> dict[str, object]:
        return {"wbe-ledger": self.ledger.digest, "wbe-epoch": 1}

    def put(self, broker: Broker, *ids: str, digest: str = "") -> None:
        for id in ids:
            headers = {**self.headers, **({"wbe-ledger": digest} if digest else {})}
            assert put_raw(broker, _encoding.label(f"{id}?".encode(), headers, id))

    def waiting(self, queue: str = "answers") -> list[bytes]:
        """Return the data of the messages that wait in a queue."""
        if self.url.startswith("filesystem"):
            return Folder(self._folder).messages(queue)
        engine = self.open()
        assert isinstance(engine, SQLBroker)
        rows = engine._run(
            "SELECT coalesce(data, (SELECT result FROM wbe_ledger WHERE id = result_of))"
            " FROM wbe_messages WHERE queue = %(queue)s AND coalesce(consumer, '') = ''"
            " ORDER BY place, n",
            {"queue": queue},
        )
        return [data for (data,) in rows]

    def bury(self, dead: Broker, other: Broker) -> None:
        """Let the other connection notice the death of a process."""
        if isinstance(dead, FileBroker) and isinstance(other, FileBroker):
            assert dead._liveness_file is not None
            dead._liveness_file.abandon()
            other._sweep_dead()
            return
        assert isinstance(dead, SQLBroker) and isinstance(other, SQLBroker)
        other._run("UPDATE wbe_consumers SET beat = 0 WHERE name = %(name)s", {"name": dead._name})
        other._sweep()

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(params=["filesystem", *SERVERS])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, database_servers: Databases
) -> Iterator[Place]:
    with contextlib.ExitStack() as stack:
        if request.param in SERVERS:
            server = database_servers[request.param]
            url = stack.enter_context(server.database())
        else:
            url = f"filesystem://{tmp_path}/root"
        yield stack.enter_context(contextlib.closing(Place(url, tmp_path / "root")))


@pytest.fixture
def ledger(place: Place) -> _base.Ledger:
    return place.ledger


def put_raw(broker: Broker, data: bytes, queue: str = "q") -> bool:
    return next(iter(broker.publish_many([Frame("", queue, 0, data)])))


def whole(id: str, headers: dict[str, object]) -> bytes:
    """Return a complete request, which consumers can parse."""
    head = {
        "v": data_formats.MESSAGE.written, "exchange": "", "routing_key": "q", "size": 0,
        "properties": {"correlation_id": id}, "headers": headers,
    }  # fmt: skip
    return _encoding.label(json.dumps(head).encode() + b"\n", headers, id)


def take(broker: Broker, most: int = 10) -> list[Delivery]:
    broker.watch("q")
    broker.refresh()
    found = [taken for _, taken in broker.take_many([(most, ["q"])])]
    broker.unwatch("q")
    return found


def answer(taken: Delivery, id: str) -> Finish:
    return Finish(id, 1, taken, Frame("", "answers", 0, id.encode(), b"!"))


def verdicts(found: list[Delivery]) -> list[str | None]:
    return [taken.claim and taken.claim.verdict for taken in found]


def test_messages_of_one_batch_are_claimed_together(place: Place, ledger: _base.Ledger) -> None:
    worker = place.open("w")
    ledger.open_many([("a", 1), ("b", 2), ("c", 1), ("d", 1)])
    ledger.claim("c", 1, "other")
    ledger.claim("d", 1, "other")
    ledger.finish("d", 1, "other", b"x" * 5000)
    place.put(worker, *"abcde")
    place.put(worker, "a", digest="another")
    put_raw(worker, b"plain")
    found = take(worker)
    assert [taken.data for taken in found] == [
        b"a?", b"b?", b"c?", b"d?", b"e?", b"a?", b"plain",
    ]  # fmt: skip
    assert verdicts(found) == ["GRANTED", "STALE", "HELD", "DONE", "MISSING", None, None]
    assert found[2].claim.holder == "other" and found[3].claim.result == b"x" * 5000
    assert all(taken.taken_at is not None for taken in found if taken.claim)
    assert ledger.state("a") == _base.Row("a", 1, "claimed", "w")
    assert ledger.silence("w") is not None


@pytest.mark.parametrize("label", [b"!", b"!a", b"!a 1", b"!a x %b", b"!\xff 1 %b", b"!a 1 %b 1"])
def test_malformed_label_claims_nothing(place: Place, ledger: _base.Ledger, label: bytes) -> None:
    worker = place.open("w")
    ledger.open("a", 1)
    told = label.replace(b"%b", ledger.digest.encode())
    put_raw(worker, told + b"\nbody")
    put_raw(worker, told)
    assert [(taken.data, taken.claim) for taken in take(worker)] == [(b"body", None), (b"", None)]
    assert ledger.state("a") == _base.Row("a", 1, "open")


def test_label_is_ignored_without_ledger(place: Place, ledger: _base.Ledger) -> None:
    engine = place.open()
    ledger.open("a", 1)
    place.put(engine, "a")
    (taken,) = take(engine)
    assert (taken.data, taken.claim) == (b"a?", None)
    place.put(engine, "b")
    (single,) = take(engine, 1)
    assert (single.data, single.claim) == (b"b?", None)


def test_undelivered_message_can_be_claimed_by_next_worker(
    place: Place, ledger: _base.Ledger
) -> None:
    one, two = place.open("one"), place.open("two")
    ledger.open_many([("a", 1), ("b", 1)])
    place.put(one, "a", "b")
    first, second = take(one)
    one.requeue(first, delivered=False)
    one.discard(second, "it is damaged")
    assert ledger.state("b") == _base.Row("b", 1, "open")
    (again,) = take(two)
    assert again.claim.granted and not again.redelivered


def test_requeued_copy_leaves_row_to_its_owner(place: Place, ledger: _base.Ledger) -> None:
    worker = place.open("w")
    ledger.open("a", 1)
    place.put(worker, "a", "a")
    first, copy = take(worker)
    # None: the worker claims the row in a step of its own.
    assert verdicts([first, copy]) in (["GRANTED", "HELD"], ["GRANTED", None])
    worker.requeue(copy, delivered=False)
    assert ledger.state("a") == _base.Row("a", 1, "claimed", "w")


def test_finish_stores_results_sends_replies_and_acknowledges(
    place: Place, ledger: _base.Ledger
) -> None:
    worker, writer = place.open("w"), place.open("w")
    ledger.open_many([("a", 1), ("b", 1), ("c", 1), ("d", 1)])
    place.put(worker, *"abcd")
    found = take(worker)
    ledger.reopen("b", 2)
    ledger.drop("c")
    finished = writer.finish([answer(t, id) for t, id in zip(found, "abcd", strict=True)])
    assert finished == [True, False, True, True]
    assert place.waiting() == [b"a!", b"c!", b"d!"]
    assert ledger.state("a") == _base.Row("a", 1, "done", None, b"a!")
    assert ledger.state("b") == _base.Row("b", 2, "open") and ledger.state("c") is None
    for taken in found:  # simulates a connection that closes before it is notified
        worker.requeue(taken)
        assert not worker.settle_many([taken])
    assert place.waiting("q") == []


def test_finished_request_of_dead_worker_is_not_granted_again(
    place: Place, ledger: _base.Ledger
) -> None:
    dying, other = place.open("dying"), place.open("other")
    ledger.open_many([("a", 1), ("b", 1)])
    place.put(dying, "a", "b")
    first, _ = take(dying)
    dying.finish([answer(first, "a")])
    place.bury(dying, other)
    (again,) = take(other)
    assert again.redelivered and again.claim == _base.Claim("HELD", 1, None, "dying")
    assert ledger.state("a") == _base.Row("a", 1, "done", None, b"a!")


def test_queue_bound_late_receives_the_reply(place: Place, ledger: _base.Ledger) -> None:
    """Another connection binds the queue after the worker has read the bindings."""
    worker, engine = place.open("w"), place.open()
    ledger.open_many([("a", 1), ("b", 1)])
    place.put(worker, "a", "b")
    first, second = take(worker)
    worker.finish([answer(first, "a")])
    engine.declare_queue("late")
    engine.bind("ex", "k", "late")
    finished = worker.finish([Finish("b", 1, second, Frame("ex", "k", 0, b"b", b"!"))])
    assert finished == [True] and place.waiting("late") == [b"b!"]


def test_reply_is_read_from_its_row(place: Place, ledger: _base.Ledger) -> None:
    """A result is written once. If the row was removed, no reply is delivered."""
    worker = place.open("w")
    ledger.open_many([("a", 1), ("b", 1)])
    place.put(worker, "a", "b")
    found = take(worker)
    worker.finish([answer(taken, id) for taken, id in zip(found, "ab", strict=True)])
    assert place.waiting() == [b"a!", b"b!"]
    ledger.drop_many(["a", "b"])
    came: list[Delivery] = []
    Consumer(worker, came.append).consume(["answers"])
    with pytest.raises(TimeoutError):
        worker.drain(0.05)
    assert came == place.waiting() == []


def test_opened_request_is_published_and_claimed_once(place: Place, ledger: _base.Ledger) -> None:
    """A second attempt follows a first one without a reply."""
    target = resolve(place.url, None, {})
    openings = ledger.openings(target.place)
    if openings is None:
        pytest.skip("rows are opened separately")
    engine, worker = place.open(), place.open("w")
    row = _base.Opening("a", 1)
    frames = [Frame("", "q", 0, _encoding.label(b"a?", place.headers, "a"))]
    unrouted = [Frame("", "missing", 0, b"b?")]
    assert openings.open_and_publish(engine, [row], frames) == [1]
    assert openings.open_and_publish(engine, [_base.Opening("b", 1)], unrouted) == [0]
    row.tried = True
    assert openings.open_and_publish(engine, [row], frames) == [1]
    (taken,) = take(worker)
    assert taken.claim.granted and taken.data == b"a?"
    assert ledger.state("b") == _base.Row("b", 1, "open")


def test_claims_are_attached_only_to_transport_at_the_same_place(place: Place) -> None:
    memory = resolve("memory://claims", None, {})
    assert not ledgers.attach_claims(place.ledger, memory, "w") and "claims" not in memory.options


@pytest.mark.parametrize("place", SERVERS, indirect=True)
def test_messages_of_take_without_reply_are_requeued_as_not_taken(
    place: Place, ledger: _base.Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = place.open("one"), place.open("two")
    assert isinstance(one, SQLBroker)
    ledger.open_many([("a", 1), ("b", 1)])
    place.put(one, "a", "b")
    (delivered,) = take(one, 1)
    assert delivered.claim.granted
    one.refresh()
    one.watch("q")
    run = one._run
    error = one.recoverable_connection_errors[0]

    def lose(*arguments: Any) -> None:
        run(*arguments)
        raise error("the connection is lost")

    monkeypatch.setattr(one, "_run", lose)
    with pytest.raises(error):
        one.take_many([(9, ["q"])])
    monkeypatch.undo()
    one.close()
    (again, fresh) = take(two)
    assert (again.redelivered, again.claim.verdict) == (True, "HELD")
    assert (fresh.redelivered, fresh.claim.verdict) == (False, "GRANTED")


@pytest.mark.parametrize("place", SERVERS, indirect=True)
def test_next_request_is_taken_in_the_step_that_finishes_one(
    place: Place, ledger: _base.Ledger
) -> None:
    worker, writer = place.open("w"), place.open("w")
    ledger.open_many([(id, 1) for id in "abc"])
    for id in "abc":
        assert put_raw(worker, whole(id, place.headers))
    came: list[Delivery] = []
    consumer = Consumer(worker, came.append)
    consumer.consume(["q"], 1)
    worker.drain(60)
    with pytest.raises(TimeoutError):
        worker.drain(0.01)
    order = consumer.order(came)
    assert order is not None
    assert writer.finish([answer(came[0], "a")], order) == [True]
    order.deliver()
    consumer.forget_many(came[:1])
    assert [(each.properties["correlation_id"], each.claim.granted) for each in came] == [
        ("a", True), ("b", True),
    ]  # fmt: skip
    assert place.waiting() == [b"a!"] and ledger.state("b") == _base.Row("b", 1, "claimed", "w")
    assert writer.finish([answer(came[1], "b")]) == [True]
    consumer.ack_many(came[1:])
    worker.drain(60)
    assert len(came) == 3
