"""A ledger in the memory of one process."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from wbengine import exceptions
from wbengine._concurrency import clocks
from wbengine.transports import _ledger
from wbengine.transports._kinds import Target
from wbengine.transports._memory import memory_broker


class MemoryLedger(_ledger.Ledger):
    """Rows in a dict. Each call holds one lock for a few microseconds.

    :param lock: the lock of a broker, which holds it while it changes rows together with messages.
    """

    def __init__(
        self,
        clock: clocks.Clock = clocks.SYSTEM,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._clock = clock
        self._digest = f"memory-{os.getpid()}-{uuid.uuid4().hex}"
        self._lock = lock or threading.Lock()
        self._rows: dict[str, _ledger.Row] = {}
        # Time of the last change of each row.
        self._changed: dict[str, float] = {}
        self._heartbeats: dict[str, float] = {}

    @property
    def digest(self) -> str:
        return self._digest

    def _refuses(self, fence: _ledger.Fence) -> bool:
        raised = self._rows.get(fence.id)
        return raised is not None and raised.epoch > fence.number

    def _open(self, rows: Sequence[_ledger.FencedRow[int]]) -> None:
        with self._lock:
            for id, epoch, fence in rows:
                row = self._rows.get(id)
                is_new = row is None or (row.state == _ledger.ROW_OPEN and row.epoch < epoch)
                if is_new and not self._refuses(fence):
                    self._put(_ledger.Row(id, epoch, _ledger.ROW_OPEN))

    def _reopen(
        self, id: str, epoch: int, fence: _ledger.Fence
    ) -> bytes | exceptions.NotFound | None:
        with self._lock:
            row = self._rows.get(id)
            if row is None:
                return exceptions.NotFound(f"request {id} has no row in ledger {self.digest}")
            if row.epoch < epoch and row.state != _ledger.ROW_DONE and not self._refuses(fence):
                self._put(_ledger.Row(id, epoch, _ledger.ROW_OPEN))
            return row.result

    def _revoke(
        self, rows: Sequence[_ledger.FencedRow[int | None]]
    ) -> Sequence[bool | exceptions.LedgerFailure | None]:
        with self._lock:
            return [self._revoke_one(*row) for row in rows]

    def _revoke_one(self, id: str, epoch: int | None, fence: _ledger.Fence) -> bool:
        row = self._rows.get(id)
        if (
            row is None
            or row.state != _ledger.ROW_OPEN
            or (epoch is not None and row.epoch > epoch)
        ):
            return False
        if self._refuses(fence):
            return False
        self._remove(id)
        return True

    def _drop(self, ids: Sequence[str]) -> None:
        with self._lock:
            for id in ids:
                self._remove(id)

    def _claim(self, id: str, epoch: int, holder: str) -> _ledger.Claim:
        with self._lock:
            row = self._rows.get(id)
            if row != _ledger.Row(id, epoch, _ledger.ROW_OPEN):
                return _ledger.refusal(row, epoch) or _ledger.Claim(_ledger.MISSING, epoch)
            self._put(_ledger.Row(id, epoch, _ledger.ROW_CLAIMED, holder))
            self._heartbeats[holder] = self._changed[id]
            return _ledger.Claim(_ledger.GRANTED, epoch, None, holder)

    def _renew(self, holder: str) -> None:
        with self._lock:
            self._heartbeats[holder] = self._clock.monotonic()

    def _silence(self, holder: str) -> float | None:
        with self._lock:
            beat = self._heartbeats.get(holder)
            return None if beat is None else self._clock.monotonic() - beat

    def _finish(
        self, holder: str, finished_rows: Sequence[tuple[str, int, bytes]], fence: _ledger.Fence
    ) -> list[bool | exceptions.LedgerFailure]:
        results: list[bool | exceptions.LedgerFailure] = []
        with self._lock:
            for id, epoch, result in finished_rows:
                is_owner = self._rows.get(id) == _ledger.Row(id, epoch, _ledger.ROW_CLAIMED, holder)
                if is_owner and fence.id:
                    is_owner = not self._refuses(fence)
                if is_owner:
                    self._put(_ledger.Row(id, epoch, _ledger.ROW_DONE, None, result))
                results.append(is_owner)
        return results

    def _release(self, id: str, epoch: int, holder: str) -> bool:
        with self._lock:
            if self._rows.get(id) != _ledger.Row(id, epoch, _ledger.ROW_CLAIMED, holder):
                return False
            self._put(_ledger.Row(id, epoch, _ledger.ROW_OPEN))
            return True

    def _states(self, ids: Sequence[str]) -> list[_ledger.Row | exceptions.LedgerFailure | None]:
        with self._lock:
            return [self._rows.get(id) for id in ids]

    def _ids(self) -> set[str]:
        with self._lock:
            return set(self._rows)

    def _list_rows(self, limit: int, after: str | None) -> _ledger.Page:
        with self._lock:
            ids, next_after = _ledger.page_of(self._rows, limit, after)
            now = self._clock.monotonic()
            return _ledger.Page([self._listed(self._rows[id], now) for id in ids], next_after)

    def _listed(self, row: _ledger.Row, now: float) -> _ledger.Listed:
        age = now - self._changed[row.id]
        return _ledger.Listed(row.id, row.epoch, row.state, row.holder, age)

    def sweep(self, older_than: float, only_done: bool = False) -> int:
        with self._lock:
            cutoff = self._clock.monotonic() - older_than
            old = [
                id
                for id, row in self._rows.items()
                if self._changed[id] <= cutoff
                and (row.state == _ledger.ROW_DONE or not only_done)
                and (row.holder is None or self._heartbeats.get(row.holder, cutoff) <= cutoff)
            ]
            for id in old:
                self._remove(id)
            holders = {row.holder for row in self._rows.values()}
            for holder in [h for h, beat in self._heartbeats.items() if beat <= cutoff]:
                if holder not in holders:
                    del self._heartbeats[holder]
            return len(old)

    def _put(self, row: _ledger.Row) -> None:
        self._rows[row.id] = row
        self._changed[row.id] = self._clock.monotonic()

    def _remove(self, id: str) -> None:
        self._rows.pop(id, None)
        self._changed.pop(id, None)


def check(place: str) -> str:
    """Return the name of the hub in `memory://NAME`.

    :raises ValueError: if it is invalid.
    """
    return memory_broker.hub_name(place)


def is_at(place: str, broker: object) -> bool:
    return check(place) == broker


def open_place(place: str, result_ttl: float | None) -> _ledger.Ledger:
    """Return the ledger of the hub with this name."""
    return _of_hub(check(place))


def of_broker(target: Target, role: str, result_ttl: float | None) -> _ledger.Ledger:
    return _of_hub(target.place)


def _of_hub(name: str) -> _ledger.Ledger:
    hub = memory_broker.hub(name)
    with hub.lock:
        if hub.ledger is None:
            hub.ledger = MemoryLedger(lock=hub.lock)
        opened: _ledger.Ledger = hub.ledger
        return opened
