"""Planted defects of a ledger in memory, which the check of histories must find."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from tests.seams import ledgers

_claim_atomically: Final = ledgers.InMemory._claim


def _read_then_claim(self: Any, id: str, epoch: int, holder: str) -> ledgers.Claim:
    """Read the row, and write it in a second step."""
    if self.state(id) != ledgers.Row(id, epoch, ledgers.ROW_OPEN):
        return _claim_atomically(self, id, epoch, holder)
    time.sleep(0)  # Lets another thread run.
    with self._lock:
        self._put(ledgers.Row(id, epoch, ledgers.ROW_CLAIMED, holder))
    return ledgers.Claim(ledgers.GRANTED, epoch, None, holder)


def _finish_any_epoch(
    self: Any, holder: str, finished_rows: Sequence[tuple[str, int, bytes]], fence: Any
) -> list[bool]:
    """Finish rows of the holder without a check of their epochs."""
    results: list[bool] = []
    with self._lock:
        for id, _, result in finished_rows:
            row = self._rows.get(id)
            is_owner = row == (row and ledgers.Row(id, row.epoch, ledgers.ROW_CLAIMED, holder))
            if row is not None and is_owner:
                self._put(ledgers.Row(id, row.epoch, ledgers.ROW_DONE, None, result))
            results.append(row is not None and is_owner)
    return results


DEFECTS: Final[dict[str, tuple[str, Any]]] = {
    "non-atomic take": ("_claim", _read_then_claim),
    "missing epoch check": ("_finish", _finish_any_epoch),
}


def plant(defect: str) -> None:
    """Plant a defect in this process, unless the name is ''."""
    if defect:
        setattr(ledgers.InMemory, *DEFECTS[defect])
