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
from wbengine.engines.worker_based.requests import book, entries
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.types import failure as ft

__all__ = ["Clerk"]

LOG = logging.getLogger(__name__)


class Clerk(heir.Heir):
    """Look at rows, revoke and reopen them, ask and order workers, take back what is not wanted any
    more; and tell the book.
    """

    _lock: threading.RLock
    _book: book.RequestBook

    def __init__(self) -> None:
        super().__init__()
        self._asking = _Asking(self)
        # Requests whose rows are still to be removed.
        self._undropped: set[str] = set()

    def _apply(self, effects: Iterable[fx.Effect]) -> None:
        raise NotImplementedError

    def _is_ours(self, entry: entries.Entry) -> bool:
        raise NotImplementedError

    def _report(self, told: Callable[..., list[fx.Effect]], *what: Any) -> None:
        """Tell the book `what`, and the time, and do what it wants then."""
        with self._lock:
            effects = told(*what, SYSTEM.monotonic())
        self._apply(effects)

    def _see_to(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Revoke(entry):
                self._revoke(entry)
            case fx.Inspect(entry, lost):
                self._inspect(entry, lost)
            case fx.Reopen(entry, epoch):
                self._reopen(entry, epoch)
            case fx.Conclude(entry, holder, failure):
                self._conclude(entry, holder, failure)
            case fx.Ask() | fx.Cancel() if self._interop is not None:
                pass  # TaskFlow's workers would not understand it
            case fx.Ask(message) | fx.Cancel(message):
                self._proxy.send(Parcel(message, self._asking))

    # Ends.

    def withdraw(self, flow: str | None = None) -> list[invocation.Invocation]:
        """Take back what no worker has started (of one flow); what is under way is finished."""
        with self._lock:
            entries = self._book.unstarted(flow)
        taken = []
        for entry in entries:
            # Not under the lock: who finds the flow lost tells so, under locks of his own.
            ours = self._is_ours(entry)
            with self._lock:  # or its missing row could be taken for a lost one
                if entry.state not in pr.WAITING_STATES or entry.invocation.ticket is not entry:
                    continue
                if self._book.is_left(entry):
                    taken.append(entry.invocation)  # whoever resumes looks for it as we did
                    self._forget(entry)
                elif not entry.sendings or (ours and self._rows and self._rows.revoke(entry)):
                    # Who resumes need not look for what is known not to run.
                    entry.invocation.recovered &= self._ledger is None
                    taken.append(entry.invocation)
                    self._forget(entry)
        return taken

    def _forget(self, entry: entries.Entry) -> None:
        self._book.forget(entry)
        _let_go([entry])

    def disown(self, flow: str | None = None) -> None:
        with self._lock:
            forgotten = self._book.unfinished(flow)
            super().disown(flow)
            _let_go(forgotten)

    def cancel(self, invocations: Iterable[invocation.Invocation]) -> None:
        self._report(self._book.cancel, tuple(invocations))

    def finish(self, flow: str | None = None) -> None:
        """Wait for the end of what was submitted (of one flow), as long as it is not forgotten."""
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        with self._lock:
            entries = self._book.unfinished(flow)
            for entry in entries:
                entry.done = _Counted(entry.done, ended)
        for _ in entries:
            ended.get()

    def leave(self, flow: str) -> None:
        """Fail what is unfinished of one flow: its engine stopped."""
        with self._lock:
            effects = self._book.leave("its engine stopped", flow, kept=self._guards)
        self._apply(effects)

    # Rows.

    def _revoke(self, entry: entries.Entry) -> None:
        """Make sure that nobody starts a request whose message may be out."""
        ours = self._rows is None or self._is_ours(entry)
        with self._lock:  # or its missing row could be taken for a lost one
            # Where there is no ledger nobody can tell.
            revoked = self._rows is None or (ours and self._rows.revoke(entry))
            effects = self._book.on_revoked(entry, revoked, SYSTEM.monotonic())
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

    def _inspect(self, entry: entries.Entry, lost: str | None) -> None:
        assert self._rows is not None
        while True:
            with self._lock:  # or it could be on its way even now, and come later
                before = entry.epoch, entry.opened, entry.sendings
            seen = self._rows.look(entry)
            with self._lock:
                if before != (entry.epoch, entry.opened, entry.sendings):
                    continue  # it was just being published: what was seen is of the past
                effects = self._book.on_row(entry, seen, SYSTEM.monotonic(), lost)
            return self._apply(effects)

    def _reopen(self, entry: entries.Entry, epoch: int) -> None:
        assert self._rows is not None
        if not self._is_ours(entry):
            return
        done, answer = self._rows.reopen(entry, epoch)
        if done:  # else it is looked at again
            self._report(self._book.on_reopened, entry, answer)

    def _conclude(self, entry: entries.Entry, holder: str, failure: ft.Failure) -> None:
        assert self._rows is not None
        if self._is_ours(entry) and self._rows.conclude(entry, holder, failure):
            self._report(self._book.on_concluded, entry, failure)


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


def _let_go(forgotten: Iterable[entries.Entry]) -> None:
    """Nobody is told how these end: whoever waits for it need not."""
    for entry in forgotten:
        if isinstance(entry.done, _Counted):
            entry.done.let_go()
