"""A ledger behind a connection with faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.seams import ledgers
from wbengine import exceptions as exc

Found = TypeVar("Found")


class Line(ledgers.Ledger):
    """A connection to a ledger; `ail(n, applied)` makes the next `n` calls fail.

    Failing calls take effect if `applied`.
    """

    def __init__(self, ledger: ledgers.Ledger) -> None:
        self.ledger = ledger
        self._left = 0
        self._applied = False
        #: Called with `(name, arguments, result)` after each call that took effect.
        self.listener: Callable[[str, tuple[Any, ...], Any], None] | None = None

    def ail(self, calls: int, applied: bool) -> None:
        self._left, self._applied = calls, applied

    @property
    def ails(self) -> bool:
        return self._left > 0

    @property
    def digest(self) -> str:
        return "simulated"

    @property
    def identity(self) -> str:
        return self.ledger.identity

    def _call(self, method: Callable[..., Found], *arguments: Any) -> Found:
        fails = self._left > 0
        if fails:
            self._left -= 1
            if not self._applied:
                raise exc.LedgerFailure(f"{method.__name__} was not done")
        result = method(*arguments)
        if self.listener is not None:
            self.listener(method.__name__, arguments, result)
        if fails:
            raise exc.LedgerFailure(f"{method.__name__} was done, and nobody knows")
        return result

    def _open(self, rows: Sequence[ledgers.FencedRow[int]]) -> None:
        self._call(self.ledger.open_many, rows)

    def _claim(self, id: str, epoch: int, holder: str) -> ledgers.Claim:
        return self._call(self.ledger.claim, id, epoch, holder)

    def _renew(self, holder: str) -> None:
        self._call(self.ledger.renew, holder)

    def _silence(self, holder: str) -> float | None:
        return self._call(self.ledger.silence, holder)

    def _finish(
        self, holder: str, ended: Sequence[tuple[str, int, bytes]], fence: ledgers.Fence
    ) -> list[bool | exc.LedgerFailure]:
        try:
            return self._call(self.ledger.finish_many, holder, ended, fence)
        except exc.LedgerFailure as error:
            return [error] * len(ended)

    def _release(self, id: str, epoch: int, holder: str) -> bool:
        return self._call(self.ledger.release, id, epoch, holder)

    def _reopen(self, id: str, epoch: int, fence: ledgers.Fence) -> bytes | exc.NotFound | None:
        return self._call(self.ledger._reopen, id, epoch, fence)

    def _revoke(
        self, rows: Sequence[ledgers.FencedRow[int | None]]
    ) -> Sequence[bool | exc.LedgerFailure | None]:
        try:
            return self._call(self.ledger.revoke_many, rows)
        except exc.LedgerFailure as error:
            return [error] * len(rows)

    def _drop(self, ids: Sequence[str]) -> None:
        self._call(self.ledger.drop_many, ids)

    def _states(self, ids: Sequence[str]) -> list[ledgers.Row | exc.LedgerFailure | None]:
        try:
            return self._call(self.ledger.states, ids)
        except exc.LedgerFailure as error:
            return [error] * len(ids)

    def _list_rows(self, limit: int, after: str | None) -> ledgers.Page:
        return self._call(self.ledger.list_rows, limit, after)

    def _ids(self) -> set[str]:
        return self._call(self.ledger.ids)

    def sweep(self, older_than: float, only_done: bool = False) -> int:
        return self._call(self.ledger.sweep, older_than, only_done)
