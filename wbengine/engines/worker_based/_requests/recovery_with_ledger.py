"""Rules with a ledger: the row of a request determines the action.

A request whose row is OPEN is published again with the same epoch, which is harmless. If the owner
of a CLAIMED row is lost, the row is reopened or concluded in its place. A worker can die between
its claim and its first message, so the rows of requests at the front of a queue are read after a
loss, and while the queue stands still. If all workers of a queue drain or are suspended, and those
of another queue accept the task, requests whose rows are OPEN are also published there.
"""

from __future__ import annotations

import math
from typing import Final

from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages.request_messages import Reply
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests import recovery as rc
from wbengine.engines.worker_based._requests.recovery import Decision, Recovery, RowSnapshot
from wbengine.engines.worker_based._requests.request_state import REFUSED, TrackedRequest
from wbengine.transports import _ledger as ledgers

#: Number of heartbeat periods after which the owner of a row counts as silent.
LIVE_PERIODS: Final = 1.5

#: Minimum age (at most two periods) of a request before it is suspect because later ones were
#: consumed.
PASSED_SECONDS: Final = 10.0

#: Maximum number of rows that are read at a time, from the front of a queue.
MAX_FRONT_ROWS: Final = 250


class LedgerRecovery(Recovery):
    """Reads, revokes, reopens and concludes rows."""

    def on_event(self, event: rc.Event, now: float) -> list[Decision]:
        tracked = event.tracked
        match event:
            case rc.Inherited():
                return [rc.Inherit(tracked), *_inspect(tracked)]
            case rc.Unconfirmed():
                return [rc.Republish(tracked)]  # Only one of the copies can claim the row.
            case rc.StartRefused() | rc.TimedOut():
                return [fx.Revoke(tracked)]
            case rc.OwnerLost(_, worker):
                tracked.lost = worker
                return [fx.Inspect(tracked, worker)]
            case rc.Absent() | rc.CheckDue():
                return _inspect(tracked)
            case rc.Redelivered():
                return [fx.Inspect(tracked)] if tracked.lookups else _inspect(tracked)
            case rc.ClaimRefused() if tracked.state != pr.RUNNING and not tracked.lookups:
                return _inspect(tracked)
            case rc.Denied(_, worker):
                tracked.denied = worker == tracked.worker
                return [fx.Inspect(tracked)] if tracked.lookups and tracked.denied else []
            case rc.RowRead(_, row, lost):
                return self._on_row(tracked, row, lost, now)
            case rc.RowRevoked(_, revoked) if tracked.state != pr.RUNNING:
                if not revoked:
                    return [fx.Inspect(tracked)]
                # `Send` ends a request with a pending outcome, too. If two checks of an inherited
                # request found its row, the second revocation removes the row of the new message.
                is_timed_out = tracked.index is not self._inherited and tracked.expired_at(now)
                return rc.end_unstarted(tracked) if is_timed_out else [rc.Send(tracked)]
            case rc.RowReopened(_, epoch, None) if tracked.state == pr.RUNNING:
                if epoch < tracked.unused_epoch:
                    return []  # It was reopened twice, and then sent to another worker.
                tracked.resends += 1
                return [rc.Send(tracked, lost=True)]
            case rc.RowReopened(_, _, reply) if tracked.state == pr.RUNNING:
                return _on_done(tracked, reply)
            case rc.RowConcluded(_, failure) if tracked.state == pr.RUNNING:
                return [self._loss(tracked, failure)]
        return []

    # Queues.

    def on_queue_lost_worker(
        self, queue: str, worker: str | None, is_unserved: bool
    ) -> list[Decision]:
        limit = None if is_unserved else MAX_FRONT_ROWS
        return [fx.Inspect(each, worker) for each in self._in_flight.get(queue, limit)]

    def review_queue(self, queue: str, now: float) -> list[Decision]:
        suspects = [each for each in self._skipped_by_idle(queue) if _may_repeat(each, now)]
        if self._finder.rests(queue):
            suspects += [
                tracked
                for tracked in self._in_flight.each(queue)
                if tracked.opened
                and _may_repeat(tracked, now)
                and self._finder.is_avoided(queue, tracked.task_cls)
            ]
        for tracked in self._in_flight.passed_since(queue, now - 2 * PASSED_SECONDS):
            passed = not tracked.lookups and self._is_passed(tracked, now)
            if passed and _may_repeat(tracked, now):
                suspects.append(tracked)
        if self._in_flight.is_stalled(queue, now):
            # A worker may have died immediately after a claim. The check finds the owner, and the
            # engine then watches it.
            front = min(MAX_FRONT_ROWS, self._finder.free(queue))
            suspects += [
                tracked
                for tracked in self._in_flight.get(queue, front)
                if tracked.sent_at is not None and not tracked.lookups
            ]
        return [fx.Inspect(tracked) for tracked in dict.fromkeys(suspects)]

    def _is_passed(self, tracked: TrackedRequest, now: float) -> bool:
        sent_at, min_age = tracked.sent_at, min(PASSED_SECONDS, 2 * self._finder.period)
        return (
            sent_at is not None and now - sent_at > min_age and self._in_flight.is_passed(tracked)
        )

    # Rows.

    def _on_row(
        self, tracked: TrackedRequest, row: RowSnapshot, lost: str | None, now: float
    ) -> list[Decision]:
        if row.state == ledgers.ROW_DONE:
            return _on_done(tracked, row.result)
        if row.state == ledgers.ROW_CLAIMED and row.holder is not None:
            return self._on_claimed(tracked, row, row.holder, lost, now)
        if row.state == rc.UNKNOWN:
            return _on_unknown(tracked, lost, now)
        if tracked.index is self._inherited:
            if row.state is None:
                return self._on_missing(tracked)
            # With a higher epoch, the row belongs to another engine.
            later = row.epoch is not None and row.epoch > tracked.number
            return [] if later else [fx.Revoke(tracked)]
        if tracked.state == pr.RUNNING:
            return self._on_owner_missing(tracked, row, lost, now)
        tracked.lookups = 0
        if row.state is None and tracked.opened:
            # The lost row may have had an owner.
            tracked.worker = lost or tracked.worker
            return [rc.Hold(tracked, None), *self._lose(tracked, now)]
        return self._on_unclaimed(tracked, row, now)

    def _on_claimed(
        self, tracked: TrackedRequest, row: RowSnapshot, holder: str, lost: str | None, now: float
    ) -> list[Decision]:
        if tracked.refused is not None:
            tracked.refused = None  # The worker that refused the request does not own the row.
            if tracked.pending_outcome == REFUSED:
                tracked.pending_outcome = None
        is_lost = holder in (lost, tracked.lost) and not self._is_alive(holder, row.silence)
        if tracked.lookups:
            return self._on_owner(tracked, row, holder, row.silent or is_lost, now)
        if is_lost and holder == lost:
            tracked.worker = holder
            return [rc.Hold(tracked, None), *self._take_over(tracked, holder, now)]
        return [rc.Hold(tracked, holder, row.silence or 0.0)]

    def _is_alive(self, holder: str, silence: float | None) -> bool:
        """Return whether a worker that was considered lost has a recent heartbeat."""
        if silence is None or holder in self._ended_workers:
            return False
        return silence < LIVE_PERIODS * self._finder.period

    def _on_owner(
        self, tracked: TrackedRequest, row: RowSnapshot, holder: str, dead: bool, now: float
    ) -> list[Decision]:
        """Handle a checked request that has an owner: ask, or treat the owner as lost."""
        # The owner does not have the request, and would have stored its result before this report.
        dead = dead or (tracked.denied and tracked.worker == holder)
        tracked.adopt(row.epoch)
        tracked.opened = True
        found: list[Decision] = [rc.Hold(tracked, holder), rc.AcceptEarly(tracked)]
        if dead:
            return found + self._take_over(tracked, holder, now)
        tracked.denied = False
        return [*found, rc.Ask(tracked, holder)]

    def _on_missing(self, tracked: TrackedRequest) -> list[Decision]:
        """Handle the missing row of an inherited request.

        A row exists from before the request is published until its result is saved. So the request
        was not sent, unless an earlier run used another ledger.
        """
        is_unwanted = tracked.pending_outcome is not None
        if tracked.missing_row_reason and (is_unwanted or not self._repeats(tracked)):
            return [rc.Settle(tracked, tracked.loss_of_row())]
        return [rc.Send(tracked)]

    def _on_owner_missing(
        self, tracked: TrackedRequest, row: RowSnapshot, lost: str | None, now: float
    ) -> list[Decision]:
        """Handle the row of a running request, which was claimed earlier and is not now."""
        if not (tracked.lookups or tracked.worker == lost):
            return []
        if row.state is None:
            return self._lose(tracked, now)
        if row.state == ledgers.ROW_OPEN and row.epoch == tracked.epoch and tracked.claimed:
            tracked.release()  # The owner released its claim before the start.
            return [rc.Reroute(tracked)]
        if self._is_final_loss(tracked, now):
            return [self._loss(tracked, tracked.loss())]
        return [*_check_once(tracked), fx.Reopen(tracked, tracked.next_number)]

    def _on_unclaimed(
        self, tracked: TrackedRequest, row: RowSnapshot, now: float
    ) -> list[Decision]:
        """Handle a row without an owner: it is OPEN, or not created yet."""
        if tracked.refused is not None and tracked.pending_outcome is None:
            tracked.pending_outcome = REFUSED
        if tracked.pending_outcome is not None:
            if row.state is None:
                return [rc.Settle(tracked, tracked.failure_before_start())]
            is_own_row = row.epoch is None or row.epoch <= tracked.number
            return [fx.Revoke(tracked)] if is_own_row else []
        if tracked.index is self._in_flight and tracked.queue is not None:
            if row.epoch is not None and row.epoch > tracked.number:
                # An earlier run of this flow reopened the row, and died before it stored that.
                tracked.adopt(row.epoch)
                return [rc.Republish(tracked)]
            if self._finder.slots(tracked.queue) == 0:
                return [rc.Reroute(tracked)]
            if row.state is not None and _may_repeat(tracked, now):
                if self._finder.is_avoided(tracked.queue, tracked.task_cls):
                    return [rc.Reroute(tracked)]  # Only one of the copies can claim the row.
                if self._is_skipped_by_idle(tracked) or self._is_passed(tracked, now):
                    return [rc.Republish(tracked)]
        if tracked.expired_at(now):
            # The request is not published yet, or a worker can still receive it.
            return [rc.RestartTimeout(tracked)]
        return []

    def _take_over(self, tracked: TrackedRequest, worker: str, now: float) -> list[Decision]:
        """Reopen or conclude the row of a lost worker."""
        if self._is_final_loss(tracked, now):
            return [*_check_once(tracked), fx.Conclude(tracked, worker, tracked.loss(worker))]
        return [*_check_once(tracked), fx.Reopen(tracked, tracked.next_number)]


def _inspect(tracked: TrackedRequest) -> list[Decision]:
    return [rc.CheckLater(tracked), fx.Inspect(tracked)]


def _check_once(tracked: TrackedRequest) -> list[Decision]:
    """Read the row again later if the ledger is unavailable now."""
    return [] if tracked.lookups else [rc.CheckLater(tracked)]


def _on_done(tracked: TrackedRequest, reply: Reply | None) -> list[Decision]:
    if reply is None:  # The result cannot be decoded.
        return [rc.Settle(tracked, tracked.loss())]
    if tracked.lookups:
        tracked.adopt(reply.epoch)
    return [rc.AcceptStored(tracked, reply)]


def _on_unknown(tracked: TrackedRequest, lost: str | None, now: float) -> list[Decision]:
    if tracked.lookups:
        return []  # The next check is already scheduled.
    if tracked.state == pr.RUNNING or tracked.pending_outcome is not None or lost is not None:
        return [rc.CheckLater(tracked)]
    return [rc.RestartTimeout(tracked)] if tracked.expired_at(now) else []


def _may_repeat(tracked: TrackedRequest, now: float) -> bool:
    """Return whether another copy may be published now. Limits the rate of copies."""
    pause = rc.lookup_pause(tracked.publish_count) if tracked.publish_count > 1 else 0.0
    return now - (tracked.sent_at or -math.inf) >= pause
