"""A ledger inside one process."""

from __future__ import annotations

import os
import threading
import uuid

from wbengine import _clock, _names, exceptions
from wbengine.engines.worker_based.ledger import base


class _Row:
    __slots__ = ("changed", "epoch", "holder", "result", "state")

    def __init__(self, epoch: int, now: float) -> None:
        self.epoch = epoch
        self.state: base.State = base.ROW_OPEN
        self.holder: str | None = None
        self.result: bytes | None = None
        self.changed = now


class MemoryLedger(base.Ledger):
    """Rows in a dict; every call holds one lock for a few microseconds."""

    def __init__(self, clock: _clock.Clock = _clock.SYSTEM) -> None:
        self._clock = clock
        self._digest = f"memory-{os.getpid()}-{uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._rows: dict[str, _Row] = {}
        self._beats: dict[str, float] = {}

    @property
    def digest(self) -> str:
        return self._digest

    def open(self, id: str, epoch: int) -> None:
        if not _names.is_label(id):
            _names.check_label("request id", id)
        with self._lock:
            if id not in self._rows:
                self._rows[id] = _Row(epoch, self._clock.monotonic())

    def claim(self, id: str, epoch: int, holder: str) -> base.Claim:
        if not _names.is_label(holder):
            _names.check_label("holder", holder)
        with self._lock:
            row = self._rows.get(id)
            if row is None:
                return base.Claim(base.MISSING, epoch)
            if row.epoch != epoch:
                return base.Claim(base.STALE if epoch < row.epoch else base.MISSING, row.epoch)
            if row.state == base.ROW_DONE:
                return base.Claim(base.DONE, epoch, row.result)
            if row.state == base.ROW_CLAIMED:
                return base.Claim(base.HELD, epoch, None, row.holder)
            now = self._clock.monotonic()
            row.state, row.holder, row.changed = base.ROW_CLAIMED, holder, now
            self._beats.setdefault(holder, now)
            return base.Claim(base.GRANTED, epoch, None, holder)

    def renew(self, holder: str) -> None:
        if not _names.is_label(holder):
            _names.check_label("holder", holder)
        with self._lock:
            self._beats[holder] = self._clock.monotonic()

    def silence(self, holder: str) -> float | None:
        with self._lock:
            beat = self._beats.get(holder)
            return None if beat is None else self._clock.monotonic() - beat

    def finish(self, id: str, epoch: int, holder: str, result: bytes) -> bool:
        with self._lock:
            row = self._rows.get(id)
            if row is None or row.state != base.ROW_CLAIMED:
                return False
            if (row.epoch, row.holder) != (epoch, holder):
                return False
            row.state, row.result, row.holder = base.ROW_DONE, result, None
            row.changed = self._clock.monotonic()
            return True

    def reopen(self, id: str, epoch: int) -> bytes | None:
        with self._lock:
            row = self._rows.get(id)
            if row is None:
                raise exceptions.NotFound(f"request {id} has no row in ledger {self._digest}")
            if row.state == base.ROW_DONE:
                return row.result
            if row.epoch < epoch:
                self._rows[id] = _Row(epoch, self._clock.monotonic())
            return None

    def revoke(self, id: str) -> bool:
        with self._lock:
            row = self._rows.get(id)
            if row is None or row.state != base.ROW_OPEN:
                return False
            del self._rows[id]
            return True

    def drop(self, id: str) -> None:
        with self._lock:
            self._rows.pop(id, None)

    def state(self, id: str) -> base.Row | None:
        with self._lock:
            row = self._rows.get(id)
            if row is None:
                return None
            return base.Row(id, row.epoch, row.state, row.holder, row.result)

    def ids(self) -> set[str]:
        with self._lock:
            return set(self._rows)

    def sweep(self, older_than: float) -> int:
        with self._lock:
            before = self._clock.monotonic() - older_than
            old = [
                id
                for id, row in self._rows.items()
                if row.changed <= before
                and (row.holder is None or self._beats.get(row.holder, before) <= before)
            ]
            for id in old:
                del self._rows[id]
            held = {row.holder for row in self._rows.values()}
            for holder in [h for h, beat in self._beats.items() if beat <= before]:
                if holder not in held:
                    del self._beats[holder]
            return len(old)
