"""Histories of requests with rows, on each broker with its ledger."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.seams import requests
from tests.seams.requests import ANSWERS, Claim, Requests, Row
from tests.support.brokers import broker_url
from tests.support.servers import Databases
from tests.support.waiting import until

#: Connect as the worker with this name, or as an engine.
Connect = Callable[..., Requests]

MEGABYTE = 1 << 20
MAX_NAME = "n" * 120


#: Databases, which all tests share, because creating one is slow.
DATABASES = ("postgresql", "mysql")


@pytest.fixture(scope="module")
def database(database_servers: Databases) -> Iterator[Callable[[str], str]]:
    """Return the URL of a database on a server."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda kind: stack.enter_context(database_servers[kind].database()))


@pytest.fixture(params=requests.KINDS)
def url(request: pytest.FixtureRequest, database: Callable[[str], str], tmp_path: Path) -> str:
    if request.param in DATABASES:
        return database(request.param)
    return broker_url(request.param, request, tmp_path)


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    with contextlib.ExitStack() as stack:

        def connected(name: str = "") -> Requests:
            return stack.enter_context(contextlib.closing(Requests(url, name)))

        keeper = connected()  # A broker in memory exists as long as a connection.
        yield connected
        stack.pop_all().close()
        if url.startswith(DATABASES):
            with contextlib.closing(Requests(url)) as keeper:
                keeper.ledger.drop_many([*keeper.ledger.ids()])
                for queue in (requests.QUEUE, ANSWERS):
                    keeper.broker.purge(queue)


@pytest.fixture
def engine(connect: Connect) -> Requests:
    return connect()


@pytest.fixture
def worker(connect: Connect) -> Requests:
    return connect("w")


def granted(holder: str, epoch: int = 1) -> Claim:
    return Claim("GRANTED", epoch, None, holder)


def ids(messages: list[requests.Taken]) -> list[str]:
    return [message.id for message in messages]


# Open, take, finish -------------------------------------------------------------------------------


def test_request_is_taken_finished_and_answered(engine: Requests, worker: Requests) -> None:
    assert engine.open(("a", 1), body=b'{"n": 1}') == [1]
    assert engine.ledger.state("a") == Row("a", 1, "open")
    (taken,) = worker.take()
    assert (taken.id, taken.epoch, taken.body, taken.redelivered) == ("a", 1, b'{"n": 1}', False)
    assert taken.claim == granted("w")
    assert engine.ledger.state("a") == Row("a", 1, "claimed", "w")
    assert engine.ledger.silence("w") is not None
    assert worker.finish((taken, b"r")) == [True]
    assert engine.answers() == [("a", b"r")] and engine.result("a") == b"r"
    row = engine.ledger.state("a")
    assert row is not None and (row.state, row.holder) == ("done", None)
    assert worker.take() == []
    engine.ledger.drop("a")
    assert engine.ledger.state("a") is None


def test_request_without_queue_is_opened_and_reported(engine: Requests) -> None:
    assert engine.open(("a", 1), queue="missing") == [0]
    assert engine.ledger.state("a") == Row("a", 1, "open")


def test_requests_of_one_take_are_claimed_together(engine: Requests, worker: Requests) -> None:
    engine.ledger.open_many([("b", 2), ("c", 1), ("d", 1)])
    engine.ledger.claim("c", 1, "other")
    engine.ledger.claim("d", 1, "other")
    engine.ledger.finish("d", 1, "other", b"x" * 5000)
    engine.open(("a", 1))
    engine.publish(("b", 1), ("c", 1), ("d", 1), ("e", 1))
    claims = [taken.claim for taken in worker.take()]
    assert claims == [
        granted("w"),
        Claim("STALE", 2),
        Claim("HELD", 1, None, "other"),
        Claim("DONE", 1, b"x" * 5000),
        Claim("MISSING", 1),
    ]


def test_request_of_another_ledger_claims_nothing(engine: Requests, worker: Requests) -> None:
    engine.ledger.open("a", 1)
    engine.publish(("a", 1), digest="another")
    (taken,) = worker.receive()
    assert taken.claim is None and engine.ledger.state("a") == Row("a", 1, "open")


@pytest.mark.parametrize("label", [b"!", b"!a", b"!a 1", b"!a x %b", b"!\xff 1 %b", b"!a 1 %b 1"])
def test_malformed_label_claims_nothing(engine: Requests, worker: Requests, label: bytes) -> None:
    engine.ledger.open("a", 1)
    label = label.replace(b"%b", engine.ledger.digest.encode())
    worker.publish_raw(label + b"\nbody")
    worker.publish_raw(label)
    assert worker.receive_raw() == [(b"body", None), (b"", None)]
    assert engine.ledger.state("a") == Row("a", 1, "open")


def test_engine_claims_nothing(engine: Requests) -> None:
    engine.open(("a", 1))
    (taken,) = engine.receive()
    assert taken.claim is None and engine.ledger.state("a") == Row("a", 1, "open")
    engine.publish(("a", 1))
    (single,) = engine.receive(limit=1)
    assert single.claim is None


def test_events_before_a_result_are_delivered_before_it(engine: Requests, worker: Requests) -> None:
    engine.open(("a", 1))
    (taken,) = worker.take()
    for body in (b"first", b"second"):
        worker.send("a", body)
    worker.finish((taken, b"r"))
    assert engine.answers() == [("a", b"first"), ("a", b"second"), ("a", b"r")]


def test_queue_bound_late_receives_the_reply(engine: Requests, worker: Requests) -> None:
    """Another connection binds the queue after the worker has read the bindings."""
    engine.open(("a", 1), ("b", 1))
    first, second = worker.take()
    worker.finish((first, b"r"))
    engine.broker.declare_exchange("ex")
    engine.broker.declare_queue("late")
    engine.broker.bind("ex", "k", "late")
    assert worker.finish((second, b"s"), exchange="ex", key="k") == [True]
    assert engine.answers("late") == [("b", b"s")]


# Several takers -----------------------------------------------------------------------------------


def test_two_takers_share_requests_in_order(connect: Connect, engine: Requests) -> None:
    one, two = connect("one"), connect("two")
    names = [f"r{number}" for number in range(9)]
    engine.open(*((name, 1) for name in names))
    takes = [(taker, taker.take(limit=limit)) for taker, limit in ((one, 2), (two, 3), (one, 4))]
    assert [ids(messages) for _, messages in takes] == [names[:2], names[2:5], names[5:]]
    assert all(each.claim == granted(taker.name) for taker, took in takes for each in took)


def test_copy_of_a_request_is_held_and_then_done(connect: Connect, engine: Requests) -> None:
    one, two = connect("one"), connect("two")
    engine.open(("a", 1))
    (taken,) = one.take()
    engine.publish(("a", 1), ("a", 1))
    (held,) = two.take(limit=1)
    assert held.claim == Claim("HELD", 1, None, "one")
    one.finish((taken, b"r"))
    (done,) = two.take()
    assert done.claim is not None and done.claim.verdict == "DONE"
    assert done.claim.result is not None and done.claim.result.endswith(b"\nr")


def test_requeued_copy_leaves_row_to_its_owner(engine: Requests, worker: Requests) -> None:
    engine.open(("a", 1))
    engine.publish(("a", 1))
    first, copy = worker.take()
    assert (first.claim, copy.claim) == (granted("w"), Claim("HELD", 1, None, "w"))
    worker.undo(copy)
    assert engine.ledger.state("a") == Row("a", 1, "claimed", "w")


# Requeue, and order -------------------------------------------------------------------------------


def test_requeued_request_returns_to_its_place_and_is_held(
    connect: Connect, engine: Requests
) -> None:
    one, two = connect("one"), connect("two")
    engine.open(("a", 1), ("b", 1), ("c", 1))
    first, second = one.take(limit=2)
    one.requeue(second)
    one.requeue(first)
    again = two.take()
    assert ids(again) == ["a", "b", "c"]
    assert [each.redelivered for each in again] == [True, True, False]
    held = Claim("HELD", 1, None, "one")
    assert [each.claim for each in again] == [held, held, granted("two")]


def test_requeued_request_is_finished_by_its_owner(engine: Requests, worker: Requests) -> None:
    """A connection requeues its messages as it closes, while another one sends the results."""
    engine.open(("a", 1))
    (taken,) = worker.take()
    worker.requeue(taken)
    assert worker.finish((taken, b"r")) == [True]
    assert engine.answers() == [("a", b"r")] and engine.result("a") == b"r"
    (again,) = worker.take()
    assert again.claim is not None and again.claim.verdict == "DONE"


def test_undone_take_is_granted_to_next_worker(connect: Connect, engine: Requests) -> None:
    one, two = connect("one"), connect("two")
    engine.open(("a", 1), ("b", 1))
    first, second = one.take()
    one.undo(second)
    one.undo(first)
    assert engine.ledger.state("a") == Row("a", 1, "open")
    again = two.take()
    assert [(each.id, each.redelivered, each.claim) for each in again] == [
        ("a", False, granted("two")), ("b", False, granted("two")),
    ]  # fmt: skip


@pytest.mark.parametrize("end", [Requests.refuse, Requests.discard])
def test_deleted_request_leaves_its_row_open(
    engine: Requests, worker: Requests, end: Callable[[Requests, requests.Taken], None]
) -> None:
    engine.open(("a", 1))
    (taken,) = worker.take()
    end(worker, taken)
    assert engine.ledger.state("a") == Row("a", 1, "open") and worker.take() == []
    assert engine.publish(("a", 1)) == [1]
    assert worker.take()[0].claim == granted("w")


def test_priorities_precede_order_of_opening(engine: Requests, worker: Requests) -> None:
    for id, priority in (("a", 0), ("b", 9), ("c", 5), ("d", 9), ("e", 0)):
        engine.open((id, 1), priority=priority)
    (first,) = worker.take(limit=1)
    worker.requeue(first)
    assert ids(worker.take()) == ["b", "d", "c", "a", "e"]


# Loss of a holder, and higher epochs --------------------------------------------------------------


def test_request_of_dead_worker_runs_at_next_epoch(connect: Connect, engine: Requests) -> None:
    dying, other = connect("dying"), connect("other")
    engine.open(("a", 1), ("b", 1))
    first, _ = dying.take()
    dying.finish((first, b"r"))
    dying.die()
    other.notice_deaths()
    (again,) = other.take()
    assert (again.id, again.redelivered) == ("b", True)
    assert again.claim == Claim("HELD", 1, None, "dying")
    other.settle(again)
    assert engine.ledger.reopen_many([("a", 2), ("b", 2)])[1] is None and engine.result("a") == b"r"
    engine.publish(("b", 2))
    (taken,) = other.take()
    assert taken.claim == granted("other", 2)
    assert other.finish((taken, b"s")) == [True]
    assert engine.answers() == [("a", b"r"), ("b", b"s")]


def test_result_of_earlier_epoch_is_neither_stored_nor_sent(
    connect: Connect, engine: Requests
) -> None:
    one, two = connect("one"), connect("two")
    engine.open(*((id, 1) for id in "abcd"))
    taken = one.take()
    assert engine.ledger.reopen("b", 2) is None
    engine.ledger.drop("c")
    assert one.finish(*((each, each.id.encode()) for each in taken)) == [True, False, True, True]
    assert engine.answers() == [("a", b"a"), ("c", b"c"), ("d", b"d")]
    assert engine.ledger.state("b") == Row("b", 2, "open") and engine.ledger.state("c") is None
    for each in taken:  # The connection may close before it receives the end.
        with contextlib.suppress(Exception):
            one.requeue(each)
    assert two.take() == []


def test_earlier_claim_of_the_same_worker_has_no_effect(engine: Requests, worker: Requests) -> None:
    engine.open(("a", 1), ("b", 1))
    first, second = worker.take()
    engine.ledger.reopen_many([("a", 2), ("b", 2)])
    engine.publish(("a", 2), ("b", 2))
    again = worker.take()
    assert [each.claim for each in again] == [granted("w", 2)] * 2
    assert worker.finish((first, b"early")) == [False]
    worker.undo(second)
    assert engine.ledger.states(["a", "b"]) == [Row(id, 2, "claimed", "w") for id in "ab"]
    assert worker.finish(*((each, b"r") for each in again)) == [True, True]
    assert engine.answers() == [("a", b"r"), ("b", b"r")]


def test_request_of_another_epoch_is_not_run(engine: Requests, worker: Requests) -> None:
    engine.open(("a", 1))
    engine.ledger.reopen("a", 3)
    engine.publish(("a", 3), ("a", 4))
    claims = [taken.claim for taken in worker.take()]
    assert claims == [Claim("STALE", 3), granted("w", 3), Claim("MISSING", 3)]
    assert engine.ledger.state("a") == Row("a", 3, "claimed", "w")


def test_opened_request_replaces_only_open_row_of_lower_epoch(
    connect: Connect, engine: Requests, worker: Requests
) -> None:
    """The engine of the first epoch was frozen before it published, or has published."""
    engine.ledger.open("a", 1)
    engine.open(("b", 1), ("c", 1))
    claimed, done = worker.take()
    worker.finish((done, b"r"))
    engine.answers()
    successor = connect()
    assert successor.open(("a", 2), ("b", 2), ("c", 2), ("d", 2)) == [1] * 4
    assert [row and (row.epoch, row.state) for row in engine.ledger.states(["a", "b", "c"])] == [
        (2, "open"), (1, "claimed"), (1, "done"),
    ]  # fmt: skip
    verdicts = [(each.id, each.claim and each.claim.verdict) for each in worker.take()]
    assert verdicts == [("a", "GRANTED"), ("b", "MISSING"), ("c", "MISSING"), ("d", "GRANTED")]
    assert worker.finish((claimed, b"s")) == [True]


def test_request_that_is_opened_twice_in_one_step_runs_at_the_higher_epoch(
    engine: Requests, worker: Requests
) -> None:
    assert engine.open(("a", 1), ("a", 2), ("a", 2)) == [1, 1, 1]
    verdicts = [(each.epoch, each.claim and each.claim.verdict) for each in worker.take()]
    assert verdicts == [(1, "STALE"), (2, "GRANTED"), (2, "HELD")]


def test_frozen_run_below_its_fence_opens_nothing(engine: Requests, worker: Requests) -> None:
    frozen, current = (requests.Fence.of("flow", number) for number in (3, 4))
    engine.ledger.raise_fence(current)
    engine.open_again([engine.opening("a", 1, frozen), engine.opening("b", 1, current)])
    assert engine.ledger.states(["a", "b"]) == [None, Row("b", 1, "open")]
    assert [each.id for each in worker.take() if each.claim == granted("w")] == ["b"]


def test_revoked_request_is_not_run(engine: Requests, worker: Requests) -> None:
    engine.open(("a", 1), ("b", 1))
    assert engine.ledger.revoke("a") is True
    missing, taken = worker.take()
    assert (missing.claim, taken.claim) == (Claim("MISSING", 1), granted("w"))
    assert engine.ledger.revoke("b") is False


# Lost data ----------------------------------------------------------------------------------------


def test_reply_to_request_with_lost_row_is_sent(engine: Requests, worker: Requests) -> None:
    engine.open(("a", 1), ("b", 1))
    taken, _ = worker.take()
    engine.ledger.drop_many(["a", "b"])
    assert worker.finish((taken, b"r")) == [True]
    assert engine.answers() == [("a", b"r")] and engine.ledger.ids() == set()


def test_request_with_lost_message_runs_at_next_epoch(engine: Requests, worker: Requests) -> None:
    engine.open(("a", 1))
    assert engine.broker.purge(requests.QUEUE) == 1
    assert worker.take() == [] and engine.ledger.reopen("a", 2) is None
    engine.publish(("a", 2))
    assert worker.take()[0].claim == granted("w", 2)


# Results ------------------------------------------------------------------------------------------


def test_result_is_read_until_it_is_dropped(engine: Requests, worker: Requests) -> None:
    engine.open(("a", 1))
    (taken,) = worker.take()
    worker.finish((taken, b"r"))
    assert engine.answers() == [("a", b"r")] and engine.answers() == []
    stored = engine.ledger.reopen("a", 2)
    assert stored is not None and stored.endswith(b"\nr")
    assert stored == engine.ledger.reopen("a", 2) == engine.ledger.claim("a", 1, "w").result
    assert engine.result("a") == engine.result("a") == b"r"


def test_result_of_earlier_run_is_adopted_by_next_engine(
    connect: Connect, engine: Requests, worker: Requests
) -> None:
    engine.open(("a", 1), ("b", 1), ("c", 1))
    done, claimed = worker.take(limit=2)
    worker.finish((done, b"r"))
    engine.close()
    successor = connect()
    replies = successor.ledger.reopen_many([(id, 2) for id in "abc"])
    assert isinstance(replies[0], bytes) and replies[0].endswith(b"\nr")
    assert replies[1:] == [None, None]
    assert worker.finish((claimed, b"late")) == [False]
    successor.publish(("b", 2), ("c", 2))
    verdicts = [(each.id, each.epoch, each.claim and each.claim.verdict) for each in worker.take()]
    assert verdicts == [("c", 1, "STALE"), ("b", 2, "GRANTED"), ("c", 2, "GRANTED")]
    assert successor.result("a") == b"r"


@pytest.mark.parametrize("url", ["filesystem", *DATABASES], indirect=True)
def test_reply_of_dropped_row_is_not_delivered(engine: Requests, worker: Requests) -> None:
    """These stores write a result once, in its row."""
    engine.open(("a", 1), ("b", 1))
    worker.finish(*((taken, b"r") for taken in worker.take()))
    engine.ledger.drop_many(["a", "b"])
    assert engine.broker.size(ANSWERS) == 2 and engine.answers() == []
    assert engine.broker.size(ANSWERS) == 0


# Sizes and wake-ups -------------------------------------------------------------------------------


def test_bodies_of_16_megabytes_arrive(engine: Requests, worker: Requests) -> None:
    large = bytes(range(256)) * (16 * MEGABYTE // 256)
    engine.open(("a", 1), body=large)
    engine.open(("b", 1))
    taken = worker.take(limit=1) + worker.take(limit=1)
    assert ids(taken) == ["a", "b"] and taken[0].body == large
    assert worker.finish((taken[0], large)) == [True]
    assert engine.answers() == [("a", large)] and engine.result("a") == large


def test_names_of_maximum_length_are_kept(connect: Connect, engine: Requests) -> None:
    worker = connect(MAX_NAME)
    worker.broker.declare_queue(MAX_NAME)
    engine.open((MAX_NAME, 10**12), queue=MAX_NAME)
    (taken,) = worker.take(MAX_NAME)
    assert (taken.id, taken.claim) == (MAX_NAME, granted(MAX_NAME, 10**12))
    assert worker.finish((taken, b"r")) == [True] and engine.answers() == [(MAX_NAME, b"r")]


def test_open_and_finish_wake_their_receivers(url: str, connect: Connect) -> None:
    """MySQL has no notifications: its consumers poll."""
    with contextlib.nullcontext() if url.startswith("mysql") else requests.no_polling():
        engine, worker, helper = connect(), connect("w"), connect()
        for id in "abc":
            with waiting(worker, requests.QUEUE):
                helper.open((id, 1))
            (taken,) = worker.take()
            with waiting(engine, ANSWERS):
                worker.finish((taken, b"r"))
            assert engine.answers() == [(id, b"r")]


@contextlib.contextmanager
def waiting(connection: Requests, queue: str) -> Iterator[None]:
    """Wait in a thread for a message in the queue, which arrives during the block."""
    thread = threading.Thread(target=connection.wait, args=(queue,), daemon=True)
    thread.start()
    yield
    until(lambda: not thread.is_alive(), within=2)


@pytest.mark.parametrize("url", ["redis", *DATABASES], indirect=True)
def test_next_request_is_taken_in_the_step_that_finishes_one(
    connect: Connect, engine: Requests, worker: Requests
) -> None:
    writer = connect("w")
    engine.open(("a", 1), ("b", 1), ("c", 1))
    consumer, received = worker.consume(1)
    worker.broker.drain(60)
    with pytest.raises(TimeoutError):
        worker.broker.drain(0.01)
    order = consumer.order([received[0].delivery])
    assert order is not None
    assert writer.finish((received[0], b"r"), order=order) == [True]
    order.deliver()
    consumer.forget_many([received[0].delivery])
    assert [(each.id, each.claim) for each in received] == [
        ("a", granted("w")), ("b", granted("w")),
    ]  # fmt: skip
    assert engine.answers() == [("a", b"r")]
    assert engine.ledger.state("b") == Row("b", 1, "claimed", "w")
    assert writer.finish((received[1], b"r")) == [True]
    consumer.ack_many([received[1].delivery])
    worker.broker.drain(60)
    assert ids(received) == ["a", "b", "c"]


def test_request_in_one_folder_is_finished_with_its_reply_in_another(tmp_path: Path) -> None:
    """The engine reads replies in one folder and publishes requests in the other one."""
    replies, published = str(tmp_path / "replies"), str(tmp_path / "requests")
    with (
        contextlib.closing(
            Requests("filesystem://", data_folder_in=replies, data_folder_out=published)
        ) as engine,
        contextlib.closing(
            Requests("filesystem://", "w", data_folder_in=published, data_folder_out=replies)
        ) as worker,
    ):
        assert engine.open(("a", 1), ("b", 1)) == [1, 1]
        first, second = worker.take()
        assert (first.claim, second.claim) == (granted("w"), granted("w"))
        assert engine.ledger.reopen("b", 2) is None
        assert worker.finish((first, b"r"), (second, b"s")) == [True, False]
        assert engine.answers() == [("a", b"r")] and engine.result("a") == b"r"
        assert engine.ledger.state("b") == Row("b", 2, "open")
        assert worker.take() == []
