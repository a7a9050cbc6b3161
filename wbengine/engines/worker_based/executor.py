"""The executor of the worker-based engine: threads, sockets and a lock around `RequestTracker`."""

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
from wbengine.concurrency import threads
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
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import notices, pinging, signing, worker_commands
from wbengine.engines.worker_based.requests import effects as fx
from wbengine.engines.worker_based.requests.options import RequestOptions
from wbengine.engines.worker_based.requests.tracked import TrackedRequest
from wbengine.engines.worker_based.requests.tracker import Observer, RequestTracker
from wbengine.transports.broker import Broker
from wbengine.types import failure as ft


class Publishing(DeliveryHooks):
    """Publishes a request after its row is opened, unless the request has ended.

    :param report: reports an event to the tracker, and performs the resulting effects.
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
        # With a ledger, a duplicate message is harmless.
        return self._writer.ledger is not None

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        wanted_messages: dict[int, OutgoingMessage] = {}
        for message in messages:
            message.withdrawn = not self._begin(message.correlation)
            if not message.withdrawn:
                wanted_messages[id(message.correlation)] = message
                for observer in self._tracker.observers:
                    observer.publishing(message.correlation.tracked, message.envelope)
        # The requests are checked again after their rows were opened. While this process was
        # frozen, the next owner of the flow may have read the ledger without these rows.
        for effect in self._writer.open([each.correlation for each in wanted_messages.values()]):
            if not self._begin(effect, 0):
                wanted_messages[id(effect)].withdrawn = True
                self._writer.revoke_opened(effect)

    def _begin(self, effect: fx.Dispatch, times: int = 1) -> bool:
        """Return whether a request is still needed; if so, count `times` more publishings."""
        tracked = effect.tracked
        if not self._guards.owns(tracked.flow):
            return False
        with self._lock:
            is_wanted = tracked.live and tracked.epoch == effect.epoch
            if is_wanted:
                tracked.publish_count, tracked.sent_at = (
                    tracked.publish_count + times,
                    SYSTEM.monotonic(),
                )
            return is_wanted

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
        self._report(self._tracker.on_unrouted, effect.tracked, effect.epoch)

    def uncertain(self, message: OutgoingMessage) -> None:
        effect = message.correlation
        self._report(self._tracker.on_unconfirmed, effect.tracked, effect.epoch)


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
        pairs = [(message.correlation, message) for message in messages]
        return self._writer.publish(broker, pairs, self._begin)


class Inquiries(DeliveryHooks):
    """Publishes inquiries and commands unless the executor is disowned."""

    def __init__(self, guards: FlowGuards) -> None:
        self._guards = guards

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        for message in messages:
            message.withdrawn = self._guards.disowned


LOG = logging.getLogger(__name__)

#: Timeout in seconds to connect to the broker for dead letters.
DEAD_LETTER_TIMEOUT_SECONDS: Final = 5.0

#: Maximum seconds that `stop` waits for publishing.
FLUSH_TIMEOUT_SECONDS: Final = 5.0

#: Failures of requests that no worker received.
_NEVER_SENT_ERRORS: Final = (exc.NeverStarted, exc.NotEncodable, exc.TooLarge)


class WorkerTaskExecutor(invocation.TaskExecutor):
    """Runs tasks on remote workers.

    Several engines may use one executor. It runs while any of them runs, or from `start` until
    `stop`. Thread-safe. Outcomes are reported in threads of the executor.

    `WorkerBasedActionEngine` describes the parameters, and these:

    :param uuid: name of the executor and its reply queue.
    :param options: the options of `RequestOptions`.
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
        self._uuid = _names.check_length("The uuid of an executor", uuid)
        self._exchange = exchange
        self._broker = (url, transport, transport_options, retry_options)
        topics = _names.as_tuple("topics", topics)
        self._interop = topology.check_interop_options(interop, topics, ledger)
        self._ledger_place = ledgers.NONE if interop else ledgers.check_place(ledger)
        topology.check_no_keys(interop, keys)
        self._keys = key_files.keyring(keys, key_files.ENGINE, key_files.OPERATOR)
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        # Number of engines that use the executor, and whether it runs without any.
        self._users = 0
        self._is_kept = False
        self._users_lock = threading.RLock()
        # Time of the next NOTIFY and check for lost workers.
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
            served=queue_counts.consumer_check(self._proxy.target, exchange) if interop else None,
        )
        self._tracker = RequestTracker(
            uuid,
            self._finder,
            transition_timeout=transition_timeout,
            plain=interop is not None,
            options=self._options,
        )
        self._guards = FlowGuards()
        expiry = worker_expiry if worker_expiry and worker_expiry > 0 else None
        self._writer = LedgerWriter(expiry, self._tracker, self._lock, self._guards, self._apply)
        self._publishing = Publishing(
            self._tracker, self._lock, self._guards, self._writer, self._report
        )
        self._opening = OpeningPublishing(
            self._tracker, self._lock, self._guards, self._writer, self._report
        )
        self._inquiry_hooks = Inquiries(self._guards)

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
        """The signer of sent and received messages; None without keys."""
        return self._proxy.signer

    @property
    def uuid(self) -> str:
        return self._uuid

    @property
    def finder(self) -> finder.ProxyWorkerFinder:
        return self._finder

    @property
    def is_blocked(self) -> bool:
        """Whether the broker accepts no messages because of a memory or disk alarm."""
        return self._proxy.is_blocked

    @property
    def ledger(self) -> str | None:
        """The identity of the ledger after the start; None without a ledger."""
        ledger = self._writer.ledger
        return ledger.identity if ledger is not None else None

    @property
    def survives_engine(self) -> bool:  # type: ignore[override]
        # Also with TaskFlow's workers, although their requests are lost.
        return True

    @property
    def has_ledger(self) -> bool:  # type: ignore[override]
        return self._writer.ledger is not None and self._interop is None

    def publish(self, *args: Any, **kwargs: Any) -> None:
        self._proxy.publish(*args, **kwargs)

    def start(self) -> None:
        """Start the threads for the broker; they run until `stop`.

        :raises TransportFailure: if the broker cannot be reached.
        :raises LedgerFailure: if the ledger cannot be reached.
        """
        self._is_kept = True
        self._start()

    def attach(self) -> None:
        """Add an engine; start the executor if it does not run.

        :raises TransportFailure, LedgerFailure: see `start`; then the engine is not added.
        """
        with self._users_lock:
            self._start()
            self._users += 1

    def detach(self) -> None:
        """Remove an engine; with the last one, stop the executor unless `start` was called."""
        with self._users_lock:
            self._users -= 1
            if not (self._users or self._is_kept):
                self.stop()

    def _start(self) -> None:
        if self._stopping:  # An interrupt ended an earlier `stop` early.
            self.stop()
        try:
            with self._lock:
                if self._thread is None:
                    self._begin()
            self._proxy.wait()
        except BaseException:
            self.stop()
            raise

    def _begin(self) -> None:
        self._tracker.reopen()
        if self._proxy.consumer.has_ended:
            self._proxy = self._make_proxy()
        target = self._proxy.target
        ledger = ledgers.choose(self._ledger_place, target, result_ttl=self._options.result_ttl)
        openings = ledger.openings(target.redis) if ledger is not None else None
        self._writer.use(ledger, self._proxy.signer, openings)
        self._tracker.use_ledger(ledger.digest if ledger is not None else None)
        self._tracker.separate_ledger = ledgers.is_separate(ledger, self._ledger_place, target)
        # Without a ledger, the clocks of the hosts are compared.
        self._finder.clocks = finder.Clocks(self._finder.missed) if ledger is None else None
        thread = threads.Thread(
            target=self._serve, name=f"wbengine-executor-{self._uuid}", daemon=True
        )
        try:
            thread.start()
        finally:  # also after an interrupt
            self._thread = None if thread.ident is None else thread

    def _serve(self) -> None:
        try:
            self._proxy.start()
        except exc.TransportFailure:
            pass  # `Proxy.wait` raises it in the thread that called `start`.
        except BaseException:
            LOG.exception("the connection of the executor ended with an error")
        finally:
            with self._lock:
                effects = self._tracker.close("its executor stopped", kept_flows=self._guards.flows)
            self._apply(effects)

    def stop(self) -> None:
        """Publish queued messages, fail unfinished requests, and disconnect.

        After an interrupt (Ctrl-C), call this again to complete it.
        """
        self._is_kept = False
        with self._lock:
            thread = self._thread
        if thread is None:
            return
        self._stopping = True
        self._proxy.consumer.keeps_queue = not (
            self._guards.reads_replies() or self._proxy.target.is_native
        )
        self._proxy.stop(FLUSH_TIMEOUT_SECONDS)
        if thread is not threading.current_thread():
            thread.join()
        self._writer.close()
        with self._lock:
            if self._thread is not thread:
                return  # Another call has stopped it.
            self._thread = None
        self._stopping = self._guards.disowned = False
        self._finder.reset()
        self._round_due = 0.0

    # Earlier and later runs.

    @property
    def inheritable(self) -> bool:
        """Whether a later executor can take over the name of this one: see `take_name`."""
        return not self._proxy.target.is_native and self._interop is None

    def take_name(self, uuid: str) -> bool:
        """Take over the name of a dead executor, with the replies that were sent to it.

        Return False, without effect, if this executor is started, or if the queue of a dead
        executor is deleted with it.
        """
        with self._lock:
            if self._thread is not None or not self.inheritable:
                return False
            self._uuid = self._finder.uuid = uuid
            self._tracker.inherit(uuid)
            self._proxy = self._make_proxy()
        return True

    def expect(self, flow: str, used: Mapping[str, str]) -> None:
        """Set the ledgers that earlier runs of a flow used.

        :param used: the `ledger_place` of each ledger, by its identity ("": no ledger).
        """
        with self._lock:
            self._tracker.expect(flow, self._elsewhere(used) if used else None)

    def _elsewhere(self, used: Mapping[str, str]) -> str:
        others = {place for identity, place in used.items() if identity != (self.ledger or "")}
        if not others:
            return ""
        here = self.ledger_place
        if others == {here}:  # A ledger that has lost rows has another identity.
            return f"rows of an earlier run in {here} were lost"
        shown = " and ".join(sorted(others - {here}))
        return f"an earlier run used {shown}, and this run uses {here}"

    @property
    def ledger_place(self) -> str:
        """The place of the ledger for messages, without passwords."""
        return ledgers.shown(self._ledger_place, self._proxy.target)

    def guard(self, flow: str, check: Callable[[], object] | None, *, sole: bool = False) -> None:
        """Call `check` before requests of a flow are published or withdrawn.

        :param check: raises LeaseLost if another engine owns the flow.
        :param sole: whether the next owner of the flow may take over the name of this executor,
            and so read its replies.
        """
        self._guards.add(flow, check, sole=sole)

    def unguard(self, flow: str) -> None:
        """Remove the check and the ledgers of a flow whose run has ended."""
        self._guards.remove(flow)
        with self._lock:
            self._tracker.end_run(flow)

    def sweep(self, ended: Iterable[str]) -> None:
        """Remove the rows of completed requests of earlier runs."""
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
                if _needs_no_revert(call):
                    done(call, invocation.Outcome(None))
                    continue
                with self._lock:
                    effects = self._tracker.submit(call, done, now)
                for effect in effects:
                    if isinstance(effect, fx.Dispatch):
                        last, effect = effect, last
                    if effect is not None:
                        self._apply((effect,))
                if call.cancellation.cancelled:  # This may precede the submission.
                    self._report(self._tracker.cancel, (call,))
        finally:  # Also if a later request is rejected.
            if last is not None:  # This also publishes the deferred requests.
                self._proxy.send(self._message(last))
        with self._lock:
            effects = self._tracker.ask()
        self._apply(effects)
        self._wake_for_timer()

    def retire(self, invocations: Iterable[invocation.Invocation]) -> None:
        with self._lock:
            effects = self._tracker.on_saved(invocations)
        # One call for all of a batch.
        rows = [effect.request_id for effect in effects if isinstance(effect, fx.Drop)]
        receipts = [effect.receipt for effect in effects if isinstance(effect, fx.Acknowledge)]
        ack = self._proxy.consumer.ack_later
        for release, things in ((self._writer.drop, rows), (ack, receipts)):
            try:
                if things:
                    release(*things)
            except Exception:
                LOG.exception("failed to delete rows or acknowledge replies of finished requests")

    def cancel(self, invocations: Iterable[invocation.Invocation]) -> None:
        self._report(self._tracker.cancel, tuple(invocations))

    def withdraw(self, flow: str | None = None) -> list[invocation.Invocation]:
        """Withdraw requests (of one flow) that no worker has started."""
        with self._lock:
            unstarted = self._tracker.unstarted(flow)
            # Inherited requests remain: the next run searches for them too.
            inherited_ids = {
                tracked.id for tracked in unstarted if self._tracker.is_inherited(tracked)
            }
        withdrawn: list[invocation.Invocation] = []

        def withdraw_revoked(revoked: Collection[str]) -> None:
            for tracked in unstarted:
                call = tracked.invocation
                if tracked.state not in pr.WAITING_STATES or call.ticket is not tracked:
                    continue
                if not self._tracker.is_inherited(tracked):
                    if tracked.publish_count and tracked.id not in revoked:
                        continue
                    # The request was revoked, so it does not run.
                    call.recovered &= self._writer.ledger is None
                withdrawn.append(call)
                self._tracker.forget(tracked)
                _release_waiters([tracked])

        sent = [each for each in unstarted if each.publish_count and each.id not in inherited_ids]
        self._writer.withdraw(sent, withdraw_revoked)
        return withdrawn

    def finish(self, flow: str | None = None) -> None:
        """Wait until all submitted requests (of one flow) end or are forgotten."""
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        with self._lock:
            unfinished = self._tracker.unfinished(flow)
            for tracked in unfinished:
                tracked.done = _CountedDone(tracked.done, ended)
        for _ in unfinished:
            ended.get()

    def leave(self, flow: str) -> None:
        """Fail unfinished requests of one flow whose engine stopped."""
        with self._lock:
            effects = self._tracker.abandon(
                "its engine stopped", flow, kept_flows=self._guards.flows
            )
        self._apply(effects)

    def disown(self, flow: str | None = None) -> None:
        """Forget all requests (of one flow), without reports and without changes elsewhere."""
        with self._lock:
            forgotten = self._tracker.unfinished(flow)
            self._tracker.disown(flow)
            self._guards.disowned = flow is None
            _release_waiters(forgotten)

    # Messages of workers.

    def _on_notify(self, data: Any, message: Any) -> None:
        self._finder.process_response(data, message)
        # This must be last: a caller of `ping` then reads the state of the finder.
        self._pings.record_reply(message.headers or {})

    def _on_response(self, data: Any, message: Any) -> None:
        if not self._guards.reads_replies():
            # Another executor has this name, and receives the message later.
            return
        # The message object remains in memory until its outcome is saved.
        message.body = b""
        self._report(self._tracker.on_reply, env.received(data, message), message)

    def _on_workers(self, gained: set[str], lost: list[roster.TopicWorker]) -> None:
        now = SYSTEM.monotonic()
        with self._lock:
            effects = self._tracker.on_workers_lost(lost, now)
            effects += self._tracker.on_workers_gained(gained, now)
        self._apply(effects)
        for worker in lost:
            if isinstance(worker.identity, str):
                self._proxy.consumer.delete_private_queue(worker.identity)

    def _on_ids(self, worker: str, ids: Collection[str]) -> None:
        self._report(self._tracker.on_heartbeat, worker, ids)

    def _on_wait(self) -> None:
        now = SYSTEM.monotonic()
        self._finder.record_iteration(now, self._proxy.consumer.channel)
        searching = self._tracker.is_searching
        if searching and not self._finder.urgent:
            self._round_due = now
        self._finder.urgent = searching
        if now >= self._round_due:
            with self._lock:
                effects = self._tracker.on_round(now)
                self._finder.hurry = self._tracker.needs_reports(now)
            self._apply(effects)
            self._writer.retry_drops()
            self._finder.maybe_publish()
            self._finder.clean()
            self._round_due = self._finder.next_due() or now
        with self._lock:
            effects = self._tracker.on_timer(now)
        if effects:
            self._apply(effects)

    def _next_timer(self) -> float | None:
        with self._lock:
            return self._tracker.next_timer()

    def _until(self) -> float | None:
        timer = self._next_timer()
        return self._round_due if timer is None else min(timer, self._round_due)

    def _wake_for_timer(self) -> None:
        """Wake the consumer's thread if a timer is due before its next check."""
        due = self._next_timer()
        if due is not None and due - SYSTEM.monotonic() < consumer_loop.DRAIN_SECONDS:
            self._proxy.consumer.call_soon(_nothing)

    def _report(self, on_event: Callable[..., list[fx.Effect]], *arguments: Any) -> None:
        with self._lock:
            effects = on_event(*arguments, SYSTEM.monotonic())
        self._apply(effects)

    def _apply(self, effects: Iterable[fx.Effect]) -> None:
        for effect in effects:
            try:
                self._perform(effect)
            except Exception:  # The remaining effects belong to other requests.
                LOG.exception("failed to perform %s", type(effect).__name__)

    def _perform(self, effect: fx.Effect) -> None:
        # The most frequent effects first; `match` would be slower.
        if isinstance(effect, fx.Dispatch):
            self._proxy.send(self._message(effect), defer=True)
        elif isinstance(effect, fx.Settle):
            effect.tracked.done(effect.tracked.invocation, effect.outcome)
        elif isinstance(effect, fx.Acknowledge):
            if effect.receipt is not None:
                self._proxy.consumer.ack_later(effect.receipt)
        elif isinstance(effect, fx.RecordStart | fx.RecordClaim | fx.RecordIncident):
            effect.report()
        elif isinstance(effect, fx.ForwardEvent):
            self._forward_event(effect.tracked, effect.event_type, effect.details)
        elif isinstance(effect, fx.Drop):
            self._writer.drop(effect.request_id)
        else:
            self._recover(effect)

    def _recover(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Revoke() | fx.Inspect() | fx.Reopen() | fx.Conclude():
                self._writer.perform(effect)
            case fx.MoveToDeadLetters(letter):
                self._proxy.call_later(self._dead_letter, letter)
            case fx.Inquire() | fx.Cancel() if self._interop is not None:
                pass  # TaskFlow's workers do not support it.
            case fx.Inquire(message) | fx.Cancel(message):
                self._proxy.send(OutgoingMessage(message, self._inquiry_hooks), defer=True)

    def _dead_letter(self, letters: Sequence[env.Envelope]) -> None:
        try:
            with dead_letters.DeadLetters(
                self._proxy.target, self._exchange, DEAD_LETTER_TIMEOUT_SECONDS, self._proxy.signer
            ) as dead_queue:
                for letter in letters:
                    dead_queue.put(letter)
        except exc.TransportFailure as error:
            LOG.warning("%d requests cannot be moved to the dead letters: %s", len(letters), error)

    def _message(self, effect: fx.Dispatch) -> OutgoingMessage:
        opens = self._writer.opens_while_publishing(effect)
        hooks = self._opening if opens else self._publishing
        return OutgoingMessage(effect.envelope, hooks, effect)

    def _forward_event(
        self, tracked: TrackedRequest, event_type: str, details: dict[str, Any]
    ) -> None:
        events = tracked.invocation.events
        if events is None:
            return
        try:
            events(event_type, details)
        except Exception:
            LOG.exception("failed to pass on event %s of %r", event_type, tracked.request)

    # State, snapshots and commands for workers.

    @property
    def system(self) -> str:
        """The messaging system, such as `rabbitmq`."""
        return self._proxy.target.system

    @property
    def reports_times(self) -> bool:
        """Whether its workers report start and end times of tasks: TaskFlow's do not."""
        return self._interop is None

    def add_observer(self, observer: Observer) -> None:
        """Add an observer of published and completed requests. Idempotent."""
        with self._lock:
            if observer not in self._tracker.observers:
                self._tracker.observers = (*self._tracker.observers, observer)

    def remove_observer(self, observer: Observer) -> None:
        """Remove an observer. Idempotent."""
        with self._lock:
            remaining = tuple(each for each in self._tracker.observers if each is not observer)
            self._tracker.observers = remaining

    @property
    def ignored(self) -> dict[str, int]:
        """Number of dropped replies by reason.

        Reasons: late (the request had ended), duplicate, reordered (RUNNING after a later reply),
        old_epoch, unknown, unexpected, unreadable, misaddressed, untrusted (any message without a
        valid signature).
        """
        with self._lock:
            return {**self._tracker.ignored, **self._proxy.untrusted}

    def workers(self) -> list[snapshots.WorkerSnapshot]:
        """Return the known worker processes, in the order of their first announcements."""
        return snapshots.of_workers(self._finder.workers(), SYSTEM.monotonic(), SYSTEM.time())

    def wait_for_workers(self, workers: int = 1, timeout: float | None = None) -> int:
        """Start if necessary, and wait until `workers` processes are known.

        :returns: the number of processes that are missing after `timeout` seconds.
        :raises ValueError: if `workers` is less than 1.
        :raises TypeError: if `workers` is not an integer, or `timeout` is not a number.
        """
        finder.check_wait(workers, timeout)
        self.start()
        return self._finder.wait_for_workers(workers, timeout)

    def ping(
        self, workers: Iterable[str] | None = None, timeout: float = 2.0
    ) -> dict[str, pinging.Pong]:
        """Ping workers (by their identities; None: all known workers). Start if necessary.

        :returns: the replies that arrived within `timeout` seconds.
        :raises ValueError: if an identity is not valid, or the workers are TaskFlow's.
        """
        if self._interop is not None:
            raise ValueError(
                f"interop={self._interop!r} does not support questions to individual workers"
            )
        self.start()
        identities = (each.identity for each in self.workers()) if workers is None else workers
        names = [_names.check_label("worker", each) for each in identities if each is not None]
        ping_round = self._pings.begin(names)
        for name in names:
            question = notices.Query(self._finder.uuid).to_message(name)
            self._proxy.send(OutgoingMessage(question), first=True, defer=True)
        return self._pings.wait(ping_round, timeout)

    def requests(self, state: str | None = None) -> list[snapshots.RequestSnapshot]:
        """Return the requests of all engines that use this executor, oldest first.

        The states are 'deferred' (not due yet, or without a known worker), 'queued', 'started',
        'finished' and 'failed'. Only the newest finished and failed requests are kept.

        :param state: return only the requests in this state.
        :raises ValueError: if the state is unknown.
        """
        snapshots.check_state(state)
        wall = SYSTEM.time() - SYSTEM.monotonic()
        with self._lock:
            descriptions = [
                *self._tracker.ended,
                *(e.described() for e in self._tracker.unfinished()),
            ]
        return [
            dataclasses.replace(each, submitted=wall + (each.submitted or 0.0))
            for each in itertools.starmap(snapshots.RequestSnapshot, descriptions)
            if state in (None, each.state)
        ]

    def control(self, what: str, worker: str | None = None) -> None:
        """Send 'suspend', 'resume', 'drain' or 'stop' to one worker (by its identity), or to all.

        This does not wait for the workers. Workers that are not running never receive it.

        :raises ValueError: if the command or the identity is not valid, or the workers are
            TaskFlow's.
        """
        if self._interop is not None:
            raise ValueError(
                f"interop={self._interop!r} does not support the command {what} for workers"
            )
        order = worker_commands.order(worker_commands.check_order(what), worker)
        self.start()
        self._proxy.send(OutgoingMessage(order), first=True, defer=True)


class _CountedDone:
    def __init__(self, done: invocation.Done, ended: queue.SimpleQueue[None]) -> None:
        self._done = done
        self._ended = ended

    def __call__(self, call: invocation.Invocation, outcome: invocation.Outcome) -> None:
        try:
            self._done(call, outcome)
        finally:
            self._ended.put(None)

    def release(self) -> None:
        self._ended.put(None)
        if isinstance(self._done, _CountedDone):  # Several threads wait.
            self._done.release()


def _release_waiters(forgotten: Iterable[TrackedRequest]) -> None:
    """Release callers of `finish`: these requests get no outcome."""
    for tracked in forgotten:
        if isinstance(tracked.done, _CountedDone):
            tracked.done.release()


def _needs_no_revert(call: invocation.Invocation) -> bool:
    """Return whether a reversion need not be sent, because the execution did not start."""
    if call.action != invocation.REVERT:
        return False
    if invocation.reverts_nothing(type(call.task)):
        return True
    # Failures from a worker or from the store contain no exception object.
    failed = call.result
    return isinstance(failed, ft.Failure) and isinstance(failed.exception, _NEVER_SENT_ERRORS)


def _nothing() -> None:
    return None


def _validate_notify(data: Any) -> None:
    pr.Notify.validate(data, response=bool(data))
