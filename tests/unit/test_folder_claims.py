"""Folder broker with a ledger: heartbeats, failed results, and owned queues."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.seams.ledgers import make_heartbeat_older
from tests.seams.requests import Requests
from tests.seams.transports import Folder
from wbengine import exceptions
from wbengine.transports._broker import Delivery, Frame

Connect = Callable[..., Requests]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def connect(root: Path) -> Iterator[Connect]:
    """Connect as the worker with this name, or as an engine."""
    with contextlib.ExitStack() as stack:

        def connected(name: str = "", **options: Any) -> Requests:
            made = Requests(f"filesystem://{root}", name, **options)
            return stack.enter_context(contextlib.closing(made))

        yield connected


def test_claim_after_long_pause_renews_heartbeat_of_worker(connect: Connect, root: Path) -> None:
    worker = connect("w")
    worker.ledger.renew("w")
    make_heartbeat_older(root, "w", 100)
    worker.open(("a", 1))
    (taken,) = worker.take()
    assert taken.claim is not None and taken.claim.granted
    silence = worker.ledger.silence("w")
    assert silence is not None and silence < 50


def test_heartbeat_stored_while_a_read_waits_is_not_silence(connect: Connect, root: Path) -> None:
    worker = connect("w")
    worker.ledger.renew("w")
    make_heartbeat_older(root, "w", -100)
    assert worker.ledger.silence("w") == 0


def test_a_result_is_written_once(connect: Connect, root: Path) -> None:
    """The reply is read from its ledger row."""
    worker = connect("w")
    worker.open(("a", 1))
    worker.finish((worker.take()[0], b"r"))
    ((result,),) = Folder(root)._ask("SELECT result FROM request")
    assert Folder(root)._ask("SELECT data FROM message") == [(None,)]
    assert Folder(root).messages("answers") == [result]


def test_failed_finish_changes_nothing_and_can_be_repeated(connect: Connect, root: Path) -> None:
    """A result is never stored without its reply, and a reply never without its result."""
    worker = connect("w")
    worker.open(("a", 1), ("b", 1), ("c", 1))
    batch = worker.batch(*((taken, b"r") for taken in worker.take()))
    unwritable: Any = float("nan")
    damaged = batch[2]._replace(reply=Frame("", "answers", unwritable, b""))
    with pytest.raises(exceptions.TransportFailure):
        worker.broker.finish([*batch[:2], damaged])
    assert Folder(root).messages("answers") == [] and len(Folder(root).messages("q")) == 3
    assert {row.state for row in worker.ledger.list_rows().rows} == {"claimed"}
    assert worker.broker.finish(batch) == [True, True, True]
    assert [id for id, _ in worker.answers()] == ["a", "b", "c"]
    assert Folder(root).messages("q") == []


# Owned queues -------------------------------------------------------------------------------------


@pytest.mark.parametrize("inotify", [True, False])
def test_unsettled_message_of_owned_queue_is_delivered_once(
    connect: Connect, root: Path, inotify: bool
) -> None:
    connection = connect(inotify=inotify)
    store = connection.broker
    store.declare_queue("mine", owned=True)
    store.watch("mine")
    for data in (b"a", b"b", b"c"):
        connection.publish_raw(data, "mine")

    def found() -> list[tuple[bytes, bool, Delivery]]:
        store._next_poll_at = 0.0
        store.refresh()
        return [(t.data, t.redelivered, t) for _, t in store.take_many([(9, ["mine"])])]

    first, second, third = found()
    assert [first[:2], second[:2], third[:2]] == [(b"a", False), (b"b", False), (b"c", False)]
    assert found() == []
    assert store.settle_many([first[2]]) and not store.settle_many([first[2]])
    store.requeue(second[2])
    store.requeue(third[2], delivered=False)
    again = found()
    assert [one[:2] for one in again] == [(b"b", True), (b"c", False)]
    store.discard(again[0][2], "it is damaged")
    assert store.settle_many([again[1][2]])
    assert found() == [] and Folder(root).messages("mine") == [] and not store._read


def test_reads_of_owned_queue_do_not_slow_down_with_unsettled_messages(connect: Connect) -> None:
    """If results are saved only at the end of a run, no reply is settled before."""
    connection = connect()
    store = connection.broker
    store.declare_queue("mine", owned=True)
    store.watch("mine")
    read: list[Delivery] = []
    steps: list[int] = []
    store._in._connection.set_progress_handler(lambda: steps.append(1), 100)

    def steps_of_read() -> int:
        connection.publish_raw(b"a", "mine")
        store._next_poll_at = 0.0
        store.refresh()
        steps.clear()
        read.extend(delivery for _, delivery in store.take_many([(9, ["mine"])]))
        return len(steps)

    counts = [steps_of_read() for _ in range(1000)]
    assert len({delivery.token[0] for delivery in read}) == len(read) == 1000
    assert max(counts[500:]) < 2 * max(counts[:200])
    assert store.settle_many(read) and steps_of_read() < max(counts)


def test_requeued_message_of_owned_queue_is_noticed_without_poll(connect: Connect) -> None:
    """The broker delivers the message before the next poll of the folder."""
    connection = connect()
    store = connection.broker
    store.declare_queue("mine", owned=True)
    store.watch("mine")
    connection.publish_raw(b"a", "mine")
    store.refresh()
    for delivered in (False, True, True):
        ((_, taken),) = store.take_many([(1, ["mine"])])
        store._next_poll_at = float("inf")
        store.requeue(taken, delivered=delivered)
        store.refresh()
    assert store.take_many([(1, ["mine"])])
