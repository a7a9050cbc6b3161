"""What an executor does in its ledger, and tells its tracker of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from wbengine import exceptions as exc
from wbengine._clock import SYSTEM
from wbengine._crash import crashpoint
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based.engine_side.guards import FlowGuards
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests import ledger_rows
from wbengine.engines.worker_based.requests.tracked import TrackedRequest
from wbengine.engines.worker_based.requests.tracker import RequestTracker
from wbengine.types import failure as ft

__all__ = ["LedgerWriter"]

LOG = logging.getLogger(__name__)


class LedgerWriter:
    """Opens, looks at, revokes, reopens, ends and drops rows, of flows that are still the engine's.

    Without a ledger (see `use`) there are no rows.  `apply` performs effects of the tracker, whose
    lock is `lock`.
    """

    def __init__(
        self,
        expiry: float | None,
        tracker: RequestTracker,
        lock: threading.RLock,
        guards: FlowGuards,
        apply: Callable[[Iterable[fx.Effect]], None],
    ) -> None:
        self.ledger: ledgers.base.Ledger | None = None
        self._rows: ledger_rows.Rows | None = None
        self._expiry = expiry
        self._tracker = tracker
        self._lock = lock
        self._guards = guards
        self._apply = apply
        # Requests whose rows are still to be removed.
        self._undropped: set[str] = set()

    def use(self, ledger: ledgers.base.Ledger | None) -> None:
        """Keep rows in a ledger from now on."""
        self.ledger = ledger
        self._rows = ledger_rows.Rows(ledger, self._expiry) if ledger is not None else None

    # Opening.

    def open(self, made: Iterable[fx.Dispatch]) -> list[fx.Dispatch]:
        """Make the rows of requests that were not published before: a row that is removed by now
        must not come back.  Returns those.

        :raises LedgerFailure: the ledger cannot be reached.
        """
        if self.ledger is None or self._rows is None:
            return []
        new = [effect for effect in made if not effect.tracked.opened]
        if new:
            crashpoint("executor.before-open")
            # Nothing can be in the way of a first epoch.
            first = [(effect.tracked.id, 1) for effect in new if effect.epoch == 1]
            self.ledger.open_many(first)
            for effect in new:
                if effect.epoch != 1:
                    self._rows.open(effect.tracked.id, effect.epoch)
                effect.tracked.opened = True
            crashpoint("executor.after-open")
        return new

    def take_back(self, effect: fx.Dispatch) -> None:
        """Remove the row of a request that ended while it was made."""
        if self.ledger is not None and self._guards.owns(effect.tracked.flow):
            self.ledger.revoke(effect.tracked.id, effect.epoch)

    # Who has a request.

    def revoke(self, tracked: TrackedRequest) -> None:
        """Make sure that no worker starts a request whose message may be out."""
        owned = self._rows is None or self._guards.owns(tracked.flow)
        with self._lock:  # or its missing row could be taken for a lost one
            # Without a ledger it cannot be known.
            revoked = self._rows is None or (owned and self._rows.revoke(tracked))
            effects = self._tracker.recovery.on_revoked(tracked, revoked, SYSTEM.monotonic())
        self._apply(effects)

    def withdraw(self, tracked: TrackedRequest) -> bool:
        """Whether no worker can start a request any more.  Under the lock."""
        return self._rows is not None and self._rows.revoke(tracked)

    def inspect(self, tracked: TrackedRequest, lost: str | None) -> None:
        assert self._rows is not None
        while True:
            with self._lock:  # or it could be on its way even now, and come later
                before = tracked.epoch, tracked.opened, tracked.sendings
            seen = self._rows.look(tracked)
            with self._lock:
                if before != (tracked.epoch, tracked.opened, tracked.sendings):
                    continue  # it was just being published: what was seen is of the past
                effects = self._tracker.recovery.on_row(tracked, seen, SYSTEM.monotonic(), lost)
            return self._apply(effects)

    def reopen(self, tracked: TrackedRequest, epoch: int) -> None:
        assert self._rows is not None
        if not self._guards.owns(tracked.flow):
            return
        done, answer = self._rows.reopen(tracked, epoch)
        if done:  # else it is looked at again
            self._tell(self._tracker.recovery.on_reopened, tracked, answer)

    def conclude(self, tracked: TrackedRequest, holder: str, failure: ft.Failure) -> None:
        assert self._rows is not None
        if self._guards.owns(tracked.flow) and self._rows.conclude(tracked, holder, failure):
            self._tell(self._tracker.recovery.on_concluded, tracked, failure)

    def _tell(
        self, on_done: Callable[..., list[fx.Effect]], tracked: TrackedRequest, found: Any
    ) -> None:
        with self._lock:
            effects = on_done(tracked, found, SYSTEM.monotonic())
        self._apply(effects)

    # Dropping.

    def drop(self, request_ids: list[str]) -> None:
        """Remove the rows of requests whose ends are saved; later, if that cannot be done now."""
        assert self.ledger is not None
        crashpoint("executor.before-drop")
        try:
            self.ledger.drop_many(request_ids)
        except exc.LedgerFailure:
            self._undropped.update(request_ids)
            LOG.warning("failed to remove %d rows, trying again", len(self._undropped))
        crashpoint("executor.after-drop")

    def drop_again(self) -> None:
        undropped = tuple(self._undropped)
        if not undropped or self.ledger is None:
            return
        try:
            self.ledger.drop_many(undropped)
            self._undropped.difference_update(undropped)
        except exc.LedgerFailure:
            pass  # the next time, then

    def sweep(self, ended: Iterable[str]) -> None:
        """Remove the rows of requests that ended, and that no run will retire any more."""
        if self._rows is not None:
            self._rows.sweep(ended)

    def close(self) -> None:
        if self.ledger is not None:
            self.drop_again()
            self.ledger.close()
