"""Requests that nobody wants any more, or not now: cancelled, expired, given back, left behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from wbengine import exceptions as exc
from wbengine import invocation, start_times
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests.effects import Effect
from wbengine.engines.worker_based.requests.entries import WITHDRAWN, Entry
from wbengine.engines.worker_based.requests.reasons import (
    CANCELLED,
    EXPIRED,
    LAPSE,
    UNSENT,
)
from wbengine.engines.worker_based.requests.resending import Resending
from wbengine.types import failure as ft

__all__ = ["Ending"]


class Ending(Resending):
    """A book's dealings with ends that are no answers."""

    _entries: dict[str, Entry]
    _flows: dict[str, dict[str, Entry]]

    # When.

    def _keep_times(self, entry: Entry, now: float) -> list[Effect]:
        """When it may start; an end, if its task says so in a way that makes no sense."""
        try:
            self._read_times(entry, now)
        except (TypeError, ValueError) as error:
            return self._settle(entry, ft.Failure.from_exception(error), now=now)
        if entry.lapse is not None:
            self._alarms.set(entry.lapse, LAPSE, entry)
        return []

    def _read_times(self, entry: Entry, now: float) -> None:
        task = entry.invocation.task
        if entry.invocation.action != invocation.EXECUTE:
            return  # what was done is undone in any case
        if task.eta is not None:
            what = f"eta of task {task.name!r}"
            entry.eta = start_times.moment(task.eta, what, now, self._wall())
        if task.expires is not None:
            what = f"expires of task {task.name!r}"
            entry.lapse = start_times.moment(task.expires, what, now, self._wall())

    # By request.

    def cancel(self, calls: Iterable[invocation.Invocation], now: float) -> list[Effect]:
        """Let these come to an end soon (see `TaskExecutor.cancel`).  Idempotent."""
        effects: list[Effect] = []
        to: dict[str, list[Entry]] = {}
        for call in calls:
            entry = call.ticket
            if not isinstance(entry, Entry) or not entry.live:
                continue
            known, entry.fate = entry.fate == CANCELLED, CANCELLED
            if entry.state == pr.RUNNING:
                to.setdefault(entry.worker or env.ALL_WORKERS, []).append(entry)
            elif not known:
                effects += self._keep_from_starting(entry, now)
                if entry.live and self.ledger is None:
                    to.setdefault(env.ALL_WORKERS, []).append(entry)
        for worker, entries in to.items():
            effects += self._cancels(entries, worker)
        return effects + self.ask()

    def _lapse(self, entry: Entry, now: float) -> list[Effect]:
        """Its time is over; the question is whether it was started."""
        if entry.fate is not None or entry.state not in pr.WAITING_STATES:
            return []
        entry.fate = EXPIRED
        return self._keep_from_starting(entry, now)

    def _keep_from_starting(self, entry: Entry, now: float) -> list[Effect]:
        if not entry.dispatched:
            return self._fulfil(entry, now)
        if entry.shelf is self._left:
            return []  # it is being looked for
        if self.ledger is not None:
            return [fx.Revoke(entry)]
        self._search(entry, UNSENT, now)
        return []

    def _fulfil(self, entry: Entry, now: float) -> list[Effect]:
        """It does not run, and is not to."""
        end = entry.unknown() if entry.ran else entry.doom()
        return self._settle(entry, end, now=now)

    # By flow.

    def unfinished(self, flow: str | None = None) -> list[Entry]:
        """Requests (of one flow, by its uuid) that have no outcome yet."""
        return [entry for entry in self._all(flow) if entry.live]

    def unstarted(self, flow: str | None = None) -> list[Entry]:
        """Requests (of one flow, by its uuid) that no worker is known to have started.

        Those that were `dispatched` may have a row, and must be revoked before they are forgotten;
        but not those that an earlier run left (`is_left`): they were not touched yet.
        """
        return [entry for entry in self.unfinished(flow) if entry.state in pr.WAITING_STATES]

    def is_left(self, entry: Entry) -> bool:
        """Whether a request is an earlier run's, of which nothing is known yet."""
        return entry.shelf is self._left

    def _all(self, flow: str | None) -> Iterator[Entry]:
        found = self._entries if flow is None else self._flows.get(flow, {})
        return iter(list(found.values()))

    def forget(self, entry: Entry) -> None:
        """Take a request out of the book, without an outcome."""
        entry.leave()
        entry.queue = None
        entry.epoch = WITHDRAWN
        entry.invocation.ticket = None
        self._strike(entry)
        self._alarms.tidy(len(self._entries))

    def close(self, reason: str, kept: Collection[str] = ()) -> list[Effect]:
        """Settle everything that is left as failed, and from now on whatever is submitted."""
        self._closed = reason
        return self.leave(reason, kept=kept)

    def leave(
        self, reason: str, flow: str | None = None, kept: Collection[str] = ()
    ) -> list[Effect]:
        """Settle everything (of one flow) that is left as failed, and forget it.

        Where the flow is `kept` this may not be saved: whoever runs it next finds the rows.
        """
        live = self.unfinished(flow)
        effects = [effect for entry in live for effect in self._leave_undone(entry, reason)]
        for entry in live:
            if entry.invocation.flow_uuid in kept:
                self.forget(entry)
        return effects + self.retired(entry.invocation for entry in live)

    def _leave_undone(self, entry: Entry, reason: str) -> list[Effect]:
        error = exc.ExecutionFailure(
            f"task {entry.invocation.task.name!r} was left {entry.state}: {reason}"
        )
        return self._settle(entry, ft.Failure.from_exception(error), now=entry.request.since)
