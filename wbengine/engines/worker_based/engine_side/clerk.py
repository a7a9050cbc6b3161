"""What an engine does for its book that is not part of every request's way."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from wbengine import exceptions as exc
from wbengine import invocation
from wbengine._clock import SYSTEM
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.connections.parcels import Errand, Parcel
from wbengine.engines.worker_based.engine_side import heir
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests.tracked import TrackedRequest
from wbengine.engines.worker_based.requests.tracker import RequestTracker
from wbengine.types import failure as ft

__all__ = ["Clerk"]

LOG = logging.getLogger(__name__)


class Clerk(heir.Heir):
    """Look at rows, revoke and reopen them, ask and order workers, take back what is not wanted any
    more; and tell the book.
    """

    _lock: threading.RLock
    _tracker: RequestTracker

    def __init__(self) -> None:
        super().__init__()
        self._asking = _Asking(self)
        # Requests whose rows are still to be removed.
        self._undropped: set[str] = set()

    def _apply(self, effects: Iterable[fx.Effect]) -> None:
        raise NotImplementedError

    def _is_ours(self, tracked: TrackedRequest) -> bool:
        raise NotImplementedError

    def _report(self, told: Callable[..., list[fx.Effect]], *what: Any) -> None:
        """Tell the book `what`, and the time, and do what it wants then."""
        with self._lock:
            effects = told(*what, SYSTEM.monotonic())
        self._apply(effects)

    def _see_to(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Revoke(tracked):
                self._revoke(tracked)
            case fx.Inspect(tracked, lost):
                self._inspect(tracked, lost)
            case fx.Reopen(tracked, epoch):
                self._reopen(tracked, epoch)
            case fx.Conclude(tracked, holder, failure):
                self._conclude(tracked, holder, failure)
            case fx.Ask() | fx.Cancel() if self._interop is not None:
                pass  # TaskFlow's workers would not understand it
            case fx.Ask(message) | fx.Cancel(message):
                self._proxy.send(Parcel(message, self._asking))

    # Ends.

    def withdraw(self, flow: str | None = None) -> list[invocation.Invocation]:
        """Take back what no worker has started (of one flow); what is under way is finished."""
        with self._lock:
            requests = self._tracker.unstarted(flow)
        taken = []
        for tracked in requests:
            # Not under the lock: who finds the flow lost tells so, under locks of his own.
            ours = self._is_ours(tracked)
            with self._lock:  # or its missing row could be taken for a lost one
                if (
                    tracked.state not in pr.WAITING_STATES
                    or tracked.invocation.ticket is not tracked
                ):
                    continue
                if self._tracker.is_inherited(tracked):
                    taken.append(tracked.invocation)  # whoever resumes looks for it as we did
                    self._forget(tracked)
                elif not tracked.sendings or (ours and self._rows and self._rows.revoke(tracked)):
                    # Who resumes need not look for what is known not to run.
                    tracked.invocation.recovered &= self._ledger is None
                    taken.append(tracked.invocation)
                    self._forget(tracked)
        return taken

    def _forget(self, tracked: TrackedRequest) -> None:
        self._tracker.forget(tracked)
        _let_go([tracked])

    def disown(self, flow: str | None = None) -> None:
        with self._lock:
            forgotten = self._tracker.unfinished(flow)
            super().disown(flow)
            _let_go(forgotten)

    def cancel(self, invocations: Iterable[invocation.Invocation]) -> None:
        self._report(self._tracker.cancel, tuple(invocations))

    def finish(self, flow: str | None = None) -> None:
        """Wait for the end of what was submitted (of one flow), as long as it is not forgotten."""
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        with self._lock:
            requests = self._tracker.unfinished(flow)
            for tracked in requests:
                tracked.done = _Counted(tracked.done, ended)
        for _ in requests:
            ended.get()

    def leave(self, flow: str) -> None:
        """Fail what is unfinished of one flow: its engine stopped."""
        with self._lock:
            effects = self._tracker.leave("its engine stopped", flow, kept=self._guards)
        self._apply(effects)

    # Rows.

    def _revoke(self, tracked: TrackedRequest) -> None:
        """Make sure that nobody starts a request whose message may be out."""
        ours = self._rows is None or self._is_ours(tracked)
        with self._lock:  # or its missing row could be taken for a lost one
            # Where there is no ledger nobody can tell.
            revoked = self._rows is None or (ours and self._rows.revoke(tracked))
            effects = self._tracker.recovery.on_revoked(tracked, revoked, SYSTEM.monotonic())
        self._apply(effects)

    def _drop_later(self, request_ids: Iterable[str]) -> None:
        """Rows that nobody needs could not be removed."""
        self._undropped.update(request_ids)
        LOG.warning("failed to remove %d rows, trying again", len(self._undropped))

    def _drop_again(self) -> None:
        assert self._ledger is not None
        try:
            undropped = tuple(self._undropped)
            self._ledger.drop_many(undropped)
            self._undropped.difference_update(undropped)
        except exc.LedgerFailure:
            pass  # the next time, then

    def _inspect(self, tracked: TrackedRequest, lost: str | None) -> None:
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

    def _reopen(self, tracked: TrackedRequest, epoch: int) -> None:
        assert self._rows is not None
        if not self._is_ours(tracked):
            return
        done, answer = self._rows.reopen(tracked, epoch)
        if done:  # else it is looked at again
            self._report(self._tracker.recovery.on_reopened, tracked, answer)

    def _conclude(self, tracked: TrackedRequest, holder: str, failure: ft.Failure) -> None:
        assert self._rows is not None
        if self._is_ours(tracked) and self._rows.conclude(tracked, holder, failure):
            self._report(self._tracker.recovery.on_concluded, tracked, failure)


class _Asking(Errand):
    """Lets go out only what is asked for ourselves."""

    def __init__(self, clerk: Clerk) -> None:
        self._clerk = clerk

    def prepare(self, parcels: Sequence[Parcel]) -> None:
        for parcel in parcels:
            parcel.withdrawn = self._clerk._disowned


class _Counted:
    """A `done` that somebody waits for."""

    def __init__(self, done: invocation.Done, ended: queue.SimpleQueue[None]) -> None:
        self._done = done
        self._ended = ended

    def __call__(self, call: invocation.Invocation, outcome: invocation.Outcome) -> None:
        try:
            self._done(call, outcome)
        finally:
            self._ended.put(None)

    def let_go(self) -> None:
        self._ended.put(None)
        if isinstance(self._done, _Counted):  # several wait
            self._done.let_go()


def _let_go(forgotten: Iterable[TrackedRequest]) -> None:
    """Nobody is told how these end: whoever waits for it need not."""
    for tracked in forgotten:
        if isinstance(tracked.done, _Counted):
            tracked.done.let_go()
