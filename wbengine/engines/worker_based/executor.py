"""The engine's side of the wire: threads, sockets and a lock around `RequestTracker`."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine import _names, invocation
from wbengine import exceptions as exc
from wbengine._clock import SYSTEM
from wbengine._crash import crashpoint
from wbengine.engines.worker_based import dispatcher, proxy, types
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.connections import listening, serving, topology
from wbengine.engines.worker_based.connections.parcels import Errand, Parcel
from wbengine.engines.worker_based.engine_side import heir, tenure
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests.options import RequestOptions
from wbengine.engines.worker_based.requests.tracked import TrackedRequest
from wbengine.engines.worker_based.requests.tracker import RequestTracker
from wbengine.types import failure as ft

LOG = logging.getLogger(__name__)


class WorkerTaskExecutor(tenure.Tenure):
    """Run tasks on remote workers.

    `uuid` names the executor and its reply queue.  `topics` limits which workers it uses (patterns
    such as `video.*` are allowed); without any, all that it hears of.  `transition_timeout` is how
    long, in seconds, a request may wait for a worker to offer it, or an idle one to start it (None:
    for ever).  `worker_expiry` is the silence, in seconds, after which a worker is lost (None: it
    never is).  `ledger` is the place of the ledger that its workers share with it (see `ledger` of
    `WorkerBasedActionEngine`).  The other options are those of `RequestOptions`.

    Several engines may use one executor.  It runs as long as one of them does, or, once `start` was
    called, until `stop`.

    Thread-safe; `start` and `stop` are idempotent.  Outcomes are reported on threads of the
    executor's own.
    """

    def __init__(
        self,
        uuid: str,
        exchange: str,
        topics: Sequence[str] | str = (),
        transition_timeout: float | None = pr.REQUEST_TIMEOUT,
        url: str | None = None,
        transport: str | None = None,
        transport_options: Mapping[str, Any] | None = None,
        retry_options: Mapping[str, Any] | None = None,
        worker_expiry: float | None = 60,
        *,
        interop: str | None = None,
        ledger: str | None = None,
        **options: Any,
    ) -> None:
        self._options = RequestOptions.of(options)
        self._uuid = uuid
        self._exchange = exchange
        self._broker = (url, transport, transport_options, retry_options)
        topics = _names.words("topics", topics)
        self._interop = topology.check_plainly(interop, topics, ledger)
        self._place = ledgers.NONE if interop else ledgers.check_place(ledger)
        self._lock = threading.RLock()
        # When the finder is to ask and to look for silent workers next.
        self._round_due = 0.0
        super().__init__()
        self._dispatching, self._posting = _Dispatching(self), _Posting(self)
        self._proxy = self._make_proxy()
        self._expiry = worker_expiry if worker_expiry and worker_expiry > 0 else None
        self._finder = types.ProxyWorkerFinder(
            uuid,
            self,
            topics,
            worker_expiry=worker_expiry,
            interop=interop is not None,
            on_change=self._on_workers,
            on_ids=self._on_ids,
            holds=lambda worker: self._tracker.holds(worker),
            served=serving.inquiry(self._proxy.target, exchange) if interop else None,
        )
        self._tracker = RequestTracker(
            uuid, self._finder, transition_timeout=transition_timeout, options=self._options
        )
        self._tracker.plain = interop is not None

    def _make_proxy(self) -> proxy.Proxy:
        handlers = {
            pr.NOTIFY: dispatcher.Handler(self._on_notify, _validate_notify),
            pr.RESPONSE: dispatcher.Handler(self._on_response, pr.Response.validate, owns_ack=True),
        }
        return proxy.Proxy(
            self._uuid,
            self._exchange,
            handlers,
            self._on_wait,
            *self._broker,
            bindings=(env.ALL_ENGINES,),
            until=self._until,
            interop=self._interop,
        )

    @property
    def uuid(self) -> str:
        return self._uuid

    @property
    def finder(self) -> types.ProxyWorkerFinder:
        return self._finder

    def publish(self, *args: Any, **kwargs: Any) -> None:
        """Publish a message (see `Proxy.publish`); what the finder asks goes this way."""
        self._proxy.publish(*args, **kwargs)

    # The waist.

    def submit(self, call: invocation.Invocation, done: invocation.Done) -> None:
        self.submit_many((call,), done)

    def submit_many(
        self, invocations: Iterable[invocation.Invocation], done: invocation.Done
    ) -> None:
        now = SYSTEM.monotonic()
        alone: fx.Dispatch | None = None
        for count, call in enumerate(invocations):
            if _nothing_to_undo(call):
                done(call, invocation.Outcome(None))
                continue
            with self._lock:
                take = self._tracker.recovery.recover if call.recovered else self._tracker.submit
                effects = take(call, done, now)
            if alone is not None:
                self._perform(alone)
                alone = None
            if not count and len(effects) == 1 and isinstance(effects[0], fx.Dispatch):
                alone = effects[0]
            else:
                self._apply(effects)
            if call.cancellation.cancelled:  # perhaps before it was known here
                self._report(self._tracker.cancel, (call,))
        if alone is not None:  # there is nothing to do but to wait for it
            errand = self._posting if self._posts(alone) else self._dispatching
            self._proxy.send_now(Parcel(alone.envelope, errand, alone))
        if self._tracker.recovery.unasked:
            with self._lock:
                effects = self._tracker.recovery.ask()
            self._apply(effects)
        self._nudge()

    def retire(self, invocations: Iterable[invocation.Invocation]) -> None:
        with self._lock:
            effects = self._tracker.retired(invocations)
        # All of a turn together.
        rows = [effect.request_id for effect in effects if isinstance(effect, fx.Drop)]
        receipts = [effect.receipt for effect in effects if isinstance(effect, fx.Acknowledge)]
        for let_go, things in ((self._forget_rows, rows), (self._proxy.ack_later, receipts)):
            try:
                if things:
                    let_go(*things)
            except Exception:
                LOG.exception("failed to let go of what is saved")

    def _is_ours(self, tracked: TrackedRequest) -> bool:
        check = self._guards.get(tracked.invocation.flow_uuid)
        return check is None or heir.passes(check)

    def _reads(self) -> bool:
        """Whether the answers that come are for us, and not for whoever has our name by now."""
        return not self._disowned and (self._sole is None or heir.passes(self._sole))

    # What comes.

    def _on_notify(self, data: Any, message: Any) -> None:
        self._finder.process_response(data, message)
        # Last: who waits for an answer reads what it told.
        self._pings.hear(message.headers or {})

    def _on_response(self, data: Any, message: Any) -> None:
        if not self._reads():
            return  # it is another's, and comes to him when we are gone
        answer = env.received(data, message)
        with self._lock:
            effects = self._tracker.on_response(answer, message, SYSTEM.monotonic())
        self._apply(effects)

    def _on_workers(self, gained: set[str], lost: list[types.TopicWorker]) -> None:
        now = SYSTEM.monotonic()
        with self._lock:
            effects = self._tracker.recovery.on_lost(lost, now) + self._tracker.on_gained(
                gained, now
            )
        self._apply(effects)
        for worker in lost:
            if isinstance(worker.identity, str):
                self._proxy.bury(worker.identity)

    def _on_ids(self, worker: str, ids: Collection[str]) -> None:
        self._report(self._tracker.recovery.on_ids, worker, ids)

    def _on_wait(self) -> None:
        now = SYSTEM.monotonic()
        self._finder.turn(now, self._proxy.channel)
        searching = bool(self._tracker.recovery.suspects)
        if searching and not self._finder.urgent:
            self._round_due = now
        self._finder.urgent = searching
        if now >= self._round_due:
            with self._lock:
                effects = self._tracker.recovery.review(now)
                self._finder.hurry = self._tracker.recovery.stalled(now)
            self._apply(effects)
            if self._undropped:
                self._drop_again()
            self._finder.maybe_publish()
            self._finder.clean()
            self._round_due = self._finder.next_due() or now
        with self._lock:
            effects = self._tracker.tick(now)
        if effects:
            self._apply(effects)

    def _next_timer(self) -> float | None:
        with self._lock:
            return self._tracker.next_timer()

    def _until(self) -> float | None:
        """When the consumer's thread has something to do, even if nothing comes."""
        alarm = self._next_timer()
        return self._round_due if alarm is None else min(alarm, self._round_due)

    def _nudge(self) -> None:
        """Let the consumer's thread look at the clock, if something is due before it would."""
        due = self._next_timer()
        if due is not None and due - SYSTEM.monotonic() < listening.DRAIN_PERIOD:
            self._proxy.call_soon(_nothing)

    # What is to be done.

    def _apply(self, effects: Iterable[fx.Effect]) -> None:
        for effect in effects:
            try:
                self._perform(effect)
            except Exception:  # the others are owed to other requests
                LOG.exception("failed to perform %s", type(effect).__name__)

    def _perform(self, effect: fx.Effect) -> None:
        # The most frequent first; `match` would take its time.
        if isinstance(effect, fx.Dispatch):
            self._proxy.send(Parcel(effect.envelope, self._dispatching, effect))
        elif isinstance(effect, fx.Settle):
            effect.tracked.done(effect.tracked.invocation, effect.outcome)
        elif isinstance(effect, fx.Acknowledge):
            if effect.receipt is not None:
                self._proxy.ack_later(effect.receipt)
        elif isinstance(effect, fx.Began):
            effect.tell()
        elif isinstance(effect, fx.Tell):
            self._tell(effect.tracked, effect.event_type, effect.details)
        elif isinstance(effect, fx.Drop):
            self._forget_rows(effect.request_id)
        else:
            self._see_to(effect)

    def _forget_rows(self, *request_ids: str) -> None:
        """Remove the rows of what is saved."""
        if self._ledger is not None and self._proxy.target.ours:
            self._proxy.later(self._drop, *request_ids)
        elif self._ledger is not None:  # another place: nothing else is to wait for it
            self._drop(list(request_ids))

    def _posts(self, effect: fx.Dispatch) -> bool:
        """Whether the row of a request may be made in one step with publishing it: nobody else may
        take its flow over meanwhile, and nothing can be in the way of it."""
        tracked = effect.tracked
        return (
            self._openings is not None
            and effect.epoch == 1
            and not tracked.opened
            and tracked.invocation.flow_uuid not in self._guards
        )

    def _is_wanted(self, effect: fx.Dispatch) -> bool:
        """Whether a request is still to be published; it is being, if so."""
        tracked = effect.tracked
        if not self._is_ours(tracked):
            return False
        with self._lock:
            wanted = tracked.live and tracked.epoch == effect.epoch
            if wanted:
                tracked.sendings, tracked.sent_at = tracked.sendings + 1, SYSTEM.monotonic()
            return wanted

    def _open(self, parcels: Iterable[Parcel]) -> list[Parcel]:
        """Make the rows of those that were not published before: what is removed by now must not
        come back.  Returns them.
        """
        ledger, rows = self._ledger, self._rows
        if ledger is None or rows is None:
            return []
        new = [parcel for parcel in parcels if not parcel.matter.tracked.opened]
        if new:
            crashpoint("executor.before-open")
            # Whatever is at the first epoch cannot be in the way of it.
            made = [(each.matter.tracked, each.matter.epoch) for each in new]
            ledger.open_many([(tracked.id, epoch) for tracked, epoch in made if epoch == 1])
            for tracked, epoch in made:
                if epoch != 1:
                    rows.open(tracked.id, epoch)
                tracked.opened = True
            crashpoint("executor.after-open")
        return new

    def _drop(self, request_ids: list[str]) -> None:
        assert self._ledger is not None
        crashpoint("executor.before-drop")
        try:
            self._ledger.drop_many(request_ids)
        except exc.LedgerFailure:
            self._drop_later(request_ids)
        crashpoint("executor.after-drop")

    def _tell(self, tracked: TrackedRequest, event_type: str, details: dict[str, Any]) -> None:
        events = tracked.invocation.events
        if events is None:
            return
        try:
            events(event_type, details)
        except Exception:
            LOG.exception("failed to pass on event %s of %r", event_type, tracked.request)


class _Dispatching(Errand):
    """Sees to it that a request is published only if it is wanted, and has its row by then."""

    mandatory = True

    def __init__(self, executor: WorkerTaskExecutor) -> None:
        self._executor = executor

    @property
    def repeats(self) -> bool:
        # Where there is a ledger, one message too many does no harm.
        return self._executor._ledger is not None

    def prepare(self, parcels: Sequence[Parcel]) -> None:
        executor = self._executor
        for parcel in parcels:
            parcel.withdrawn = not executor._is_wanted(parcel.matter)
        if executor._tracker.observers:
            executor._tell_publishing(parcels)
        # Who takes the flow over from now on finds the row.  Who did so before, while this
        # process was frozen, may have found none, and be done with the request by now.
        for parcel in executor._open(p for p in parcels if not p.withdrawn):
            effect: fx.Dispatch = parcel.matter
            if not executor._is_wanted(effect):
                parcel.withdrawn = True
                if executor._is_ours(effect.tracked) and executor._ledger is not None:
                    # It ended meanwhile, without a row.
                    executor._ledger.revoke(effect.tracked.id, effect.epoch)

    def sent(self, parcels: Sequence[Parcel]) -> None:
        for observer in self._executor._tracker.observers:
            for parcel in parcels:
                observer.published(parcel.matter.tracked, None)

    def failed(self, parcel: Parcel, error: BaseException) -> None:
        executor = self._executor
        for observer in executor._tracker.observers:
            observer.published(parcel.matter.tracked, error)
        executor._report(executor._tracker.on_unsent, parcel.matter.tracked, error)

    def unrouted(self, parcel: Parcel) -> None:
        executor, effect = self._executor, parcel.matter
        executor._report(executor._tracker.recovery.on_unrouted, effect.tracked, effect.epoch)

    def uncertain(self, parcel: Parcel) -> None:
        executor, effect = self._executor, parcel.matter
        executor._report(executor._tracker.recovery.on_unconfirmed, effect.tracked, effect.epoch)


class _Posting(_Dispatching):
    """Makes rows in one step with publishing their requests."""

    writes = True

    def prepare(self, parcels: Sequence[Parcel]) -> None:
        for parcel in parcels:
            parcel.withdrawn = not self._executor._is_wanted(parcel.matter)
        if self._executor._tracker.observers:
            self._executor._tell_publishing(parcels)

    def write(
        self, channel: Any, parcels: Sequence[Parcel], messages: Sequence[Any]
    ) -> Iterable[bool]:
        executor = self._executor
        crashpoint("executor.before-open")
        with executor._lock:  # whoever ends one of them meanwhile would not find its row
            wanted = [executor._is_wanted(parcel.matter) for parcel in parcels]
            told = [
                ((parcel.matter.tracked.id, parcel.matter.epoch), message)
                for parcel, message in itertools.compress(
                    zip(parcels, messages, strict=True), wanted
                )
            ]
            counts = iter(channel.post_many(executor._openings, told) if told else ())
            for parcel in itertools.compress(parcels, wanted):
                parcel.matter.tracked.opened = True
        crashpoint("executor.after-open")
        return [not each or next(counts) > 0 for each in wanted]


#: What an execution fails with here, before any worker has seen it.
_NEVER_SENT: Final = (exc.NeverStarted, exc.NotEncodable, exc.TooLarge)


def _nothing_to_undo(call: invocation.Invocation) -> bool:
    """Whether a reversion need not travel: it would do nothing, or undo what never began."""
    if call.action != invocation.REVERT:
        return False
    if invocation.reverts_nothing(type(call.task)):
        return True
    # Failures that came from a worker, or out of the store, hold no exception object.
    failed = call.result
    return isinstance(failed, ft.Failure) and isinstance(failed.exception, _NEVER_SENT)


def _nothing() -> None:
    return None


def _validate_notify(data: Any) -> None:
    pr.Notify.validate(data, response=bool(data))
