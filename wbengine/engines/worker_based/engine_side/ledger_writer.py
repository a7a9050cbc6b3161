"""What an executor does in its ledger, and tells its tracker of it."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine._clock import SYSTEM
from wbengine._crash import crashpoint
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.engine_side.guards import FlowGuards
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import signing
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests.recovery import UNKNOWN, Seen
from wbengine.engines.worker_based.requests.tracked import TrackedRequest
from wbengine.engines.worker_based.requests.tracker import RequestTracker
from wbengine.types import failure as ft


class Rows:
    """The rows of one ledger.  A ledger that cannot be reached is an answer, and no error."""

    def __init__(
        self, ledger: ledgers.Ledger, expiry: float | None, signer: signing.Signer | None = None
    ) -> None:
        self._ledger = ledger
        self._signer = signer
        self._expiry = expiry
        # What does not work, and why, as long as it does not.
        self._told: set[tuple[str, str]] = set()

    def look(self, requests: Sequence[TrackedRequest]) -> list[Seen]:
        """The rows of requests, and of those that are claimed the silence of their holders."""
        rows = self._ledger.states([tracked.id for tracked in requests])
        held = (row.holder for row in rows if isinstance(row, ledgers.Row) and row.holder)
        holders = list(dict.fromkeys(held))
        silences = dict(zip(holders, self._ledger.silences(holders), strict=True))
        return [self._seen(*each, silences) for each in zip(requests, rows, strict=True)]

    def _seen(
        self,
        tracked: TrackedRequest,
        row: ledgers.Row | exc.LedgerFailure | None,
        silences: Mapping[str, float | exc.LedgerFailure | None],
    ) -> Seen:
        silence: float | exc.LedgerFailure | None = None
        if isinstance(row, ledgers.Row) and row.holder is not None:
            silence = silences[row.holder]
        for failed in (row, silence):
            if isinstance(failed, exc.LedgerFailure):
                self._tell("look at the row of", tracked, failed)
                return Seen(UNKNOWN)
        assert not isinstance(row, exc.LedgerFailure) and not isinstance(silence, exc.LedgerFailure)
        self._told.clear()
        if row is None:
            return Seen(None)
        silent = silence is not None and self._expiry is not None and silence >= self._expiry
        result = self._thawed(row.result, tracked)
        return Seen(row.state, row.holder, result, row.epoch, silent, silence)

    def revoke(self, requests: Sequence[TrackedRequest]) -> list[bool]:
        """Make sure that no worker starts requests whose messages may be out; of which it is."""
        crashpoint("executor.before-revoke")
        # Who takes the flow over while this process is frozen uses higher numbers.
        rows = [(each.id, max(each.epoch, each.invocation.epoch)) for each in requests]
        told = self._ledger.revoke_many(rows)
        crashpoint("executor.after-revoke")
        return [self._worked("revoke", *each) for each in zip(requests, told, strict=True)]

    def reopen(
        self, requests: Sequence[tuple[TrackedRequest, int]]
    ) -> list[tuple[bool, env.Envelope | None]]:
        """Take requests from their holders, under new epochs: whether that worked, and the answer
        of one that is done.
        """
        crashpoint("executor.before-reopen")
        told = self._ledger.reopen_many([(tracked.id, epoch) for tracked, epoch in requests])
        crashpoint("executor.after-reopen")
        found: list[tuple[bool, env.Envelope | None]] = []
        for (tracked, _), result in zip(requests, told, strict=True):
            if isinstance(result, exc.LedgerFailure):
                self._tell("reopen the row of", tracked, result)
                found.append((False, None))
            else:  # where there is no row, no worker has it
                answer = None if isinstance(result, exc.NotFound) else self._thawed(result, tracked)
                found.append((True, answer))
        return found

    def conclude(self, requests: Sequence[tuple[TrackedRequest, str, ft.Failure]]) -> list[bool]:
        """End requests for their holders, who are lost: of which that worked, and was not done
        yet.
        """
        found = []
        for holder, group in itertools.groupby(requests, lambda each: each[1]):
            some = list(group)
            rows = [(each.id, each.epoch, self._ended(each, failure)) for each, _, failure in some]
            for (tracked, _, _), told in zip(
                some, self._ledger.finish_many(holder, rows), strict=True
            ):
                found.append(self._worked("end, for its lost worker,", tracked, told))
        return found

    def _worked(self, what: str, tracked: TrackedRequest, told: bool | exc.LedgerFailure) -> bool:
        if isinstance(told, exc.LedgerFailure):
            self._tell(what, tracked, told)
            return False
        return told

    def sweep(self, ended: Iterable[str]) -> int:
        """Remove the rows of these requests, whose ends are saved; how many there were.

        Costs one look at the ledger when it is empty, whatever `ended` holds.
        """
        stale: list[str] = []
        try:
            known = self._ledger.ids()
            stale = [request_id for request_id in ended if request_id in known] if known else []
            if stale:
                crashpoint("executor.before-sweep")
                self._ledger.drop_many(stale)
        except exc.LedgerFailure as error:
            LOG.warning("failed to remove rows that nobody needs: %s", error)
        return len(stale)

    def _ended(self, tracked: TrackedRequest, failure: ft.Failure) -> bytes:
        answer = env.Envelope(
            pr.RESPONSE,
            {"state": pr.FAILURE, "data": {"result": pr.failure_to_dict(failure)}},
            correlation_id=tracked.id,
            headers={env.WBE_VERSION: env.VERSION, env.WBE_EPOCH: tracked.epoch},
            signer=self._signer,
        )
        return env.freeze(answer)

    def _thawed(self, result: bytes | None, tracked: TrackedRequest) -> env.Envelope | None:
        if result is None:
            return None
        try:
            return env.thaw(result, tracked.id, signer=self._signer)
        except (LookupError, TypeError, ValueError, exc.NotTrusted) as error:
            LOG.warning(
                "the answer to request %s in the ledger cannot be read: %s", tracked.id, error
            )
            return None

    def _tell(self, what: str, tracked: TrackedRequest, error: exc.LedgerFailure) -> None:
        """Once for each reason, until a look succeeds: it is the same for all requests."""
        reason = what, str(error).replace(tracked.id, "")
        level = logging.DEBUG if reason in self._told else logging.WARNING
        self._told.add(reason)
        LOG.log(level, "failed to %s %r: %s", what, tracked.request, error)


LOG = logging.getLogger(__name__)

#: Seconds after which rows are removed, together with those of requests that ended meanwhile.
_DROP_AFTER: Final = 0.02

#: Rows that could not be removed when their writer was closed, by the digest of their ledger: the
#: next one in this process sees to them.
_left_over: Final[dict[str, set[str]]] = {}

_Order = fx.Revoke | fx.Inspect | fx.Reopen | fx.Conclude


class LedgerWriter:
    """Opens, looks at, revokes, reopens, ends and drops rows, of flows that are still the engine's.

    Rows are opened by the thread that publishes.  All else is done by a thread of the writer's
    own, in order, what waits together in one step for each kind: a ledger that does not answer is
    waited for once for all of it, and by nothing else.  Without a ledger (see `use`) there are no
    rows.  `apply` performs effects of the tracker, whose lock is `lock`.
    """

    def __init__(
        self,
        expiry: float | None,
        tracker: RequestTracker,
        lock: threading.RLock,
        guards: FlowGuards,
        apply: Callable[[Iterable[fx.Effect]], None],
    ) -> None:
        self.ledger: ledgers.Ledger | None = None
        self._rows: Rows | None = None
        self._expiry = expiry
        self._tracker = tracker
        self._lock = lock
        self._guards = guards
        self._apply = apply
        self._doing: dict[type, Callable[[Any], None]] = {
            fx.Revoke: self._revoke,
            fx.Inspect: self._inspect,
            fx.Reopen: self._reopen,
            fx.Conclude: self._conclude,
        }
        # Taken by itself: an interruption (Ctrl-C) within the condition's `__enter__`, which is
        # Python, would leave it locked for ever.
        self._waiting = threading.RLock()
        self._changed = threading.Condition(self._waiting)
        self._orders: deque[_Order] = deque()
        # Requests whose rows are to be removed, when; and those that could not be.
        self._drops: list[str] = []
        self._drops_due = math.inf
        self._undropped: set[str] = set()
        # What makes rows in one step with publishing, if anything does.
        self._openings: ledgers.Openings | None = None
        # Requests that are being withdrawn, and those whose rows are being made while they are
        # published: missing rows of theirs are no lost ones; and those of them that were to be
        # inspected meanwhile.
        self._withdrawing: set[str] = set()
        self._opening: set[str] = set()
        self._postponed: list[fx.Inspect] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def use(
        self,
        ledger: ledgers.Ledger | None,
        signer: signing.Signer | None = None,
        openings: ledgers.Openings | None = None,
    ) -> None:
        """Keep rows in a ledger from now on; with a `signer`, outcomes are signed."""
        self.ledger = ledger
        self._openings = openings
        self._opening.clear()
        if ledger is not None:
            self._undropped |= _left_over.pop(ledger.digest, set())
        self._rows = Rows(ledger, self._expiry, signer) if ledger is not None else None
        self._closed = False

    # Opening; in the thread that publishes.

    def open(self, made: Iterable[fx.Dispatch]) -> list[fx.Dispatch]:
        """Make the rows of requests that were not published before: a row that is removed by now
        must not come back.  Returns those.

        :raises LedgerFailure: the ledger cannot be reached.
        """
        if self.ledger is None:
            return []
        new = [effect for effect in made if not effect.tracked.opened]
        if new:
            crashpoint("executor.before-open")
            # Nothing can be in the way of a first epoch; of others perhaps what an owner of old
            # made, who was frozen then: he published nothing after that.
            if first := [(each.tracked.id, 1) for each in new if each.epoch == 1]:
                self.ledger.open_many(first)
            self.ledger.offer_many([(e.tracked.id, e.epoch) for e in new if e.epoch != 1])
            for effect in new:
                effect.tracked.opened = True
            crashpoint("executor.after-open")
        return new

    def take_back(self, effect: fx.Dispatch) -> None:
        """Remove the row of a request that ended while it was made."""
        if self.ledger is not None and self._guards.owns(effect.tracked.flow):
            self.ledger.revoke(effect.tracked.id, effect.epoch)

    def opens_while_publishing(self, effect: fx.Dispatch) -> bool:
        """Whether the row of a request may be made in one step with publishing it: nothing can be
        in its way, and nobody else can own its flow meanwhile, which is not kept."""
        return (
            self._openings is not None
            and effect.epoch == 1
            and not effect.tracked.opened
            and effect.tracked.flow not in self._guards.flows
        )

    def publish(
        self,
        broker: Any,
        messages: Sequence[tuple[fx.Dispatch, Any]],
        begin: Callable[[fx.Dispatch], bool],
    ) -> list[bool]:
        """Make rows and publish their messages in one step; whether there was a queue for each.

        `begin(effect)` says whether it is still wanted; nobody looks for its row from then on until
        the step is answered, however often it is tried.
        """
        assert self._openings is not None
        crashpoint("executor.before-open")
        with self._lock:
            wanted = [(effect, message) for effect, message in messages if begin(effect)]
            rows = [effect.tracked.row_to_open() for effect, _ in wanted]
            self._opening |= {row.id for row in rows}
        answered = {effect.tracked.id for effect, _ in messages}
        counts: Sequence[int] = ()
        try:
            if wanted:
                laid_out = [message for _, message in wanted]
                counts = self._openings.open_and_publish(broker, rows, laid_out)
        except BaseException:
            answered -= {row.id for row in rows if row.tried is not None}
            raise
        finally:
            with self._lock:
                for (effect, _), _ in zip(wanted, counts, strict=False):
                    effect.tracked.opened |= effect.tracked.epoch == effect.epoch
            self.let_look(answered)
        crashpoint("executor.after-open")
        unrouted = {id(e) for (e, _), count in zip(wanted, counts, strict=True) if not count}
        return [id(effect) not in unrouted for effect, _ in messages]

    def let_look(self, ids: Collection[str]) -> None:
        """It is known by now whether these have rows, or nobody wants to know."""
        self._let_look(self._opening, ids)

    def _let_look(self, busy: set[str], ids: Collection[str]) -> None:
        with self._lock:
            busy.difference_update(ids)
            postponed, self._postponed = self._postponed, []
        for effect in postponed:
            self._put(effect)

    # From any thread.

    def perform(self, effect: fx.Revoke | fx.Inspect | fx.Reopen | fx.Conclude) -> None:
        """Do it soon, in the writer's thread, and tell the tracker of it.  Returns at once."""
        if self._rows is not None:
            self._put(effect)
        elif isinstance(effect, fx.Revoke):  # without a ledger it cannot be known
            self._tell(self._tracker.recovery.on_revoked, effect.tracked, True)

    def withdraw(
        self, requests: Sequence[TrackedRequest], tell: Callable[[Collection[str]], None]
    ) -> None:
        """Make sure that no worker can start these any more, as far as that can be.

        `tell` is told of which it is, by their ids, under the tracker's lock.  In this thread: the
        thread that stops an engine may hold what the check of its flow waits for.
        """
        ids = {tracked.id for tracked in requests}
        with self._lock:
            self._withdrawing |= ids
        try:
            epochs, revoked = self._revoke_rows(requests)
            told = zip(requests, epochs, revoked, strict=True)
            with self._lock:
                tell({t.id for t, epoch, done in told if done and t.epoch == epoch})
        finally:
            self._let_look(self._withdrawing, ids)

    def drop(self, *request_ids: str) -> None:
        """Remove the rows of requests whose ends are saved, together with others, some time soon;
        again and again, if that cannot be done.
        """
        if self.ledger is None:
            return
        with self._waiting:
            if not self._drops:
                self._drops_due = time.monotonic() + _DROP_AFTER
                self._rouse()
            self._drops += request_ids

    def drop_again(self) -> None:
        """Try again to remove what could not be removed."""
        if self._undropped:
            with self._waiting:
                undropped, self._undropped = self._undropped, set()
            self.drop(*undropped)

    def sweep(self, ended: Iterable[str]) -> None:
        """Remove the rows of requests that ended, and that no run will retire any more."""
        if self._rows is not None:
            self._rows.sweep(ended)

    def close(self) -> None:
        """Do what is left to be done, and close the ledger."""
        with self._waiting:
            self._closed = True
            thread = self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        if self.ledger is not None:
            left = [*self._drops, *self._undropped]
            self._drops, self._undropped = [], set()
            self._drop(left)
            if self._undropped:
                _left_over.setdefault(self.ledger.digest, set()).update(self._undropped)
                self._undropped = set()
            self.ledger.close()

    def _put(self, order: _Order) -> None:
        with self._waiting:
            if not self._closed:
                self._orders.append(order)
                self._rouse()

    def _rouse(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="wbengine-ledger", daemon=True)
            thread.start()
            self._thread = thread
        self._changed.notify_all()

    # The writer's thread.

    def _run(self) -> None:
        while True:
            with self._waiting:
                while not (self._orders or self._closed):
                    left = self._drops_due - time.monotonic()
                    if left <= 0:
                        break
                    self._changed.wait(None if left == math.inf else left)
                orders, drops = list(self._orders), self._drops
                self._orders.clear()
                if orders:
                    drops = []
                else:
                    self._drops, self._drops_due = [], math.inf
                if not (orders or drops):  # it is closed
                    self._thread = None
                    return
            for kind, group in itertools.groupby(orders, type):
                try:
                    self._doing[kind](list(group))
                except Exception:  # the others are owed to other requests
                    LOG.exception("failed to perform %s", kind.__name__)
            if drops:
                self._drop(drops)

    def _revoke(self, effects: Sequence[fx.Revoke]) -> None:
        requests = [effect.tracked for effect in effects]
        while requests:
            epochs, revoked = self._revoke_rows(requests)
            found: list[fx.Effect] = []
            again = []
            with self._lock:
                now = SYSTEM.monotonic()
                for tracked, epoch, done in zip(requests, epochs, revoked, strict=True):
                    if done and tracked.epoch != epoch:
                        again.append(tracked)  # it was sent again just then
                    else:
                        found += self._tracker.recovery.on_revoked(tracked, done, now)
            self._apply(found)
            requests = again

    def _revoke_rows(self, requests: Sequence[TrackedRequest]) -> tuple[list[int], list[bool]]:
        """The epochs of requests, and whether their rows were removed: no worker can start them."""
        with self._lock:
            epochs = [tracked.epoch for tracked in requests]
        owned = [self._guards.owns(tracked.flow) for tracked in requests]
        ours = list(itertools.compress(requests, owned))
        revoked = iter(self._rows.revoke(ours) if self._rows is not None and ours else ())
        return epochs, [each and next(revoked, False) for each in owned]

    def _inspect(self, effects: Sequence[fx.Inspect]) -> None:
        assert self._rows is not None
        while effects:
            with self._lock:  # or one could be on its way even now, and come later
                before = [_stage(effect.tracked) for effect in effects]
            seen = self._rows.look([effect.tracked for effect in effects])
            found: list[fx.Effect] = []
            again = []
            with self._lock:
                now = SYSTEM.monotonic()
                for effect, stage, row in zip(effects, before, seen, strict=True):
                    if effect.tracked.id in self._withdrawing | self._opening:
                        self._postponed.append(effect)
                    elif stage == _stage(effect.tracked):
                        found += self._tracker.recovery.on_row(
                            effect.tracked, row, now, effect.lost
                        )
                    else:
                        again.append(effect)  # it was being published: what was seen is of the past
            self._apply(found)
            effects = again

    def _reopen(self, effects: Sequence[fx.Reopen]) -> None:
        assert self._rows is not None
        effects = [each for each in effects if self._guards.owns(each.tracked.flow)]
        told = self._rows.reopen([(each.tracked, each.epoch) for each in effects])
        for effect, (done, answer) in zip(effects, told, strict=True):
            if done:  # else it is looked at again
                self._tell(self._tracker.recovery.on_reopened, effect.tracked, answer)

    def _conclude(self, effects: Sequence[fx.Conclude]) -> None:
        assert self._rows is not None
        effects = [each for each in effects if self._guards.owns(each.tracked.flow)]
        told = self._rows.conclude([(e.tracked, e.holder, e.failure) for e in effects])
        for effect, done in zip(effects, told, strict=True):
            if done:
                self._tell(self._tracker.recovery.on_concluded, effect.tracked, effect.failure)

    def _tell(
        self, on_done: Callable[..., list[fx.Effect]], tracked: TrackedRequest, found: Any
    ) -> None:
        with self._lock:
            effects = on_done(tracked, found, SYSTEM.monotonic())
        self._apply(effects)

    def _drop(self, request_ids: Sequence[str]) -> None:
        assert self.ledger is not None
        if not request_ids:
            return
        crashpoint("executor.before-drop")
        try:
            self.ledger.drop_many(request_ids)
        except Exception as error:
            with self._waiting:
                self._undropped.update(request_ids)
            known = isinstance(error, exc.LedgerFailure)
            LOG.warning(
                "failed to remove %d rows, trying again",
                len(self._undropped),
                exc_info=None if known else error,
            )
        crashpoint("executor.after-drop")


def _stage(tracked: TrackedRequest) -> tuple[int, bool, int]:
    """How far its publishing is."""
    return tracked.epoch, tracked.opened, tracked.sendings
