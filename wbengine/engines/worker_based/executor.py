"""The engine's side of the wire: threads, sockets and a lock around `RequestBook`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from wbengine import _names, invocation
from wbengine import exceptions as exc
from wbengine._clock import SYSTEM
from wbengine._crash import crashpoint
from wbengine.engines.worker_based import (
    dispatcher,
    entries,
    heir,
    overview,
    proxy,
    requests,
    rows,
    serving,
    skew,
    topology,
    types,
)
from wbengine.engines.worker_based import effects as fx
from wbengine.engines.worker_based import envelope as env
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.outbox import Parcel
from wbengine.engines.worker_based.terms import Terms
from wbengine.types import failure as ft

LOG = logging.getLogger(__name__)

#: Seconds that `stop` gives to what is still to be published.
FLUSH_TIMEOUT: Final = 5.0


class WorkerTaskExecutor(overview.Overview):
    """Run tasks on remote workers.

    `uuid` names the executor and its reply queue.  `topics` limits which workers it uses (patterns
    such as `video.*` are allowed); without any, all that it hears of.  `transition_timeout` is how
    long, in seconds, a request may wait for a worker to offer it, or an idle one to start it (None:
    for ever).  `worker_expiry` is the silence, in seconds, after which a worker is lost (None: it
    never is).  `ledger` is the place of the ledger that its workers share with it (see `ledger` of
    `WorkerBasedActionEngine`).  The other options are those of `Terms`.

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
        **terms: Any,
    ) -> None:
        self._terms = Terms.of(terms)
        self._uuid = uuid
        self._exchange = exchange
        self._broker = (url, transport, transport_options, retry_options)
        topics = _names.words("topics", topics)
        self._interop = topology.check_plainly(interop, topics, ledger)
        self._place = ledgers.NONE if interop else ledgers.check_place(ledger)
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        # When the finder is to ask and to look for silent workers next.
        self._round_due = 0.0
        self._stopping = False
        # How many engines use it, and whether whoever made it wants it to run without any.
        self._users = 0
        self._kept = False
        self._users_lock = threading.RLock()
        super().__init__()
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
            holds=lambda worker: self._book.holds(worker),
            served=serving.inquiry(self._proxy.target, exchange) if interop else None,
        )
        self._book = requests.RequestBook(
            uuid, self._finder, transition_timeout=transition_timeout, terms=self._terms
        )
        self._book.plain = interop is not None

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

    # Running.

    def start(self) -> None:
        """Start the threads that speak with the broker, and let them run until `stop`.

        :raises TransportFailure: the broker cannot be reached.
        :raises LedgerFailure: nor the ledger that was named.
        """
        self._kept = True
        self._start()

    def enlist(self) -> None:
        """An engine begins to use it: start unless it runs.

        :raises TransportFailure, LedgerFailure: as `start`; then it does not use it.
        """
        with self._users_lock:
            self._start()
            self._users += 1

    def dismiss(self) -> None:
        """An engine that was enlisted is done: stop with the last of them, unless `start` was
        called.
        """
        with self._users_lock:
            self._users -= 1
            if not (self._users or self._kept):
                self.stop()

    def _start(self) -> None:
        if self._stopping:  # an interruption ended that early
            self.stop()
        with self._lock:
            if self._thread is None:
                self._begin()
        try:
            self._proxy.wait()
        except BaseException:
            self.stop()
            raise

    def _begin(self) -> None:
        self._book.reopen()
        if self._proxy.ended:
            self._proxy = self._make_proxy()
        self._ledger = ledgers.choose(
            self._place, self._proxy.target, result_ttl=self._terms.result_ttl
        )
        self._book.ledger = self.ledger
        # Clocks of two hosts are compared only where nothing else tells what happened first.
        self._finder.clocks = skew.Clocks(self._finder.missed) if self._ledger is None else None
        self._rows = rows.Rows(self._ledger, self._expiry) if self._ledger is not None else None
        self._thread = threading.Thread(
            target=self._serve, name=f"wbengine-executor-{self._uuid}", daemon=True
        )
        self._thread.start()

    def _serve(self) -> None:
        try:
            self._proxy.start()
        except exc.TransportFailure:
            pass  # `Proxy.wait` hands it to whoever starts the executor
        except BaseException:
            LOG.exception("the executor's connection ended")
        finally:
            with self._lock:
                effects = self._book.close("its executor stopped", kept=self._guards)
            self._apply(effects)

    def stop(self) -> None:
        """Publish what is queued, fail what is unfinished, disconnect.

        Where an interruption (Ctrl-C) ended it early, the next call goes on.
        """
        self._kept = False
        with self._lock:
            thread = self._thread
        if thread is None:
            return
        self._stopping = True
        self._proxy.leaves_queue = not (self._reads() or self._proxy.target.ours)
        self._proxy.stop(FLUSH_TIMEOUT)
        if thread is not threading.current_thread():
            thread.join()
        with self._lock:
            if self._thread is not thread:
                return  # another call did the rest
            self._thread = None
        self._stopping = self._disowned = False
        self._finder.reset()
        self._round_due = 0.0
        if self._ledger is not None:
            self._drop_again()
            self._ledger.close()

    # The waist.

    def submit(self, call: invocation.Invocation, done: invocation.Done) -> None:
        self.submit_many((call,), done)

    def submit_many(
        self, invocations: Iterable[invocation.Invocation], done: invocation.Done
    ) -> None:
        now = SYSTEM.monotonic()
        for call in invocations:
            if _nothing_to_undo(call):
                done(call, invocation.Outcome(None))
                continue
            with self._lock:
                take = self._book.recover if call.recovered else self._book.submit
                effects = take(call, done, now)
            self._apply(effects)
            if call.cancelled:  # perhaps before it was known here
                self._report(self._book.cancel, (call,))
        if self._book.unasked:
            with self._lock:
                effects = self._book.ask()
            self._apply(effects)
        self._nudge()

    def retire(self, invocations: Iterable[invocation.Invocation]) -> None:
        with self._lock:
            effects = self._book.retired(invocations)
        self._apply(effects)

    def _is_ours(self, entry: entries.Entry) -> bool:
        check = self._guards.get(entry.invocation.flow_uuid)
        return check is None or heir.passes(check)

    def _reads(self) -> bool:
        """Whether the answers that come are for us, and not for whoever has our name by now."""
        return not self._disowned and (self._sole is None or heir.passes(self._sole))

    # What comes.

    def _on_notify(self, data: Any, message: Any) -> None:
        self._finder.process_response(data, message)

    def _on_response(self, data: Any, message: Any) -> None:
        if not self._reads():
            return  # it is another's, and comes to him when we are gone
        answer = env.received(data, message)
        with self._lock:
            effects = self._book.on_response(answer, message, SYSTEM.monotonic())
        self._apply(effects)

    def _on_workers(self, gained: set[str], lost: list[types.TopicWorker]) -> None:
        now = SYSTEM.monotonic()
        with self._lock:
            effects = self._book.on_lost(lost, now) + self._book.on_gained(gained, now)
        self._apply(effects)
        for worker in lost:
            if isinstance(worker.identity, str):
                self._proxy.bury(worker.identity)

    def _on_ids(self, worker: str, ids: Collection[str]) -> None:
        self._report(self._book.on_ids, worker, ids)

    def _on_wait(self) -> None:
        now = SYSTEM.monotonic()
        self._finder.turn(now, self._proxy.channel)
        searching = bool(self._book.suspects)
        if searching and not self._finder.urgent:
            self._round_due = now
        self._finder.urgent = searching
        if now >= self._round_due:
            with self._lock:
                effects = self._book.review(now)
                self._finder.hurry = self._book.stalled(now)
            self._apply(effects)
            if self._undropped:
                self._drop_again()
            self._finder.maybe_publish()
            self._finder.clean()
            self._round_due = self._finder.next_due() or now
        with self._lock:
            effects = self._book.tick(now)
        if effects:
            self._apply(effects)

    def _next_alarm(self) -> float | None:
        with self._lock:
            return self._book.next_alarm()

    def _until(self) -> float | None:
        """When the consumer's thread has something to do, even if nothing comes."""
        alarm = self._next_alarm()
        return self._round_due if alarm is None else min(alarm, self._round_due)

    def _nudge(self) -> None:
        """Let the consumer's thread look at the clock, if something is due before it would."""
        due = self._next_alarm()
        if due is not None and due - SYSTEM.monotonic() < proxy.DRAIN_PERIOD:
            self._proxy.call_soon(_nothing)

    # What is to be done.

    def _apply(self, effects: Iterable[fx.Effect]) -> None:
        for effect in effects:
            try:
                self._perform(effect)
            except Exception:  # the others are owed to other requests
                LOG.exception("failed to perform %s", type(effect).__name__)

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Dispatch():
                self._dispatch(effect)
            case fx.Settle(entry, outcome):
                entry.done(entry.invocation, outcome)
            case fx.Tell(entry, event_type, details):
                self._tell(entry, event_type, details)
            case fx.Acknowledge(receipt):
                if receipt is not None:
                    self._proxy.ack(receipt)
            case fx.Drop(request_id):
                if self._ledger is not None:
                    self._drop(request_id)
            case _:
                self._see_to(effect)

    def _dispatch(self, effect: fx.Dispatch) -> None:
        entry = effect.entry

        def before() -> bool:
            if not self._is_wanted(effect):
                return False
            if self._ledger is None or self._rows is None:
                return True
            if entry.opened:
                return True  # a message of it is out: what is removed by now must not come back
            crashpoint("executor.before-open")
            # Whatever is at the first epoch cannot be in the way of it.
            opens = self._ledger if effect.epoch == 1 else self._rows
            opens.open(entry.id, effect.epoch)
            entry.opened = True
            crashpoint("executor.after-open")
            # Who takes the flow over from now on finds the row.  Who did so before, while this
            # process was frozen, may have found none, and be done with the request by now.
            wanted = self._is_wanted(effect)
            if not wanted and self._is_ours(entry):
                self._ledger.revoke(entry.id, effect.epoch)  # it ended meanwhile, without a row
            return wanted

        book, epoch = self._book, effect.epoch
        self._proxy.send(
            Parcel(
                effect.envelope,
                before=before,
                failed=lambda error: self._report(book.on_unsent, entry, error),
                unrouted=lambda: self._report(book.on_unrouted, entry, epoch),
                # Where there is a ledger, one message too many does no harm.
                uncertain=None
                if self._ledger is not None
                else lambda: self._report(book.on_unconfirmed, entry, epoch),
            )
        )

    def _drop(self, request_id: str) -> None:
        assert self._ledger is not None
        crashpoint("executor.before-drop")
        try:
            self._ledger.drop(request_id)
        except exc.LedgerFailure:
            self._drop_later(request_id)
        crashpoint("executor.after-drop")

    def _is_wanted(self, effect: fx.Dispatch) -> bool:
        """Whether a request is still to be published; it is being, if so."""
        entry = effect.entry
        if not self._is_ours(entry):
            return False
        with self._lock:
            wanted = entry.live and entry.epoch == effect.epoch
            if wanted:
                entry.sending, entry.sent_at = True, SYSTEM.monotonic()
            return wanted

    def _tell(self, entry: entries.Entry, event_type: str, details: dict[str, Any]) -> None:
        events = entry.invocation.events
        if events is None:
            return
        try:
            events(event_type, details)
        except Exception:
            LOG.exception("failed to pass on event %s of %r", event_type, entry.request)


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
