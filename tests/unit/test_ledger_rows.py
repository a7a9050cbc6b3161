"""Ledger rows as an engine reads and changes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.trackers import Bench
from wbengine import exceptions as exc
from wbengine.engines.worker_based.engine_side import ledger_writer
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.ledger import memory


def open_rows() -> tuple[memory.MemoryLedger, ledger_writer.Rows, Any]:
    ledger = memory.MemoryLedger()
    return ledger, ledger_writer.Rows(ledger, 60.0), Bench().pending()


def test_reopen_succeeds_for_request_without_row() -> None:
    """A request without a row has no owner."""
    _, rows, entry = open_rows()
    assert rows.reopen([(entry, 2)]) == [(True, None)]


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


class Away(memory.MemoryLedger):
    """Ledger that can be unreachable."""

    why: str | None = None

    def _states(self, ids: Sequence[str]) -> list[ledgers.Row | exc.LedgerFailure | None]:
        if self.why is not None:
            return [exc.LedgerFailure(f"{self.why}: {id}") for id in ids]
        return super()._states(ids)


def test_unreachable_ledger_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Another error, or the same error after a success, is logged again."""
    ledger, bench = Away(), Bench()
    rows, entries = ledger_writer.Rows(ledger, 60.0), [bench.pending() for _ in range(3)]

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
