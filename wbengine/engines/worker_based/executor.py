"""The engine's side of the wire: threads, sockets and a lock around `RequestTracker`."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from wbengine import _names, invocation
from wbengine import exceptions as exc
from wbengine import keys as key_files
from wbengine._clock import SYSTEM
from wbengine.engines.worker_based import dispatcher, proxy
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.connections import (
    consumer_loop,
    dead_letters,
    queue_counts,
    topology,
)
from wbengine.engines.worker_based.connections.outgoing import DeliveryHooks, OutgoingMessage
from wbengine.engines.worker_based.discovery import finder, roster, snapshots
from wbengine.engines.worker_based.engine_side.guards import FlowGuards
from wbengine.engines.worker_based.engine_side.ledger_writer import LedgerWriter
from wbengine.engines.worker_based.messages import commands, pinging, signing
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests.options import RequestOptions
from wbengine.engines.worker_based.requests.recovery import Recovery
from wbengine.engines.worker_based.requests.tracked import TrackedRequest
from wbengine.engines.worker_based.requests.tracker import Observer, RequestTracker
from wbengine.transports.broker import Broker, LaidOut
from wbengine.types import failure as ft


class Publishing(DeliveryHooks):
    """Sees to it that a request is published only if it is wanted, and has its row by then.

    `writer` is that of the executor once it has started.  `report` tells the tracker, and performs
    its effects.
    """

    mandatory = True

    def __init__(
        self,
        tracker: RequestTracker,
        lock: threading.RLock,
        guards: FlowGuards,
        writer: LedgerWriter,
        report: Callable[..., None],
    ) -> None:
        self._tracker = tracker
        self._lock = lock
        self._guards = guards
        self._writer = writer
        self._report = report

    @property
    def repeats(self) -> bool:
        # Where there is a ledger, one message too many does no harm.
        return self._writer.ledger is not None

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        wanted: dict[int, OutgoingMessage] = {}
        for message in messages:
            message.withdrawn = not self._begin(message.correlation)
            if not message.withdrawn:
                wanted[id(message.correlation)] = message
                for observer in self._tracker.observers:
                    observer.publishing(message.correlation.tracked, message.envelope)
        # The next owner of the flow finds the row, if it looks from now on.  One that looked
        # before, while this process was frozen, may be done with the request by now.
        for effect in self._writer.open([each.correlation for each in wanted.values()]):
            if not self._begin(effect, 0):
                wanted[id(effect)].withdrawn = True
                self._writer.take_back(effect)

    def _begin(self, effect: fx.Dispatch, times: int = 1) -> bool:
        """Whether a request is still to be published; it is being so many `times` more, if so."""
        tracked = effect.tracked
        if not self._guards.owns(tracked.flow):
            return False
        with self._lock:
            wanted = tracked.live and tracked.epoch == effect.epoch
            if wanted:
                tracked.sendings, tracked.sent_at = tracked.sendings + times, SYSTEM.monotonic()
            return wanted

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        for observer in self._tracker.observers:
            for message in messages:
                observer.published(message.correlation.tracked, None)

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        for observer in self._tracker.observers:
            observer.published(message.correlation.tracked, error)
        self._report(self._tracker.on_unsent, message.correlation.tracked, error)

    def unrouted(self, message: OutgoingMessage) -> None:
        effect = message.correlation
        self._report(self._tracker.recovery.on_unrouted, effect.tracked, effect.epoch)

    def uncertain(self, message: OutgoingMessage) -> None:
        effect = message.correlation
        self._report(self._tracker.recovery.on_unconfirmed, effect.tracked, effect.epoch)


class OpeningPublishing(Publishing):
    """Makes the rows of requests in one step with publishing them."""

    writes = True

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        for message in messages:
            tracked = message.correlation.tracked
            if not tracked.live or tracked.epoch != message.correlation.epoch:
                message.withdrawn = True
                self._writer.let_look((tracked.id,))
                continue
            for observer in self._tracker.observers:
                observer.publishing(tracked, message.envelope)

    def write(
        self, broker: Broker, messages: Sequence[OutgoingMessage], prepared: Sequence[LaidOut]
    ) -> Iterable[bool]:
        effects = [message.correlation for message in messages]
        return self._writer.publish(broker, list(zip(effects, prepared, strict=True)), self._begin)


class Questions(DeliveryHooks):
    """Lets questions and orders go out only as long as the executor was not disowned."""

    def __init__(self, guards: FlowGuards) -> None:
        self._guards = guards

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        for message in messages:
            message.withdrawn = self._guards.disowned


LOG = logging.getLogger(__name__)

#: Seconds that the broker has to be reached for what is put aside.
PATIENCE: Final = 5.0

#: Seconds that `stop` gives to what is still to be published.
FLUSH_TIMEOUT: Final = 5.0

#: What an execution fails with here, before any worker has seen it.
_NEVER_SENT: Final = (exc.NeverStarted, exc.NotEncodable, exc.TooLarge)


class WorkerTaskExecutor(invocation.TaskExecutor):
    """Run tasks on remote workers.

    `uuid` names the executor and its reply queue.  `topics` limits which workers it uses (patterns
    such as `video.*` are allowed); without any, all that it hears of.  `transition_timeout` is how
    long, in seconds, a request may wait for a worker to offer it, or an idle one to start it (None:
    for ever).  `worker_expiry` is the silence, in seconds, after which a worker is lost (None: it
    never is).  `ledger` is the place of the ledger that its workers share with it (see `ledger` of
    `WorkerBasedActionEngine`), `keys` the file of the keys that messages are signed with (None:
    `$WBENGINE_KEYS`; without any they are not signed).  The other options are those of
    `RequestOptions`.

    Several engines may use one executor.  It runs as long as one of them does, or, once `start` was
    called, until `stop`.

    Thread-safe; `start` and `stop` are idempotent.  Outcomes are reported on threads of the
    executor's own.
    """

    keeps_times = True

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
        keys: str | Path | key_files.Keyring | None = None,
        **options: Any,
    ) -> None:
        self._options = RequestOptions.of(options)
        self._uuid = uuid
        self._exchange = exchange
        self._broker = (url, transport, transport_options, retry_options)
        topics = _names.words("topics", topics)
        self._interop = topology.check_plainly(interop, topics, ledger)
        self._place = ledgers.NONE if interop else ledgers.check_place(ledger)
        topology.check_unsigned(interop, keys)
        self._keys = key_files.keyring(keys, key_files.ENGINE, key_files.OPERATOR)
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        # How many engines use it, and whether it is to run without any.
        self._users = 0
        self._kept = False
        self._users_lock = threading.RLock()
        # When the finder is to ask and to look for silent workers next.
        self._round_due = 0.0
        self._pings = pinging.Pings()
        self._proxy = self._make_proxy()
        self._finder = finder.ProxyWorkerFinder(
            uuid,
            self,
            topics,
            worker_expiry=worker_expiry,
            interop=interop is not None,
            on_change=self._on_workers,
            on_ids=self._on_ids,
            holds=lambda worker: self._tracker.holds(worker),
            exchange=exchange,
            served=queue_counts.inquiry(self._proxy.target, exchange) if interop else None,
        )
        self._tracker = RequestTracker(
            uuid, self._finder, transition_timeout=transition_timeout, options=self._options
        )
        self._tracker.plain = interop is not None
        self._recovery: Recovery = self._tracker.recovery
        self._guards = FlowGuards()
        expiry = worker_expiry if worker_expiry and worker_expiry > 0 else None
        self._writer = LedgerWriter(expiry, self._tracker, self._lock, self._guards, self._apply)
        self._publishing = Publishing(
            self._tracker, self._lock, self._guards, self._writer, self._report
        )
        self._opening = OpeningPublishing(
            self._tracker, self._lock, self._guards, self._writer, self._report
        )
        self._questions = Questions(self._guards)

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
            keys=self._keys,
        )

    @property
    def signer(self) -> signing.Signer | None:
        """What signs what it says, and verifies what it is told; None: nothing does."""
        return self._proxy.signer

    @property
    def uuid(self) -> str:
        return self._uuid

    @property
    def finder(self) -> finder.ProxyWorkerFinder:
        return self._finder

    @property
    def is_blocked(self) -> bool:
        """Whether the broker says that it takes no messages: it is short of memory or disk."""
        return self._proxy.is_blocked

    @property
    def ledger(self) -> str | None:
        """The identity of the ledger, once started; None: there is none."""
        ledger = self._writer.ledger
        return ledger.identity if ledger is not None else None

    @property
    def survives_engine(self) -> bool:  # type: ignore[override]
        return True  # though TaskFlow's workers cannot be asked: what they had is lost, then

    @property
    def has_ledger(self) -> bool:  # type: ignore[override]
        return self._writer.ledger is not None and self._interop is None

    def publish(self, *args: Any, **kwargs: Any) -> None:
        """Publish a message (see `Proxy.publish`); what the finder asks goes this way."""
        self._proxy.publish(*args, **kwargs)

    # Beginning and end.

    def start(self) -> None:
        """Start the threads that speak with the broker, and let them run until `stop`.

        :raises TransportFailure: the broker cannot be reached.
        :raises LedgerFailure: nor the ledger that was named.
        """
        self._kept = True
        self._start()

    def attach(self) -> None:
        """An engine begins to use it: start unless it runs.

        :raises TransportFailure, LedgerFailure: as `start`; then the engine does not use it.
        """
        with self._users_lock:
            self._start()
            self._users += 1

    def detach(self) -> None:
        """An engine that was attached is done: stop with the last of them, unless `start` was
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
        self._tracker.reopen()
        if self._proxy.consumer.ended:
            self._proxy = self._make_proxy()
        target = self._proxy.target
        ledger = ledgers.choose(self._place, target, result_ttl=self._options.result_ttl)
        openings = ledger.openings(target.redis) if ledger is not None else None
        self._writer.use(ledger, self._proxy.signer, openings)
        self._tracker.ledger = ledger.digest if ledger is not None else None
        self._tracker.separate_ledger = ledgers.is_separate(ledger, self._place, target)
        # Clocks of two hosts are compared only where nothing else tells what happened first.
        self._finder.clocks = finder.Clocks(self._finder.missed) if ledger is None else None
        self._thread = threading.Thread(
            target=self._serve, name=f"wbengine-executor-{self._uuid}", daemon=True
        )
        self._thread.start()

    def _serve(self) -> None:
        try:
            self._proxy.start()
        except exc.TransportFailure:
            pass  # `Proxy.wait` hands it to the caller of `start`
        except BaseException:
            LOG.exception("the executor's connection ended")
        finally:
            with self._lock:
                effects = self._tracker.close("its executor stopped", kept=self._guards.flows)
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
        self._proxy.consumer.leaves_queue = not (self._guards.reads() or self._proxy.target.ours)
        self._proxy.stop(FLUSH_TIMEOUT)
        if thread is not threading.current_thread():
            thread.join()
        self._writer.close()
        with self._lock:
            if self._thread is not thread:
                return  # another call did the rest
            self._thread = None
        self._stopping = self._guards.disowned = False
        self._finder.reset()
        self._round_due = 0.0

    # Runs before this one, and after it.

    @property
    def inheritable(self) -> bool:
        """Whether the name of this executor is of use to the next one: see `take_name`."""
        return not self._proxy.target.ours and self._interop is None

    def take_name(self, uuid: str) -> bool:
        """Take the name of an executor that is gone, with the answers that were sent to it.

        False, and without effect, on one that is started, and where the queue of a dead executor
        goes with it: then all depends on the ledger, or on what workers remember.
        """
        with self._lock:
            if self._thread is not None or not self.inheritable:
                return False
            self._uuid = self._finder.uuid = uuid
            self._recovery.inherit(uuid)
            self._proxy = self._make_proxy()
        return True

    def expect(self, flow: str, used: Collection[str | None]) -> None:
        """Say which ledgers earlier runs of a flow used (see `Recovery.expect`)."""
        here = self.ledger
        with self._lock:
            # One that lost rows since is as good as another one.
            same = [self._tracker.ledger if each == here else None for each in used]
            self._recovery.expect(flow, same)

    def guard(self, flow: str, check: Callable[[], object] | None, *, sole: bool = False) -> None:
        """Let `check` be called before anything of a flow is published or taken back.

        It raises LeaseLost when the flow is another engine's.  `sole`: the next owner of the flow
        may take the name of this executor, and so read its answers.
        """
        self._guards.add(flow, check, sole=sole)

    def unguard(self, flow: str) -> None:
        """Forget what was said of a flow, whose run is over."""
        self._guards.remove(flow)
        with self._lock:
            self._recovery.expect(flow, None)

    def sweep(self, ended: Iterable[str]) -> None:
        """Remove the rows of requests that ended, and that no run will retire any more."""
        self._writer.sweep(ended)

    # Requests of engines.

    def submit(self, call: invocation.Invocation, done: invocation.Done) -> None:
        self.submit_many((call,), done)

    def submit_many(
        self, invocations: Iterable[invocation.Invocation], done: invocation.Done
    ) -> None:
        now = SYSTEM.monotonic()
        last: fx.Dispatch | None = None
        try:
            for call in invocations:
                if _nothing_to_undo(call):
                    done(call, invocation.Outcome(None))
                    continue
                with self._lock:
                    take = self._recovery.recover if call.recovered else self._tracker.submit
                    effects = take(call, done, now)
                for effect in effects:
                    if isinstance(effect, fx.Dispatch):
                        last, effect = effect, last
                    if effect is not None:
                        self._apply((effect,))
                if call.cancellation.cancelled:  # perhaps before it was known here
                    self._report(self._tracker.cancel, (call,))
        finally:  # also where the next one is refused
            if last is not None:  # with those before it, which wait for it
                self._proxy.send(self._message(last))
        if self._recovery.unasked:
            with self._lock:
                effects = self._recovery.ask()
            self._apply(effects)
        self._nudge()

    def retire(self, invocations: Iterable[invocation.Invocation]) -> None:
        with self._lock:
            effects = self._tracker.retired(invocations)
        # All of a turn together.
        rows = [effect.request_id for effect in effects if isinstance(effect, fx.Drop)]
        receipts = [effect.receipt for effect in effects if isinstance(effect, fx.Acknowledge)]
        ack = self._proxy.consumer.ack_later
        for let_go, things in ((self._writer.drop, rows), (ack, receipts)):
            try:
                if things:
                    let_go(*things)
            except Exception:
                LOG.exception("failed to let go of what is saved")

    def cancel(self, invocations: Iterable[invocation.Invocation]) -> None:
        self._report(self._tracker.cancel, tuple(invocations))

    def withdraw(self, flow: str | None = None) -> list[invocation.Invocation]:
        """Take back what no worker has started (of one flow); what is under way is finished."""
        with self._lock:
            unstarted = self._tracker.unstarted(flow)
            # The next run looks for those that were inherited, as this one did.
            known = {tracked.id for tracked in unstarted if self._tracker.is_inherited(tracked)}
        taken: list[invocation.Invocation] = []

        def take(revoked: Collection[str]) -> None:
            for tracked in unstarted:
                call = tracked.invocation
                if tracked.state not in pr.WAITING_STATES or call.ticket is not tracked:
                    continue
                if not self._tracker.is_inherited(tracked):
                    if tracked.sendings and tracked.id not in revoked:
                        continue
                    # The next run need not look for what is known not to run.
                    call.recovered &= self._writer.ledger is None
                taken.append(call)
                self._tracker.forget(tracked)
                _let_go([tracked])

        sent = [each for each in unstarted if each.sendings and each.id not in known]
        self._writer.withdraw(sent, take)
        return taken

    def finish(self, flow: str | None = None) -> None:
        """Wait for the end of what was submitted (of one flow), as long as it is not forgotten."""
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        with self._lock:
            unfinished = self._tracker.unfinished(flow)
            for tracked in unfinished:
                tracked.done = _Counted(tracked.done, ended)
        for _ in unfinished:
            ended.get()

    def leave(self, flow: str) -> None:
        """Fail what is unfinished of one flow: its engine stopped."""
        with self._lock:
            effects = self._tracker.leave("its engine stopped", flow, kept=self._guards.flows)
        self._apply(effects)

    def disown(self, flow: str | None = None) -> None:
        """Forget everything (of one flow), as it is: nothing is told, revoked, dropped, or
        acknowledged any more.
        """
        with self._lock:
            forgotten = self._tracker.unfinished(flow)
            self._recovery.disown(flow)
            self._guards.disowned = flow is None
            _let_go(forgotten)

    # Messages of workers.

    def _on_notify(self, data: Any, message: Any) -> None:
        self._finder.process_response(data, message)
        # Last: a caller of `ping` reads what it told.
        self._pings.hear(message.headers or {})

    def _on_response(self, data: Any, message: Any) -> None:
        if not self._guards.reads():
            return  # another executor has this name, and gets it when this one is gone
        self._report(self._tracker.on_response, env.received(data, message), message)

    def _on_workers(self, gained: set[str], lost: list[roster.TopicWorker]) -> None:
        now = SYSTEM.monotonic()
        with self._lock:
            effects = self._recovery.on_lost(lost, now) + self._tracker.on_gained(gained, now)
        self._apply(effects)
        for worker in lost:
            if isinstance(worker.identity, str):
                self._proxy.consumer.bury(worker.identity)

    def _on_ids(self, worker: str, ids: Collection[str]) -> None:
        self._report(self._recovery.on_ids, worker, ids)

    def _on_wait(self) -> None:
        now = SYSTEM.monotonic()
        self._finder.turn(now, self._proxy.consumer.channel)
        searching = bool(self._recovery.suspects)
        if searching and not self._finder.urgent:
            self._round_due = now
        self._finder.urgent = searching
        if now >= self._round_due:
            with self._lock:
                effects = self._recovery.review(now)
                self._finder.hurry = self._recovery.stalled(now)
            self._apply(effects)
            self._writer.drop_again()
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
        timer = self._next_timer()
        return self._round_due if timer is None else min(timer, self._round_due)

    def _nudge(self) -> None:
        """Let the consumer's thread look at the clock, if something is due before it would."""
        due = self._next_timer()
        if due is not None and due - SYSTEM.monotonic() < consumer_loop.DRAIN_PERIOD:
            self._proxy.consumer.call_soon(_nothing)

    # Effects.

    def _report(self, on_event: Callable[..., list[fx.Effect]], *told: Any) -> None:
        """Tell the tracker of an event, and perform what it wants then."""
        with self._lock:
            effects = on_event(*told, SYSTEM.monotonic())
        self._apply(effects)

    def _apply(self, effects: Iterable[fx.Effect]) -> None:
        for effect in effects:
            try:
                self._perform(effect)
            except Exception:  # the others are owed to other requests
                LOG.exception("failed to perform %s", type(effect).__name__)

    def _perform(self, effect: fx.Effect) -> None:
        # The most frequent first; `match` would take its time.
        if isinstance(effect, fx.Dispatch):
            self._proxy.send(self._message(effect), defer=True)
        elif isinstance(effect, fx.Settle):
            effect.tracked.done(effect.tracked.invocation, effect.outcome)
        elif isinstance(effect, fx.Acknowledge):
            if effect.receipt is not None:
                self._proxy.consumer.ack_later(effect.receipt)
        elif isinstance(effect, fx.Began | fx.Taken | fx.Incident):
            effect.tell()
        elif isinstance(effect, fx.Tell):
            self._tell(effect.tracked, effect.event_type, effect.details)
        elif isinstance(effect, fx.Drop):
            self._writer.drop(effect.request_id)
        else:
            self._recover(effect)

    def _recover(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Revoke() | fx.Inspect() | fx.Reopen() | fx.Conclude():
                self._writer.perform(effect)
            case fx.PutAside(letter):
                self._proxy.call_later(self._put_aside, letter)
            case fx.Ask() | fx.Cancel() if self._interop is not None:
                pass  # TaskFlow's workers would not understand it
            case fx.Ask(message) | fx.Cancel(message):
                self._proxy.send(OutgoingMessage(message, self._questions), defer=True)

    def _put_aside(self, letters: Sequence[env.Envelope]) -> None:
        try:
            with dead_letters.DeadLetters(
                self._proxy.target, self._exchange, PATIENCE, self._proxy.signer
            ) as kept:
                for letter in letters:
                    kept.put(letter)
        except exc.TransportFailure as error:
            LOG.warning("%d requests cannot be put aside: %s", len(letters), error)

    def _message(self, effect: fx.Dispatch) -> OutgoingMessage:
        opens = self._writer.opens_while_publishing(effect)
        hooks = self._opening if opens else self._publishing
        return OutgoingMessage(effect.envelope, hooks, effect)

    def _tell(self, tracked: TrackedRequest, event_type: str, details: dict[str, Any]) -> None:
        events = tracked.invocation.events
        if events is None:
            return
        try:
            events(event_type, details)
        except Exception:
            LOG.exception("failed to pass on event %s of %r", event_type, tracked.request)

    # What is shown of it, and orders to workers.

    @property
    def system(self) -> str:
        """What carries its messages, such as `rabbitmq`."""
        return self._proxy.target.system

    @property
    def tells_times(self) -> bool:
        """Whether its workers tell when a task began and ended: TaskFlow's do not."""
        return self._interop is None

    def add_observer(self, observer: Observer) -> None:
        """Tell `observer` what is sent and what ends, from now on; idempotent."""
        with self._lock:
            if observer not in self._tracker.observers:
                self._tracker.observers = (*self._tracker.observers, observer)

    def remove_observer(self, observer: Observer) -> None:
        """Undo `add_observer`; idempotent."""
        with self._lock:
            left = tuple(each for each in self._tracker.observers if each is not observer)
            self._tracker.observers = left

    @property
    def ignored(self) -> dict[str, int]:
        """Number of answers that were dropped, by reason: late (it had ended), duplicate, reordered
        (RUNNING after what follows it), old_epoch, unknown, unexpected, unreadable, misaddressed,
        untrusted (any message that nobody signed who may say it).
        """
        with self._lock:
            return {**self._tracker.ignored, **self._proxy.untrusted}

    def workers(self) -> list[snapshots.WorkerSnapshot]:
        """The worker processes that are known, in the order in which they were first heard of."""
        return snapshots.of_workers(self._finder.workers(), SYSTEM.monotonic(), SYSTEM.time())

    def wait_for_workers(self, workers: int = 1, timeout: float | None = None) -> int:
        """Start if need be, and wait until `workers` processes are known.

        Returns how many are still missing when `timeout` seconds are over.

        :raises ValueError: fewer than one worker is asked for.
        :raises TypeError: `workers` is no whole number, or `timeout` no number.
        """
        finder.check_wait(workers, timeout)
        self.start()
        return self._finder.wait_for_workers(workers, timeout)

    def ping(
        self, workers: Iterable[str] | None = None, timeout: float = 2.0
    ) -> dict[str, pinging.Pong]:
        """Ask workers (by their identities; None: all that are known) whether they are there.

        What those answered who did so within `timeout` seconds.  Start if need be.

        :raises ValueError: there can be no such identity; or the workers are TaskFlow's.
        """
        if self._interop is not None:
            raise ValueError(f"workers cannot be asked one by one: interop={self._interop!r}")
        self.start()
        known = (each.identity for each in self.workers()) if workers is None else workers
        names = [_names.check_label("worker", each) for each in known if each is not None]
        headers = {env.WBE_VERSION: env.VERSION}
        asked = self._pings.begin(names)
        for name in names:
            question = env.Envelope(pr.NOTIFY, {}, name, None, self._finder.uuid, dict(headers))
            self._proxy.send(OutgoingMessage(question), first=True, defer=True)
        return self._pings.wait(asked, timeout)

    def requests(self, state: str | None = None) -> list[snapshots.RequestSnapshot]:
        """The requests of all engines that use this executor: those in one state, or all.

        They are 'deferred' (not due yet, or nobody known could run them), 'queued', 'started',
        'finished' or 'failed'; of the last two the newest only.  Oldest first.

        :raises ValueError: there is no such state.
        """
        snapshots.check_state(state)
        wall = SYSTEM.time() - SYSTEM.monotonic()
        with self._lock:
            found = [*self._tracker.ended, *(e.described() for e in self._tracker.unfinished())]
        return [
            dataclasses.replace(each, submitted=wall + (each.submitted or 0.0))
            for each in itertools.starmap(snapshots.RequestSnapshot, found)
            if state in (None, each.state)
        ]

    def control(self, what: str, worker: str | None = None) -> None:
        """Tell one worker (by its identity), or all, to 'suspend', 'resume', 'drain' or 'stop'.

        Returns at once; whoever is not there does not hear of it.

        :raises ValueError: there is no such order, or no such identity can be; or the workers are
            TaskFlow's.
        """
        if self._interop is not None:
            raise ValueError(f"workers cannot be told to {what}: interop={self._interop!r}")
        order = commands.order(commands.check_order(what), worker)
        self.start()
        self._proxy.send(OutgoingMessage(order), first=True, defer=True)


class _Counted:
    """A `done` whose call is waited for."""

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
    """The ends of these are not told: callers of `finish` need not wait for them."""
    for tracked in forgotten:
        if isinstance(tracked.done, _Counted):
            tracked.done.let_go()


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
