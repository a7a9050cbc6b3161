"""Publish the requests of an executor, and change their rows. Its tracker receives the results."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine._concurrency import conditions, threads
from wbengine._concurrency.clocks import SYSTEM
from wbengine._concurrency.crash_points import crashpoint
from wbengine.engines.worker_based._connections.sender import DeliveryHooks, OutgoingMessage
from wbengine.engines.worker_based._engine_side.rows import Rows
from wbengine.engines.worker_based._engine_side.tracker_events import FlowGuards, LockedTracker
from wbengine.engines.worker_based._messages import signing
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests import recovery as rc
from wbengine.engines.worker_based._requests.request_state import TrackedRequest
from wbengine.transports import _ledger as ledgers
from wbengine.transports._broker import Broker

LOG = logging.getLogger(__name__)

_DROP_DELAY_SECONDS: Final = 0.02

#: Rows that could not be removed, by digest of the ledger, for the next writer in this process.
_remaining_drops: Final[dict[str, set[str]]] = {}

_RowEffect = fx.Revoke | fx.Inspect | fx.Reopen | fx.Conclude

#: Epoch, whether the row was opened, and number of publishings of a request.
_Stage = tuple[int, bool, int]


class Publishing(DeliveryHooks):
    """Publishes a request after its row is opened, unless the request has ended."""

    mandatory = True

    def __init__(self, writer: LedgerWriter, requests: LockedTracker, guards: FlowGuards) -> None:
        self._requests = requests
        self._tracker = requests.tracker
        self._guards = guards
        self._writer = writer

    @property
    def repeats(self) -> bool:
        # With a ledger, a duplicate message is harmless.
        return self._writer.ledger is not None

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        wanted: list[OutgoingMessage] = []
        for message in messages:
            message.withdrawn = not self._begin(message.correlation)
            if not message.withdrawn:
                wanted.append(message)
                for observer in self._tracker.observers:
                    observer.publishing(message.correlation.tracked, message.envelope)
        # Requests may have ended while their rows were opened.
        for message in self._writer.open(wanted):
            if not self._begin(message.correlation, 0):
                message.withdrawn = True
                self._writer.revoke_opened(message.correlation)

    def _begin(self, effect: fx.Dispatch, times: int = 1) -> bool:
        return self._guards.owns(effect.tracked.flow) and self._writer.begin(effect, times)

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        for observer in self._tracker.observers:
            for message in messages:
                observer.published(message.correlation.tracked, None)

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        for observer in self._tracker.observers:
            observer.published(message.correlation.tracked, error)
        self._requests.report(self._tracker.on_unsent, message.correlation.tracked, error)

    def unrouted(self, message: OutgoingMessage) -> None:
        effect = message.correlation
        self._requests.report(self._tracker.on_unrouted, effect.tracked, effect.epoch)

    def uncertain(self, message: OutgoingMessage) -> None:
        effect = message.correlation
        self._requests.report(self._tracker.on_unconfirmed, effect.tracked, effect.epoch)


class OpeningPublishing(Publishing):
    """Opens the rows of requests in one step with publishing."""

    writes = True

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        for message in messages:
            tracked = message.correlation.tracked
            if not tracked.live or tracked.epoch != message.correlation.epoch:
                message.withdrawn = True
                self._writer.permit_inspection((tracked.id,))
                continue
            for observer in self._tracker.observers:
                observer.publishing(tracked, message.envelope)

    def write(self, broker: Broker, messages: Sequence[OutgoingMessage]) -> Iterable[bool]:
        return self._writer.publish(broker, messages)


class LedgerWriter:
    """Opens, reads, revokes, reopens, completes and drops rows of flows that the engine still owns.

    The publishing thread opens rows. A thread of the writer performs all other operations except
    `withdraw`, in order and in batches of the same kind. So an unresponsive ledger delays only this
    thread, once per batch.
    """

    def __init__(self, expiry: float | None, requests: LockedTracker, guards: FlowGuards) -> None:
        self.ledger: ledgers.Ledger | None = None
        self._rows: Rows | None = None
        self._expiry = expiry
        self._requests = requests
        self._tracker = requests.tracker
        self._guards = guards
        self._publishing = Publishing(self, requests, guards)
        self._opening_publishing = OpeningPublishing(self, requests, guards)
        self._operations: dict[type, Callable[[Any], None]] = {
            fx.Revoke: self._revoke,
            fx.Inspect: self._inspect,
            fx.Reopen: self._reopen,
            fx.Conclude: self._conclude,
        }
        self._queue_lock = threading.RLock()
        self._changed = conditions.Condition(self._queue_lock)
        self._queued_effects: list[_RowEffect] = []
        # Requests whose rows are to be removed, the time of removal, and failed removals.
        self._drops: list[str] = []
        self._drops_due = math.inf
        self._failed_drops: set[str] = set()
        # Whether the broker opens rows in the step that publishes their requests.
        self._broker_opens = False
        # Requests that are being withdrawn, and requests whose rows are being opened together with
        # publishing. Their inspections are postponed: a missing row would look like a lost one.
        self._withdrawing: set[str] = set()
        self._opening: set[str] = set()
        self._postponed: list[fx.Inspect] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def use(
        self,
        ledger: ledgers.Ledger | None,
        signer: signing.Signer | None = None,
        *,
        broker_opens: bool = False,
    ) -> None:
        """Set the ledger. With a `signer`, results are signed.

        :param broker_opens: whether `Broker.open_and_publish` opens its rows.
        """
        self.ledger = ledger
        self._broker_opens = broker_opens
        self._opening.clear()
        if ledger is not None:
            self._failed_drops |= _remaining_drops.pop(ledger.digest, set())
        self._rows = Rows(ledger, self._expiry, signer) if ledger is not None else None
        self._closed = False

    # Methods for the publishing thread.

    def open(self, messages: Iterable[OutgoingMessage]) -> list[OutgoingMessage]:
        """Open the rows of requests that were never published, and return their messages.

        Rows of other requests may have been removed, and must not be created again.

        :raises LedgerFailure: if the ledger cannot be reached.
        """
        if self.ledger is None:
            return []
        new = [each for each in messages if not each.correlation.tracked.opened]
        if new:
            crashpoint("executor.before-open")
            effects: list[fx.Dispatch] = [each.correlation for each in new]
            self.ledger.open_many([(e.tracked.id, e.epoch, e.tracked.fence) for e in effects])
            for effect in effects:
                effect.tracked.opened = True
            crashpoint("executor.after-open")
        return new

    def revoke_opened(self, effect: fx.Dispatch) -> None:
        """Remove the row of a request that ended while the row was being opened."""
        if self.ledger is not None and self._guards.owns(effect.tracked.flow):
            self.ledger.revoke(effect.tracked.id, effect.epoch, effect.tracked.fence)

    def begin(self, effect: fx.Dispatch, times: int = 1) -> bool:
        """Return whether a request is still needed; if so, count `times` more publishings."""
        tracked = effect.tracked
        with self._requests.lock:
            is_wanted = tracked.live and tracked.epoch == effect.epoch
            if is_wanted:
                tracked.publish_count += times
                tracked.sent_at = SYSTEM.monotonic()
            return is_wanted

    def publish(self, broker: Broker, messages: Sequence[OutgoingMessage]) -> list[bool]:
        """Open rows and publish in one step; return for each message whether it had a queue.

        From `begin` on, inspections of a row wait until the step has completed, including retries.
        """
        crashpoint("executor.before-open")
        flows = {message.correlation.tracked.flow for message in messages}
        owned = {flow for flow in flows if self._guards.owns(flow)}
        with self._requests.lock:
            wanted = [
                message
                for message in messages
                if message.correlation.tracked.flow in owned and self.begin(message.correlation)
            ]
            rows = [message.correlation.tracked.row_to_open() for message in wanted]
            self._opening |= {row.id for row in rows}
        answered = {message.correlation.tracked.id for message in messages}
        try:
            counts = broker.open_and_publish(rows, wanted) if wanted else ()
            with self._requests.lock:
                for message in wanted:
                    effect = message.correlation
                    effect.tracked.opened |= effect.tracked.epoch == effect.epoch
        except BaseException:
            answered -= {row.id for row in rows if row.tried is not None}
            raise
        finally:
            self.permit_inspection(answered)
        crashpoint("executor.after-open")
        unrouted = {id(each) for each, count in zip(wanted, counts, strict=True) if not count}
        return [id(message) not in unrouted for message in messages]

    def permit_inspection(self, ids: Collection[str]) -> None:
        """Permit inspections of these requests: their rows exist, or are no longer needed."""
        self._permit_inspections(self._opening, ids)

    def _permit_inspections(self, busy: set[str], ids: Collection[str]) -> None:
        with self._requests.lock:
            busy.difference_update(ids)
            postponed, self._postponed = self._postponed, []
        for effect in postponed:
            self.perform(effect)

    # Thread-safe methods.

    def message(self, effect: fx.Dispatch) -> OutgoingMessage:
        """Return the message of a request, whose row is opened when it is published.

        If the row is opened together with publishing, no row with a lower epoch exists, whose
        removal could be mistaken for that of this row: earlier runs are fenced, and their row of
        the request was read and revoked.
        """
        opens = self._broker_opens and not effect.tracked.opened
        hooks = self._opening_publishing if opens else self._publishing
        return OutgoingMessage(effect.envelope, hooks, effect)

    def perform(self, effect: _RowEffect) -> None:
        """Queue an operation for the writer's thread, which reports the result to the tracker."""
        with self._queue_lock:
            if not self._closed:
                self._queued_effects.append(effect)
                self._start_or_wake()

    def withdraw(
        self, requests: Sequence[TrackedRequest], tell: Callable[[Collection[str]], None]
    ) -> None:
        """Revoke the rows of these requests, where possible, so that no worker starts them.

        `tell` is called under the tracker's lock with the ids of the revoked requests. This runs
        in the calling thread, which may hold a lock that the check of the flow needs.
        """
        ids = {tracked.id for tracked in requests}
        with self._requests.lock:
            self._withdrawing |= ids
        try:
            results = self._revoke_rows(requests)
            with self._requests.lock:
                tell({t.id for t, s, r in results if self._is_revoked(t, s, r) and t.epoch == s[0]})
        finally:
            self._permit_inspections(self._withdrawing, ids)

    def drop(self, *request_ids: str) -> None:
        """Remove the rows of requests with saved results: later, in one batch, with retries."""
        if self.ledger is None:
            return
        with self._queue_lock:
            if not self._drops:
                self._drops_due = time.monotonic() + _DROP_DELAY_SECONDS
                self._start_or_wake()
            self._drops += request_ids

    def retry_drops(self) -> None:
        if self._failed_drops:
            with self._queue_lock:
                undropped, self._failed_drops = self._failed_drops, set()
            self.drop(*undropped)

    def raise_fence(self, fence: ledgers.Fence) -> int:
        """Exclude earlier runs of a flow from the ledger. See `Ledger.raise_fence`.

        :raises LedgerFailure: if the ledger cannot be reached.
        """
        if self.ledger is None:
            return fence.number
        crashpoint("executor.before-fence")
        number = self.ledger.raise_fence(fence)
        crashpoint("executor.after-fence")
        return number

    def sweep(self, ended: Iterable[str]) -> None:
        if self._rows is not None:
            self._rows.sweep(ended)

    def close(self) -> None:
        with self._queue_lock:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if self.ledger is not None:
            remaining = [*self._drops, *self._failed_drops]
            self._drops, self._failed_drops = [], set()
            self._drop(remaining)
            if self._failed_drops:
                _remaining_drops.setdefault(self.ledger.digest, set()).update(self._failed_drops)
                self._failed_drops = set()
            self.ledger.close()

    def _start_or_wake(self) -> None:
        if self._thread is None:
            thread = threads.Thread(target=self._run, name="wbengine-ledger", daemon=True)
            try:
                thread.start()
            finally:  # also after an interrupt
                self._thread = None if thread.ident is None else thread
        self._changed.notify_all()

    # Methods for the writer's thread.

    def _run(self) -> None:
        while True:
            with self._queue_lock:
                while not (self._queued_effects or self._closed):
                    wait_seconds = self._drops_due - time.monotonic()
                    if wait_seconds <= 0:
                        break
                    self._changed.wait(None if wait_seconds == math.inf else wait_seconds)
                effects, self._queued_effects = self._queued_effects, []
                drops: list[str] = []
                if not effects:
                    drops, self._drops, self._drops_due = self._drops, [], math.inf
                if not (effects or drops):
                    self._thread = None
                    return
            for kind, group in itertools.groupby(effects, type):
                try:
                    self._operations[kind](list(group))
                except Exception:  # The remaining operations belong to other requests.
                    LOG.exception("failed to perform %s", kind.__name__)
            self._drop(drops)

    def _revoke(self, effects: Sequence[fx.Revoke]) -> None:
        requests = [effect.tracked for effect in effects]
        while requests:
            results = self._revoke_rows(requests)
            followups: list[fx.Effect] = []
            resent = []
            with self._requests.lock:
                now = SYSTEM.monotonic()
                for tracked, stage, result in results:
                    revoked = self._is_revoked(tracked, stage, result)
                    if revoked and tracked.epoch != stage[0]:
                        resent.append(tracked)  # It was resent after its epoch was read.
                    else:
                        followups += self._tracker.on_event(rc.RowRevoked(tracked, revoked), now)
            self._requests.apply(followups)
            requests = resent

    def _revoke_rows(
        self, requests: Sequence[TrackedRequest]
    ) -> list[tuple[TrackedRequest, _Stage, bool | None]]:
        with self._requests.lock:
            stages = [_stage(tracked) for tracked in requests]
        owned = [self._guards.owns(tracked.flow) for tracked in requests]
        to_revoke = list(itertools.compress(requests, owned))
        revoked = iter(self._rows.revoke(to_revoke) if self._rows and to_revoke else ())
        results = [next(revoked, False) if is_owned else False for is_owned in owned]
        return list(zip(requests, stages, results, strict=True))

    def _is_revoked(self, tracked: TrackedRequest, stage: _Stage, result: bool | None) -> bool:
        """Interpret a result of `_revoke_rows`; call this with the lock.

        A row that is missing was removed, unless it may be opened after it was looked up.
        """
        if result is None:
            return tracked.id not in self._opening and stage == _stage(tracked)
        return result

    def _inspect(self, effects: Sequence[fx.Inspect]) -> None:
        assert self._rows is not None
        while effects:
            with self._requests.lock:  # A request may be published while its row is read.
                stages = [_stage(effect.tracked) for effect in effects]
            seen = self._rows.read([effect.tracked for effect in effects])
            followups: list[fx.Effect] = []
            outdated = []
            with self._requests.lock:
                now = SYSTEM.monotonic()
                for effect, stage, row in zip(effects, stages, seen, strict=True):
                    if effect.tracked.id in self._withdrawing | self._opening:
                        self._postponed.append(effect)
                    elif stage == _stage(effect.tracked):
                        event = rc.RowRead(effect.tracked, row, effect.lost)
                        followups += self._tracker.on_event(event, now)
                    else:
                        # The request changed during the read: the row may be outdated.
                        outdated.append(effect)
            self._requests.apply(followups)
            effects = outdated

    def _reopen(self, effects: Sequence[fx.Reopen]) -> None:
        assert self._rows is not None
        effects = [each for each in effects if self._guards.owns(each.tracked.flow)]
        results = self._rows.reopen([(each.tracked, each.epoch) for each in effects])
        for effect, (done, answer) in zip(effects, results, strict=True):
            if done:  # Otherwise the row is inspected again.
                event = rc.RowReopened(effect.tracked, effect.epoch, answer)
                self._requests.report(self._tracker.on_event, event)

    def _conclude(self, effects: Sequence[fx.Conclude]) -> None:
        assert self._rows is not None
        effects = [each for each in effects if self._guards.owns(each.tracked.flow)]
        results = self._rows.conclude([(e.tracked, e.holder, e.failure) for e in effects])
        for effect, done in zip(effects, results, strict=True):
            if done:
                event = rc.RowConcluded(effect.tracked, effect.failure)
                self._requests.report(self._tracker.on_event, event)

    def _drop(self, request_ids: Sequence[str]) -> None:
        if not request_ids:
            return
        assert self.ledger is not None
        crashpoint("executor.before-drop")
        try:
            self.ledger.drop_many(request_ids)
        except Exception as error:
            with self._queue_lock:
                self._failed_drops.update(request_ids)
            is_expected = isinstance(error, exc.LedgerFailure)
            LOG.warning(
                "failed to delete %d ledger rows, retrying",
                len(self._failed_drops),
                exc_info=None if is_expected else error,
            )
        crashpoint("executor.after-drop")


def _stage(tracked: TrackedRequest) -> _Stage:
    return tracked.epoch, tracked.opened, tracked.publish_count
