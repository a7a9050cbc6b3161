"""The thread in which an executor writes to its ledger."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from tests.support.workers import until
from tests.unit.trackers import Fleet
from wbengine import exceptions
from wbengine.engines.worker_based._engine_side.ledger_operations import LedgerWriter
from wbengine.engines.worker_based._engine_side.locked_tracker import FlowGuards, LockedTracker
from wbengine.engines.worker_based._requests import tracker
from wbengine.engines.worker_based.ledger._memory import MemoryLedger


class Failing(MemoryLedger):
    """Ledger that raises an unexpected exception once."""

    failed = False

    def drop_many(self, ids: Sequence[str]) -> None:
        if not self.failed:
            self.failed = True
            raise ZeroDivisionError("once")
        super().drop_many(ids)


def dropped(ledger: MemoryLedger, id: str) -> bool:
    return ledger.state(id) is None


class Away(MemoryLedger):
    """Ledger that is unreachable at first."""

    away = True

    def drop_many(self, ids: Sequence[str]) -> None:
        if self.away:
            raise exceptions.LedgerFailure("it is away")
        super().drop_many(ids)


def made() -> LedgerWriter:
    requests = LockedTracker(tracker.RequestTracker("e", Fleet()), print)
    return LedgerWriter(None, requests, FlowGuards())


@pytest.fixture
def writer() -> Iterator[LedgerWriter]:
    writer = made()
    yield writer
    writer.close()


def test_ledger_error_does_not_end_writer_thread(writer: LedgerWriter) -> None:
    ledger = Failing()
    ledger.open_many([("a", 1), ("b", 1)])
    writer.use(ledger)
    writer.drop("a")
    until(lambda: ledger.failed)
    writer.drop("b")
    until(lambda: dropped(ledger, "b"))
    assert not dropped(ledger, "a")
    writer.retry_drops()
    until(lambda: dropped(ledger, "a"))


def test_writer_thread_that_failed_to_start_starts_with_next_drop(
    writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = MemoryLedger()
    ledger.open_many([("a", 1), ("b", 1)])
    writer.use(ledger)

    def full(thread: threading.Thread) -> None:
        monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    with pytest.raises(RuntimeError):
        writer.drop("a")
    writer.drop("b")
    until(lambda: dropped(ledger, "b"))


def test_rows_not_dropped_at_close_are_dropped_by_next_writer(
    writer: LedgerWriter,
) -> None:
    first, ledger = made(), Away()
    ledger.open_many([("a", 1), ("b", 1)])
    first.use(ledger)
    first.drop("a")
    first.close()
    assert not dropped(ledger, "a")
    ledger.away = False
    writer.use(ledger)
    writer.retry_drops()
    until(lambda: dropped(ledger, "a"))
    assert not dropped(ledger, "b")
