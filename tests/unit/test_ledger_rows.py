"""What the rows of a ledger say, and let be done, to an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.requesting import Bench
from wbengine import exceptions as exc
from wbengine.engines.worker_based.engine_side import ledger_writer
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.ledger import memory
from wbengine.engines.worker_based.messages import envelope as env


def made() -> tuple[memory.MemoryLedger, ledger_writer.Rows, Any]:
    ledger = memory.MemoryLedger()
    return ledger, ledger_writer.Rows(ledger, 60.0), Bench().pending()


def test_what_has_no_row_is_held_by_nobody() -> None:
    """There is nobody whom it could be taken from: that is no failure to take it."""
    _, found, entry = made()
    assert found.reopen([(entry, 2)]) == [(True, None)]


def test_a_request_is_ended_for_a_holder_who_is_lost() -> None:
    ledger, found, entry = made()
    ledger.open(entry.id, 1)
    ledger.claim(entry.id, 1, "w1")
    assert found.conclude([(entry, "w1", entry.loss())]) == [True]
    assert not ledger.finish(entry.id, 1, "w1", b"{}")
    [seen] = found.look([entry])
    assert seen.state == ledgers.ROW_DONE and seen.result is not None
    assert env.value_of(seen.result).check(exc.WorkerLost)
    assert seen.result.number(env.WBE_EPOCH) == 1


def test_a_request_that_he_ended_is_not_ended_for_him() -> None:
    ledger, found, entry = made()
    ledger.open(entry.id, 1)
    assert found.conclude([(entry, "w1", entry.loss())]) == [False]
    ledger.claim(entry.id, 1, "w1")
    assert found.conclude([(entry, "w2", entry.loss())]) == [False]
    ledger.finish(entry.id, 1, "w1", b"{}")
    assert found.conclude([(entry, "w1", entry.loss())]) == [False]


class Away(memory.MemoryLedger):
    """One that can be away."""

    why: str | None = None

    def _states(self, ids: Sequence[str]) -> list[ledgers.Row | exc.LedgerFailure | None]:
        if self.why is not None:
            return [exc.LedgerFailure(f"{self.why}: {id}") for id in ids]
        return super()._states(ids)


def test_a_ledger_that_is_away_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not for each request, and again and again."""
    ledger, bench = Away(), Bench()
    found, entries = ledger_writer.Rows(ledger, 60.0), [bench.pending() for _ in range(3)]

    def said() -> list[str]:
        caplog.clear()
        for entry in 2 * entries:
            found.look([entry])
        return [record.getMessage() for record in caplog.records]

    ledger.why = "away"
    (text,) = said()
    assert text.startswith("failed to look at the row of") and "away" in text
    assert not said()
    ledger.why = "elsewhere"
    assert len(said()) == 1
    ledger.why = None
    assert not said()
    ledger.why = "away"
    assert len(said()) == 1
