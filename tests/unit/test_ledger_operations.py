"""Ledger rows as an engine reads and changes them, and the thread that writes them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.workers import until
from tests.unit.trackers import Bench, Fleet
from wbengine import exceptions as exc
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._engine_side.ledger_operations import LedgerWriter
from wbengine.engines.worker_based._engine_side.rows import Rows
from wbengine.engines.worker_based._engine_side.tracker_events import FlowGuards, LockedTracker
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._requests import tracker
from wbengine.engines.worker_based.ledger import open_ledger
from wbengine.transports import _ledger as ledgers
from wbengine.transports._memory.memory_broker import MemoryLedger
from wbengine.transports._sql import sql_ledger
from wbengine.types.failure import Failure


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
    """Ledger that can be unreachable."""

    why: str | None = None

    def drop_many(self, ids: Sequence[str]) -> None:
        if self.why is not None:
            raise exc.LedgerFailure(self.why)
        super().drop_many(ids)

    def _states(self, ids: Sequence[str]) -> list[ledgers.Row | exc.LedgerFailure | None]:
        if self.why is not None:
            return [exc.LedgerFailure(f"{self.why}: {id}") for id in ids]
        return super()._states(ids)


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
    ledger.why = "away"
    first.drop("a")
    first.close()
    ledger.why = None
    assert not dropped(ledger, "a")
    writer.use(ledger)
    writer.retry_drops()
    until(lambda: dropped(ledger, "a"))
    assert not dropped(ledger, "b")


def open_rows() -> tuple[MemoryLedger, Rows, Any]:
    ledger = MemoryLedger()
    return ledger, Rows(ledger, 60.0), Bench().pending()


def test_reopen_succeeds_for_request_without_row() -> None:
    """A request without a row has no owner."""
    _, rows, entry = open_rows()
    assert rows.reopen([(entry, 2)]) == [(True, None)]


@pytest.mark.parametrize("unused", [0, 2000])
def test_sweep_reads_all_rows_only_for_many_requests(
    unused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger can contain the rows of 100,000 requests and fences of other flows."""
    ledger, rows, _ = open_rows()
    ledger.open_many([("ended", 1), ("other", 1)])
    reads: list[set[str]] = []

    def ids() -> set[str]:
        reads.append(MemoryLedger.ids(ledger))
        return reads[-1]

    monkeypatch.setattr(ledger, "ids", ids)
    rows.sweep(iter(["ended", *(f"unused{n}" for n in range(unused))]))
    assert (dropped(ledger, "ended"), dropped(ledger, "other")) == (True, False)
    rows.sweep(iter(()))
    assert len(reads) == (unused > 0)


def test_sweep_of_unreachable_ledger_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Away()
    ledger.why = "away"
    Rows(ledger, 60.0).sweep(["ended"])
    assert "failed to delete unused ledger rows: away" in caplog.text


def test_request_of_lost_owner_is_concluded() -> None:
    ledger, rows, entry = open_rows()
    ledger.open(entry.id, 1)
    ledger.claim(entry.id, 1, "w1")
    assert rows.conclude([(entry, "w1", entry.loss())]) == [True]
    assert not ledger.finish(entry.id, 1, "w1", b"{}")
    [seen] = rows.read([entry])
    assert seen.state == ledgers.ROW_DONE and seen.result is not None
    assert seen.result.value().check(exc.WorkerLost)
    assert seen.result.epoch == 1


def test_request_is_not_concluded_unless_claimed_by_lost_owner() -> None:
    ledger, rows, entry = open_rows()
    ledger.open(entry.id, 1)
    assert rows.conclude([(entry, "w1", entry.loss())]) == [False]
    ledger.claim(entry.id, 1, "w1")
    assert rows.conclude([(entry, "w2", entry.loss())]) == [False]
    ledger.finish(entry.id, 1, "w1", b"{}")
    assert rows.conclude([(entry, "w1", entry.loss())]) == [False]


def test_unreachable_ledger_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Another error, or the same error after a success, is logged again."""
    ledger, bench = Away(), Bench()
    rows, entries = Rows(ledger, 60.0), [bench.pending() for _ in range(3)]

    def log_messages() -> list[str]:
        caplog.clear()
        for entry in 2 * entries:
            rows.read([entry])
        return [record.getMessage() for record in caplog.records]

    ledger.why = "away"
    (text,) = log_messages()
    assert text.startswith("failed to read the ledger row of") and "away" in text
    assert not log_messages()
    ledger.why = "elsewhere"
    assert len(log_messages()) == 1
    ledger.why = None
    assert not log_messages()
    ledger.why = "away"
    assert len(log_messages()) == 1


def stored(body: Any, **headers: Any) -> env.Envelope:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return env.Envelope(pr.RESPONSE, body, headers={hd.WBE_VERSION: hd.VERSION, **names})


#: Number of nested lists that no supported version of Python decodes.
DEEP = 200_000


def deep() -> env.Envelope:
    reply = stored({})
    reply._encoded = b'{"state": "SUCCESS", "data": {"result": %b}}' % (b"[" * DEEP + b"]" * DEEP)
    return reply


FAILURE = Failure.from_exception(ValueError("x")).to_dict()
UNREADABLE = {
    "no-data": stored({"state": pr.SUCCESS}),
    "no-result": stored({"state": pr.SUCCESS, "data": {}}),
    "null-data": stored({"state": pr.SUCCESS, "data": None}),
    "list-as-state": stored({"state": [], "data": {"result": 1}}),
    "no-failure": stored({"state": pr.FAILURE, "data": {"result": 1}}),
    "progress": stored({"state": pr.RUNNING, "data": {}}),
    "unknown-state": stored({"state": "ODD", "data": {}}),
    "lost": stored({"state": pr.FAILURE, "data": {"result": FAILURE}}, wbe_lost=1),
    "deep": deep(),
}


@pytest.mark.parametrize("reply", UNREADABLE.values(), ids=UNREADABLE)
def test_stored_reply_that_is_not_a_result_is_unreadable(reply: env.Envelope) -> None:
    """The results of other rows of the same batch are read."""
    bench = Bench()
    entries = [bench.pending(), bench.pending()]
    ledger = MemoryLedger()
    rows = Rows(ledger, 60.0)
    for entry, result in zip(
        entries, (reply, stored({"state": pr.SUCCESS, "data": {"result": 7}})), strict=True
    ):
        ledger.open(entry.id, 1)
        ledger.claim(entry.id, 1, "w1")
        ledger.finish(entry.id, 1, "w1", env.freeze(result))
    unreadable, readable = rows.read(entries)
    assert (unreadable.state, unreadable.result) == (ledgers.ROW_DONE, None)
    assert readable.result is not None and readable.result.value() == 7


def test_first_claim_of_a_worker_stores_its_heartbeat_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim without a heartbeat fails, and takes further statements."""
    place = f"sqlite:///{tmp_path}/ledger.db"
    with contextlib.closing(open_ledger(place)) as ledger:
        assert isinstance(ledger, sql_ledger.SQLLedger)
        ledger.open_many([("a", 1), ("b", 1)])
        actions: list[str] = []
        execute = ledger._execute

        def record(action: str, *arguments: Any) -> int:
            actions.append(action)
            return execute(action, *arguments)

        monkeypatch.setattr(ledger, "_execute", record)
        assert ledger.claim("a", 1, "w").granted and ledger.claim("b", 1, "w").granted
        assert actions == ["renewing", "claiming", "claiming"]
