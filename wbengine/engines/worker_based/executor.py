"""The executor of the worker-based engine.

`WorkerTaskExecutor` is the port of engines: it submits, withdraws and cancels requests, in the
threads of the engines. It performs the effects of its tracker in the thread whose event caused
them. Its parts are in `_engine_side`:

- `tracker_events`: messages of workers and times, and the lock of the tracker;
- `ledger_operations`: publishing requests, and their rows;
- `pings`: pings that wait for replies.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine._calls import invocation
from wbengine._concurrency import conditions, forks, threads
from wbengine._concurrency.clocks import SYSTEM
from wbengine._introspection import object_names
from wbengine._security import keys as key_files
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import proxy
from wbengine.engines.worker_based._connections import (
    connecting,
    consumer_loop,
    dead_letters,
    queue_counts,
    topology,
)
from wbengine.engines.worker_based._connections.sender import DeliveryHooks, OutgoingMessage
from wbengine.engines.worker_based._discovery import finder, snapshots
from wbengine.engines.worker_based._discovery.clock_differences import Clocks
from wbengine.engines.worker_based._discovery.snapshots import RequestSnapshot, WorkerSnapshot
from wbengine.engines.worker_based._engine_side import pings
from wbengine.engines.worker_based._engine_side.ledger_operations import LedgerWriter
from wbengine.engines.worker_based._engine_side.tracker_events import (
    FlowGuards,
    LockedTracker,
    TrackerEvents,
)
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import notices, signing, worker_commands
from wbengine.engines.worker_based._requests import effects as fx
from wbengine.engines.worker_based._requests.options import RequestOptions
from wbengine.engines.worker_based._requests.request_state import TrackedRequest
from wbengine.engines.worker_based._requests.tracker import Observer, RequestTracker
from wbengine.transports._ledger import Fence
from wbengine.types import failure as ft

__all__ = ["RequestSnapshot", "WorkerSnapshot", "WorkerTaskExecutor"]

LOG = logging.getLogger(__name__)

#: Maximum seconds that `stop` waits for publishing.
FLUSH_TIMEOUT_SECONDS: Final = 5.0

#: Timeout in seconds to connect to the broker for dead letters.
DEAD_LETTER_TIMEOUT_SECONDS: Final = 5.0

#: Failures of requests that no worker received.
_NEVER_SENT_ERRORS: Final = (exc.NeverStarted, exc.NotEncodable, exc.TooLarge)


class AskPublishing(DeliveryHooks):
    """Publishes asks and cancellations unless the executor is disowned.

    A message whose `correlation` is a flow is published only if this engine owns the flow.
    """

    def __init__(self, guards: FlowGuards) -> None:
        self._guards = guards

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        for message in messages:
            message.withdrawn = self._guards.disowned or not self._guards.owns(message.correlation)


class WorkerTaskExecutor(invocation.TaskExecutor):
    """Runs tasks on remote workers.

    Several engines may use one executor. It runs while any of them runs, or from `start` until
    `stop`. Thread-safe. Outcomes are reported in threads of the executor.

    `WorkerBasedActionEngine` describes the parameters, and these:

    :param uuid: name of the executor and its reply queue.
    :param opens_ledger: False in a program that submits nothing, but inspects or controls workers.
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
        opens_ledger: bool = True,
        **options: Any,
    ) -> None:
        self._options = RequestOptions.of(options)
        object_names.check_length("The uuid of an executor", uuid)
        topics = object_names.as_tuple("topics", topics)
        self._interop = topology.check_interop(interop, ledger, keys)
        topology.check_interop_topics(interop, topics)
        expiry = worker_expiry if worker_expiry and worker_expiry > 0 else None
        self._exchange = exchange
        self._pings = pings.Pings()
        self._guards = FlowGuards()
        self._ask_hooks = AskPublishing(self._guards)
        self._events = TrackerEvents(self._guards, self._pings)
        self._proxy = proxy.Proxy(
            uuid,
            exchange,
            self._events.handlers(),
            self._events.on_wait,
            url,
            transport,
            transport_options,
            retry_options,
            bindings=(env.ALL_ENGINES,),
            interop=self._interop,
            keys=key_files.keyring(keys, key_files.ENGINE, key_files.OPERATOR),
        )
        self._ledger_place: str | None = ledgers.NONE
        if opens_ledger and interop is None:
            self._ledger_place = ledgers.check_for(ledger, self._proxy.target)
        self._finder = finder.ProxyWorkerFinder(
            uuid,
            self._proxy,
            topics,
            worker_expiry=worker_expiry,
            interop=interop is not None,
            on_change=self._events.on_workers,
            on_ids=self._events.on_heartbeat,
            has_requests=self._events.holds,
            queue_name=None if interop else functools.partial(env.queue_name, exchange),
            has_consumer=(
                queue_counts.consumer_check(self._proxy.target, exchange) if interop else None
            ),
        )
        self._tracker = RequestTracker(
            uuid,
            self._finder,
            transition_timeout=transition_timeout,
            plain=interop is not None,
            options=self._options,
        )
        self._requests = LockedTracker(self._tracker, self._perform)
        self._writer = LedgerWriter(expiry, self._requests, self._guards)
        self._events.connect(self._requests, self._proxy, self._finder, self._writer.retry_drops)
        self._thread: threading.Thread | None = None
        # The process of this thread.
        self._pid = 0
        self._stopping = False
        # Number of engines that use the executor, and whether it runs without any.
        self._users = 0
        self._is_kept = False
        self._users_lock = threading.RLock()

    @property
    def signer(self) -> signing.Signer | None:
        """The signer of sent and received messages; None without keys."""
        return self._proxy.signer

    @property
    def uuid(self) -> str:
        return self._finder.uuid

    @property
    def finder(self) -> finder.ProxyWorkerFinder:
        return self._finder

    @property
    def broker(self) -> str | None:
        """The URL of the broker, without passwords and options.

        None: the broker has no URL, or is in this process.
        """
        target = self._proxy.target
        return None if target.url is None or target.kind.is_in_process else target.shown

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
        return self._writer.ledger is not None

    # Life cycle.

    def _check_process(self) -> None:
        """Check that this process is not a fork: it has no threads, and shares the connections.

        :raises InvalidState: if the executor was started before a fork.
        """
        if self._is_inherited:
            raise exc.InvalidState(
                f"this executor was started in process {self._pid}, and cannot be used in its fork"
                f" {forks.current_pid}: create an executor after the fork"
            )

    @property
    def _is_inherited(self) -> bool:
        """Whether a parent of this process has started the executor."""
        return self._thread is not None and self._pid != forks.current_pid

    def start(self) -> None:
        """Start the threads for the broker; they run until `stop`.

        :raises TransportFailure: if the broker cannot be reached.
        :raises LedgerFailure: if the ledger cannot be reached.
        :raises InvalidState: if the executor was started before this process was forked.
        """
        self._check_process()
        self._is_kept = True
        self._start()

    def attach(self) -> None:
        """Add an engine; start the executor if it does not run.

        :raises TransportFailure, LedgerFailure, InvalidState: see `start`; then no engine is added.
        """
        self._check_process()
        with self._users_lock:
            self._start()
            self._users += 1

    def detach(self) -> None:
        """Remove an engine; with the last one, stop the executor unless `start` was called."""
        if self._is_inherited:
            return
        with self._users_lock:
            self._users -= 1
            if not (self._users or self._is_kept):
                self.stop()

    def _start(self) -> None:
        if self._stopping:  # An interrupt ended an earlier `stop` early.
            self.stop()
        try:
            with self._requests.lock:
                if self._thread is None:
                    self._begin()
            self._proxy.wait()
        except BaseException:
            self.stop()
            raise

    def _begin(self) -> None:
        tracker, target = self._tracker, self._proxy.target
        tracker.reopen()
        if self._proxy.consumer.has_ended:
            self._proxy.renew(self._finder.uuid)
        ledger = connecting.call_with_retries(
            lambda: ledgers.choose(self._ledger_place, target, result_ttl=self._options.result_ttl),
            target.retry,
            conditions.Event(),
            within=consumer_loop.CONNECT_TIMEOUT_SECONDS,
            on_failure=connecting.log_reasons("cannot open the ledger (%s), retrying"),
        )
        target.rows.ledger = ledger
        broker_opens = ledger is not None and target.has_rows
        self._writer.use(ledger, self._proxy.signer, broker_opens=broker_opens)
        tracker.use_ledger(ledger.digest if ledger is not None else None)
        tracker.separate_ledger = ledger is not None and not target.has_rows
        # Without a ledger, the clocks of the hosts are compared.
        self._finder.clocks = Clocks(self._finder.outage_seconds) if ledger is None else None
        thread = threads.Thread(
            target=self._serve, name=f"wbengine-executor-{self._finder.uuid}", daemon=True
        )
        self._pid = forks.current_pid
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
            with self._requests.lock:
                effects = self._tracker.close("its executor stopped", kept_flows=self._guards.flows)
            self._requests.apply(effects)

    def stop(self) -> None:
        """Publish queued messages, fail unfinished requests, and disconnect.

        After an interrupt (Ctrl-C), call this again to complete it.
        """
        if self._is_inherited:
            return
        self._is_kept = False
        with self._requests.lock:
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
        with self._requests.lock:
            if self._thread is not thread:
                return  # Another call has stopped it.
            self._thread = None
        self._stopping = self._guards.disowned = False
        self._events.reset()

    # Earlier and later runs.

    @property
    def inheritable(self) -> bool:
        """Whether a later executor can take over the name of this one: see `take_name`."""
        return not self._proxy.target.is_native and self._interop is None

    def take_name(self, uuid: str) -> None:
        """Take over the name of a dead executor, with the replies that were sent to it.

        This has no effect if this executor is started, or if the queue of a dead executor is
        deleted with it.
        """
        self._check_process()
        with self._requests.lock:
            if self.inheritable and self._thread is None:
                self._finder.uuid = uuid
                self._tracker.inherit(uuid)
                self._proxy.renew(uuid)

    def expect(self, flow: str, used: Mapping[str, str]) -> None:
        """Set the ledgers that earlier runs of a flow used.

        :param used: the `ledger_place` of each ledger, by its identity ("": no ledger).
        """
        with self._requests.lock:
            self._tracker.expect(flow, self._missing_row_reason(used) if used else None)

    def _missing_row_reason(self, used: Mapping[str, str]) -> str:
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

    def begin_run(self, flow: str, number: int, *, is_resumed: bool) -> int:
        """Set the number of the present run of a flow. A later run has a higher one.

        Calls to the ledger by earlier runs have no effect from now on if the flow `is_resumed`.

        :returns: the number. It is higher than the given one if the ledger has a higher one.
        :raises LedgerFailure: if the ledger cannot be reached.
        """
        if is_resumed:
            number = self._writer.raise_fence(Fence.of(flow, number))
        with self._requests.lock:
            self._tracker.fences[flow] = Fence.of(flow, number)
        return number

    def unguard(self, flow: str) -> None:
        """Remove the check and the ledgers of a flow whose run has ended."""
        if self._is_inherited:  # A thread of the parent may have held the lock.
            return
        self._guards.remove(flow)
        with self._requests.lock:
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
        self._check_process()
        now = SYSTEM.monotonic()
        last: fx.Dispatch | None = None
        try:
            for call in invocations:
                if _needs_no_revert(call):
                    done(call, invocation.Outcome(None))
                    continue
                with self._requests.lock:
                    effects = self._tracker.submit(call, done, now)
                for effect in effects:
                    if isinstance(effect, fx.Dispatch):
                        last, effect = effect, last
                    if effect is not None:
                        self._requests.apply((effect,))
                if call.cancellation.cancelled:  # This may precede the submission.
                    self._requests.report(self._tracker.cancel, (call,))
        finally:  # Also if a later request is rejected.
            if last is not None:  # This also publishes the deferred requests.
                self._proxy.send(self._writer.message(last))
        with self._requests.lock:
            effects = self._tracker.ask()
            due = self._tracker.next_timer()
        if effects:
            self._requests.apply(effects)
        if due is not None:
            self._proxy.consumer.wake_by(due)

    def retire(self, invocations: Iterable[invocation.Invocation]) -> None:
        with self._requests.lock:
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
        self._requests.report(self._tracker.cancel, tuple(invocations))

    def withdraw(self, flow: str | None = None) -> list[invocation.Invocation]:
        """Withdraw requests (of one flow) that no worker has started.

        If a worker was lost with a request, an earlier copy of it may have run. Its call is then
        `recovered`, so that it continues under the same id.
        """
        with self._requests.lock:
            unstarted = self._tracker.requests.unstarted(flow)
            # Inherited requests remain: the next run searches for them too.
            sent = [r for r in unstarted if r.publish_count and not self._tracker.is_inherited(r)]
        withdrawn: list[invocation.Invocation] = []

        def withdraw_revoked(revoked: Collection[str]) -> None:
            for tracked in unstarted:
                call = tracked.invocation
                if tracked.state not in pr.WAITING_STATES or call.ticket is not tracked:
                    continue
                if not self._tracker.is_inherited(tracked):
                    if tracked.publish_count and tracked.id not in revoked:
                        continue
                    # The request was revoked, so no further copy runs.
                    call.lost = tracked.ran
                    call.recovered = tracked.ran or (call.recovered and self._writer.ledger is None)
                withdrawn.append(call)
                self._tracker.forget(tracked)

        self._writer.withdraw(sent, withdraw_revoked)
        return withdrawn

    def finish(self, flow: str | None = None) -> None:
        """Wait until all submitted requests (of one flow) end or are forgotten."""
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        with self._requests.lock:
            unfinished = self._tracker.requests.unfinished(flow)
            for tracked in unfinished:
                tracked.waiters += (ended,)
        for _ in unfinished:
            ended.get()

    def leave(self, flow: str) -> None:
        """Fail unfinished requests of one flow whose engine stopped."""
        with self._requests.lock:
            effects = self._tracker.abandon(
                "its engine stopped", flow, kept_flows=self._guards.flows
            )
        self._requests.apply(effects)

    def disown(self, flow: str | None = None) -> None:
        """Forget all requests (of one flow), without reports and without changes elsewhere."""
        with self._requests.lock:
            self._tracker.disown(flow)
            self._guards.disowned = flow is None

    # Effects.

    def _perform(self, effect: fx.Effect) -> None:
        # The most frequent effects first; `match` would be slower.
        if isinstance(effect, fx.Dispatch):
            self._proxy.send(self._writer.message(effect), defer=True)
        elif isinstance(effect, fx.Settle):
            try:
                effect.tracked.done(effect.tracked.invocation, effect.outcome)
            finally:
                effect.tracked.release_waiters()
        elif isinstance(effect, fx.Acknowledge):
            if effect.receipt is not None:
                self._proxy.consumer.ack_later(effect.receipt)
        elif isinstance(effect, fx.Record):
            effect.report()
        elif isinstance(effect, fx.ForwardEvent):
            _forward_event(effect.tracked, effect.event_type, effect.details)
        elif isinstance(effect, fx.Drop):
            self._writer.drop(effect.request_id)
        elif isinstance(effect, fx.MoveToDeadLetters):
            self._proxy.call_later(self._dead_letter, effect.letter)
        elif isinstance(effect, fx.Ask | fx.Cancel):
            if self._interop is None:  # TaskFlow's workers do not support it.
                flow = effect.flow if isinstance(effect, fx.Cancel) else None
                self._proxy.send(OutgoingMessage(effect.message, self._ask_hooks, flow), defer=True)
        else:
            self._writer.perform(effect)

    def _dead_letter(self, letters: Sequence[env.Envelope]) -> None:
        try:
            with dead_letters.DeadLetters(
                self._proxy.target, self._exchange, DEAD_LETTER_TIMEOUT_SECONDS, self._proxy.signer
            ) as dead_queue:
                for letter in letters:
                    dead_queue.put(letter)
        except exc.TransportFailure as error:
            LOG.warning("%d requests cannot be moved to the dead letters: %s", len(letters), error)

    # Observing and controlling workers and requests, for programs and commands. Thread-safe.

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
        with self._requests.lock:
            if observer not in self._tracker.observers:
                self._tracker.observers = (*self._tracker.observers, observer)

    def remove_observer(self, observer: Observer) -> None:
        """Remove an observer. Idempotent."""
        with self._requests.lock:
            self._tracker.observers = tuple(
                each for each in self._tracker.observers if each is not observer
            )

    @property
    def ignored(self) -> dict[str, int]:
        """Number of dropped replies by reason.

        Reasons: late (the request had ended), duplicate, reordered (RUNNING after a later reply),
        old_epoch, unknown, unexpected, unreadable, misaddressed, untrusted (any message without a
        valid signature).
        """
        with self._requests.lock:
            return {**self._tracker.ignored, **self._proxy.untrusted}

    def unserved(self) -> dict[str, int]:
        """Return the number of requests that no known worker can run, by class of the task."""
        with self._requests.lock:
            return self._tracker.unserved()

    def workers(self) -> list[WorkerSnapshot]:
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
    ) -> dict[str, pings.Pong]:
        """Ping workers (by their identities; None: all known workers). Start if necessary.

        :returns: the replies that arrived within `timeout` seconds.
        :raises ValueError: if an identity is not valid, or the workers are TaskFlow's.
        """
        if self._interop is not None:
            raise ValueError(
                f"interop={self._interop!r} does not support queries to individual workers"
            )
        self.start()
        identities = (each.identity for each in self.workers()) if workers is None else workers
        names = [
            object_names.check_label("worker", each) for each in identities if each is not None
        ]
        ping_round = self._pings.begin(names)
        for name in names:
            query = notices.Query(self._finder.uuid).to_message(name)
            self._proxy.send(OutgoingMessage(query), first=True, defer=True)
        return self._pings.wait(ping_round, timeout)

    def requests(self, state: str | None = None) -> list[RequestSnapshot]:
        """Return the requests of all engines that use this executor, oldest first.

        The states are 'deferred' (not due yet, or without a known worker), 'queued', 'started',
        'finished' and 'failed'. Only the newest finished and failed requests are kept.

        :param state: return only the requests in this state.
        :raises ValueError: if the state is unknown.
        """
        snapshots.check_state(state)
        wall = SYSTEM.time() - SYSTEM.monotonic()
        with self._requests.lock:
            descriptions = [
                *self._tracker.ended,
                *(e.described() for e in self._tracker.requests.unfinished()),
            ]
        return [
            dataclasses.replace(each, submitted=wall + (each.submitted or 0.0))
            for each in itertools.starmap(RequestSnapshot, descriptions)
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
        message = worker_commands.control(worker_commands.check_action(what), worker)
        self.start()
        self._proxy.send(OutgoingMessage(message), first=True, defer=True)


def _forward_event(tracked: TrackedRequest, event_type: str, details: dict[str, Any]) -> None:
    events = tracked.invocation.events
    if events is None:
        return
    try:
        events(event_type, details)
    except Exception:
        LOG.exception("failed to pass on event %s of %r", event_type, tracked)


def _needs_no_revert(call: invocation.Invocation) -> bool:
    """Return whether a reversion need not be sent, because the execution did not start."""
    if call.action != invocation.REVERT:
        return False
    if invocation.reverts_nothing(type(call.task)):
        return True
    # Failures from a worker or from the store contain no exception object.
    failed = call.result
    return isinstance(failed, ft.Failure) and isinstance(failed.exception, _NEVER_SENT_ERRORS)
