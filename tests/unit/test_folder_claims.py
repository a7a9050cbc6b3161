"""Folders: requests are claimed as they are taken and ended as they are answered; own queues."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.seams.ledgers import beaten
from tests.seams.transports import Folder
from wbengine import exceptions
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based.ledger import base, directory
from wbengine.transports import _envelope, filesystem, resolve
from wbengine.transports.broker import Consumer, Taken

Opened = Callable[..., filesystem.FileBroker]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def ledger(root: Path) -> Iterator[directory.DirectoryLedger]:
    made = directory.DirectoryLedger(str(root))
    yield made
    made.close()


@pytest.fixture
def opened(root: Path, ledger: directory.DirectoryLedger) -> Iterator[Opened]:
    """A store of a worker of this name, or of an engine, with queues `q` and `answers`."""
    made: list[filesystem.FileBroker] = []

    def make(holder: str = "", **options: Any) -> filesystem.FileBroker:
        claims = directory.Claims(ledger.digest, holder) if holder else None
        store = filesystem.FileBroker(str(root), str(root), None, claims=claims, **options)
        made.append(store)
        for queue in ("q", "answers"):
            store.declare_queue(queue)
        return store

    yield make
    for store in made:
        store.close()


def put(store: filesystem.FileBroker, ledger: base.Ledger, *ids: str, digest: str = "") -> None:
    for id in ids:
        headers = {"wbe-ledger": digest or ledger.digest, "wbe-epoch": 1}
        assert put_raw(store, _envelope.label(f"{id}?".encode(), headers, id))


def put_raw(store: filesystem.FileBroker, data: bytes, queue: str = "q") -> bool:
    return next(store.publish_many([("", queue, 0, data, b"")]))


def take(store: filesystem.FileBroker, most: int = 10) -> list[Taken]:
    store.watch("q")
    store.refresh()
    found = [taken for _, taken in store.take_many([(most, ["q"])])]
    store.unwatch("q")
    return found


def answer(taken: Taken, id: str) -> tuple[Any, Taken, Any]:
    return (id, 1), taken, ("", "answers", 0, id.encode(), b"!")


def waiting(root: Path, queue: str = "answers") -> list[bytes]:
    return Folder(root).messages(queue)


def verdicts(found: list[Taken]) -> list[str | None]:
    return [taken.claim and taken.claim.verdict for taken in found]


def test_what_is_taken_together_is_claimed_together(
    opened: Opened, ledger: directory.DirectoryLedger
) -> None:
    worker = opened("w")
    ledger.open_many([("a", 1), ("b", 2), ("c", 1), ("d", 1)])
    ledger.claim("c", 1, "other")
    ledger.claim("d", 1, "other")
    ledger.finish("d", 1, "other", b"x" * 5000)
    put(worker, ledger, *"abcde")
    put(worker, ledger, "a", digest="another")
    put_raw(worker, b"plain")
    found = take(worker)
    assert [taken.data for taken in found] == [
        b"a?", b"b?", b"c?", b"d?", b"e?", b"a?", b"plain",
    ]  # fmt: skip
    assert verdicts(found) == ["GRANTED", "STALE", "HELD", "DONE", "MISSING", None, None]
    assert found[2].claim.holder == "other" and found[3].claim.result == b"x" * 5000
    assert all(taken.at is not None for taken in found if taken.claim)
    assert ledger.state("a") == base.Row("a", 1, "claimed", "w")
    assert ledger.silence("w") is not None


def test_whoever_claims_after_a_long_rest_says_that_he_lives(
    opened: Opened, root: Path, ledger: directory.DirectoryLedger
) -> None:
    worker = opened("w")
    ledger.open("a", 1)
    ledger.renew("w")
    beaten(root, "w", 100)
    put(worker, ledger, "a")
    assert take(worker)[0].claim.granted
    silence = ledger.silence("w")
    assert silence is not None and silence < 50


@pytest.mark.parametrize("label", [b"!", b"!a", b"!a 1", b"!a x %b", b"!\xff 1 %b", b"!a 1 %b 1"])
def test_a_label_that_is_none_claims_nothing(
    opened: Opened, ledger: directory.DirectoryLedger, label: bytes
) -> None:
    worker = opened("w")
    ledger.open("a", 1)
    told = label.replace(b"%b", ledger.digest.encode())
    put_raw(worker, told + b"\nbody")
    put_raw(worker, told)
    assert [(taken.data, taken.claim) for taken in take(worker)] == [(b"body", None), (b"", None)]
    assert ledger.state("a") == base.Row("a", 1, "open")


def test_without_a_ledger_the_label_is_passed_over(
    opened: Opened, ledger: directory.DirectoryLedger
) -> None:
    engine = opened()
    ledger.open("a", 1)
    put(engine, ledger, "a")
    (taken,) = take(engine)
    assert (taken.data, taken.claim) == (b"a?", None)
    put(engine, ledger, "b")
    (single,) = take(engine, 1)
    assert (single.data, single.claim) == (b"b?", None)


def test_what_was_given_to_nobody_may_be_claimed_by_the_next(
    opened: Opened, ledger: directory.DirectoryLedger
) -> None:
    one, two = opened("one"), opened("two")
    ledger.open_many([("a", 1), ("b", 1)])
    put(one, ledger, "a", "b")
    first, second = take(one)
    one.give_back(first, delivered=False)
    one.discard(second, "it is damaged")
    assert ledger.state("b") == base.Row("b", 1, "open")
    (again,) = take(two)
    assert again.claim.granted and not again.again


def test_a_copy_that_is_given_back_leaves_the_row_to_whoever_runs_it(
    opened: Opened, ledger: directory.DirectoryLedger
) -> None:
    worker = opened("w")
    ledger.open("a", 1)
    put(worker, ledger, "a", "a")
    first, copy = take(worker)
    assert verdicts([first, copy]) == ["GRANTED", "HELD"]
    worker.give_back(copy, delivered=False)
    assert ledger.state("a") == base.Row("a", 1, "claimed", "w")


def test_an_end_is_stored_answered_and_acknowledged(
    opened: Opened, root: Path, ledger: directory.DirectoryLedger
) -> None:
    worker, writer = opened("w"), opened("w")
    ledger.open_many([("a", 1), ("b", 1), ("c", 1), ("d", 1)])
    put(worker, ledger, *"abcd")
    found = take(worker)
    ledger.reopen("b", 2)
    ledger.drop("c")
    counts, _ = writer.end_many([answer(t, id) for t, id in zip(found, "abcd", strict=True)])
    assert list(counts) == [1, -1, 1, 1]
    assert waiting(root) == [b"a!", b"c!", b"d!"]
    assert ledger.state("a") == base.Row("a", 1, "done", None, b"a!")
    assert ledger.state("b") == base.Row("b", 2, "open") and ledger.state("c") is None
    for taken in found:  # the connection is closed before it is told
        worker.give_back(taken)
        assert not worker.settle_many([taken])
    assert waiting(root, "q") == []


def test_a_result_is_written_once(
    opened: Opened, root: Path, ledger: directory.DirectoryLedger
) -> None:
    """The answer is read from its row; if that was read and removed before, nobody wants it."""
    worker = opened("w")
    ledger.open_many([("a", 1), ("b", 1)])
    put(worker, ledger, "a", "b")
    found = take(worker)
    worker.end_many([answer(found[0], "a"), answer(found[1], "b")])
    assert Folder(root)._ask("SELECT result FROM request") == [(b"a!",), (b"b!",)]
    assert Folder(root)._ask("SELECT data FROM message") == [(None,), (None,)]
    assert waiting(root) == [b"a!", b"b!"]
    ledger.drop_many(["a", "b"])
    came: list[Any] = []
    Consumer(worker, came.append).consume(["answers"])
    with pytest.raises(TimeoutError):
        worker.drain(0.05)
    assert came == waiting(root) == Folder(root).rejected == []


def test_an_end_that_failed_is_done_whole_another_time(
    opened: Opened,
    root: Path,
    ledger: directory.DirectoryLedger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of it, or nothing: neither a result without its answer, nor the other way round."""
    worker = opened("w")
    ledger.open_many([(id, 1) for id in "abc"])
    put(worker, ledger, *"abc")
    found = take(worker)
    ended = [answer(taken, id) for taken, id in zip(found, "abc", strict=True)]
    ended[2] = (*ended[2][:2], ("", "answers", float("nan"), b"", b""))  # it cannot be written
    monkeypatch.setattr(filesystem, "_portions", lambda items, laid_out: [items])
    with pytest.raises(exceptions.TransportFailure):
        worker.end_many(ended)
    assert waiting(root) == [] and len(waiting(root, "q")) == 3
    assert {row.state for row in ledger.list_rows().rows} == {"claimed"}
    ended[2] = answer(found[2], "c")
    assert list(worker.end_many(ended)[0]) == [1, 1, 1]
    assert waiting(root) == [b"a!", b"b!", b"c!"] and waiting(root, "q") == []


def test_whoever_dies_before_its_end_is_told_of_leaves_nothing_to_be_done_twice(
    opened: Opened, root: Path, ledger: directory.DirectoryLedger
) -> None:
    dying, other = opened("dying"), opened("other")
    ledger.open_many([("a", 1), ("b", 1)])
    put(dying, ledger, "a", "b")
    first, _ = take(dying)
    dying.end_many([answer(first, "a")])
    assert dying._holder is not None
    dying._holder.abandon()
    other._sweep_dead()
    (again,) = take(other)
    assert again.again and again.claim == base.Claim("HELD", 1, None, "dying")
    assert ledger.state("a") == base.Row("a", 1, "done", None, b"a!")


def test_queue_that_is_bound_late_gets_the_answer(
    opened: Opened, root: Path, ledger: directory.DirectoryLedger
) -> None:
    """By another connection, after who answers had looked where answers go."""
    worker, engine = opened("w"), opened()
    ledger.open_many([("a", 1), ("b", 1)])
    put(worker, ledger, "a", "b")
    first, second = take(worker)
    worker.end_many([answer(first, "a")])
    engine.declare_queue("late")
    engine.bind("ex", "k", "late")
    counts, _ = worker.end_many([(("b", 1), second, ("ex", "k", 0, b"b", b"!"))])
    assert list(counts) == [1] and waiting(root, "late") == [b"b!"]


def test_only_folders_claim_for_a_ledger_in_a_folder(
    root: Path, ledger: directory.DirectoryLedger
) -> None:
    target = resolve(f"filesystem://{root}", None, {})
    assert ledgers.fuse(ledger, target, "w") and target.options["claims"].digest == ledger.digest
    memory = resolve("memory://claims", None, {})
    assert not ledgers.fuse(ledger, memory, "w") and "claims" not in memory.options


# Queues of one's own. ----------------------------------------------------------------------------


@pytest.mark.parametrize("inotify", [True, False])
def test_what_is_held_of_an_own_queue_is_delivered_once(
    opened: Opened, root: Path, inotify: bool
) -> None:
    store = opened(inotify=inotify)
    store.declare_queue("mine", owned=True)
    store.watch("mine")
    for data in (b"a", b"b", b"c"):
        put_raw(store, data, "mine")

    def found() -> list[tuple[bytes, bool, Taken]]:
        store._look_at = 0.0
        store.refresh()
        return [(t.data, t.again, t) for _, t in store.take_many([(9, ["mine"])])]

    first, second, third = found()
    assert [first[:2], second[:2], third[:2]] == [(b"a", False), (b"b", False), (b"c", False)]
    assert found() == []
    assert store.settle_many([first[2]]) and not store.settle_many([first[2]])
    store.give_back(second[2])
    store.give_back(third[2], delivered=False)
    again = found()
    assert [one[:2] for one in again] == [(b"b", True), (b"c", False)]
    store.discard(again[0][2], "it is damaged")
    assert store.settle_many([again[1][2]])
    assert found() == [] and waiting(root, "mine") == [] and not store._read


def test_what_goes_back_to_an_own_queue_is_told_of(opened: Opened) -> None:
    """Without another look at the folder, which may be half a minute away."""
    store = opened()
    store.declare_queue("mine", owned=True)
    store.watch("mine")
    put_raw(store, b"a", "mine")
    store.refresh()
    for delivered in (False, True, True):
        ((_, taken),) = store.take_many([(1, ["mine"])])
        store._look_at = float("inf")
        store.give_back(taken, delivered=delivered)
        store.refresh()
    assert store.take_many([(1, ["mine"])])
