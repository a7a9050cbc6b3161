"""Folder broker with a ledger: claims of received requests, results, and owned queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.seams.ledgers import make_heartbeat_older
from tests.seams.transports import Folder
from wbengine import exceptions
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based.ledger import _base, _directory
from wbengine.transports import _encoding, _filesystem, resolve
from wbengine.transports._broker import Consumer, Delivery, Finish, Frame

Opened = Callable[..., _filesystem.FileBroker]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def ledger(root: Path) -> Iterator[_directory.DirectoryLedger]:
    made = _directory.DirectoryLedger(str(root))
    yield made
    made.close()


@pytest.fixture
def opened(root: Path, ledger: _directory.DirectoryLedger) -> Iterator[Opened]:
    """Open a broker as this worker, or as an engine, with the queues `q` and `answers`."""
    made: list[_filesystem.FileBroker] = []

    def make(holder: str = "", **options: Any) -> _filesystem.FileBroker:
        claims = _directory.Claims(ledger.digest, holder) if holder else None
        store = _filesystem.FileBroker(str(root), str(root), None, claims=claims, **options)
        made.append(store)
        for queue in ("q", "answers"):
            store.declare_queue(queue)
        return store

    yield make
    for store in made:
        store.close()


def put(store: _filesystem.FileBroker, ledger: _base.Ledger, *ids: str, digest: str = "") -> None:
    for id in ids:
        headers = {"wbe-ledger": digest or ledger.digest, "wbe-epoch": 1}
        assert put_raw(store, _encoding.label(f"{id}?".encode(), headers, id))


def put_raw(store: _filesystem.FileBroker, data: bytes, queue: str = "q") -> bool:
    return next(store.publish_many([Frame("", queue, 0, data)]))


def take(store: _filesystem.FileBroker, most: int = 10) -> list[Delivery]:
    store.watch("q")
    store.refresh()
    found = [taken for _, taken in store.take_many([(most, ["q"])])]
    store.unwatch("q")
    return found


def answer(taken: Delivery, id: str) -> Finish:
    return Finish(id, 1, taken, Frame("", "answers", 0, id.encode(), b"!"))


def waiting(root: Path, queue: str = "answers") -> list[bytes]:
    return Folder(root).messages(queue)


def test_claim_after_long_pause_renews_heartbeat_of_worker(
    opened: Opened, root: Path, ledger: _directory.DirectoryLedger
) -> None:
    worker = opened("w")
    ledger.open("a", 1)
    ledger.renew("w")
    make_heartbeat_older(root, "w", 100)
    put(worker, ledger, "a")
    assert take(worker)[0].claim.granted
    silence = ledger.silence("w")
    assert silence is not None and silence < 50


def test_a_result_is_written_once(
    opened: Opened, root: Path, ledger: _directory.DirectoryLedger
) -> None:
    """The reply is read from its ledger row. If the row was removed, no reply is delivered."""
    worker = opened("w")
    ledger.open_many([("a", 1), ("b", 1)])
    put(worker, ledger, "a", "b")
    found = take(worker)
    worker.finish([answer(found[0], "a"), answer(found[1], "b")])
    assert Folder(root)._ask("SELECT result FROM request") == [(b"a!",), (b"b!",)]
    assert Folder(root)._ask("SELECT data FROM message") == [(None,), (None,)]
    assert waiting(root) == [b"a!", b"b!"]
    ledger.drop_many(["a", "b"])
    came: list[Any] = []
    Consumer(worker, came.append).consume(["answers"])
    with pytest.raises(TimeoutError):
        worker.drain(0.05)
    assert came == waiting(root) == Folder(root).rejected == []


def test_failed_finish_changes_nothing_and_can_be_repeated(
    opened: Opened,
    root: Path,
    ledger: _directory.DirectoryLedger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A result is never stored without its reply, and a reply never without its result."""
    worker = opened("w")
    ledger.open_many([(id, 1) for id in "abc"])
    put(worker, ledger, *"abc")
    found = take(worker)
    ended = [answer(taken, id) for taken, id in zip(found, "abc", strict=True)]
    # this reply cannot be written
    unwritable: Any = float("nan")
    ended[2] = ended[2]._replace(reply=Frame("", "answers", unwritable, b""))
    monkeypatch.setattr(_filesystem, "batches_of", lambda items, *others: [items])
    with pytest.raises(exceptions.TransportFailure):
        worker.finish(ended)
    assert waiting(root) == [] and len(waiting(root, "q")) == 3
    assert {row.state for row in ledger.list_rows().rows} == {"claimed"}
    ended[2] = answer(found[2], "c")
    assert worker.finish(ended) == [True, True, True]
    assert waiting(root) == [b"a!", b"b!", b"c!"] and waiting(root, "q") == []


def test_claims_are_attached_only_to_folder_transport(
    root: Path, ledger: _directory.DirectoryLedger
) -> None:
    target = resolve(f"filesystem://{root}", None, {})
    assert ledgers.attach_claims(ledger, target, "w")
    assert target.options["claims"].digest == ledger.digest
    memory = resolve("memory://claims", None, {})
    assert not ledgers.attach_claims(ledger, memory, "w") and "claims" not in memory.options


# Owned queues -------------------------------------------------------------------------------------


@pytest.mark.parametrize("inotify", [True, False])
def test_unsettled_message_of_owned_queue_is_delivered_once(
    opened: Opened, root: Path, inotify: bool
) -> None:
    store = opened(inotify=inotify)
    store.declare_queue("mine", owned=True)
    store.watch("mine")
    for data in (b"a", b"b", b"c"):
        put_raw(store, data, "mine")

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
    assert found() == [] and waiting(root, "mine") == [] and not store._read


def test_requeued_message_of_owned_queue_is_noticed_without_poll(opened: Opened) -> None:
    """The broker delivers the message before the next poll of the folder."""
    store = opened()
    store.declare_queue("mine", owned=True)
    store.watch("mine")
    put_raw(store, b"a", "mine")
    store.refresh()
    for delivered in (False, True, True):
        ((_, taken),) = store.take_many([(1, ["mine"])])
        store._next_poll_at = float("inf")
        store.requeue(taken, delivered=delivered)
        store.refresh()
    assert store.take_many([(1, ["mine"])])
