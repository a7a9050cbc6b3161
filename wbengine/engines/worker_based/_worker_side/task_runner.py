"""Performs the effects of a worker's `Server`, with the broker, the ledger and the pool."""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions as exc
from wbengine import running
from wbengine._calls import invocation
from wbengine._concurrency import conditions
from wbengine._concurrency.crash_points import crashpoint
from wbengine.engines.worker_based import dispatcher, proxy
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._connections.sender import DeliveryHooks, OutgoingMessage
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import notices, request_messages, worker_commands
from wbengine.engines.worker_based._worker_side import heartbeat, reporting
from wbengine.engines.worker_based._worker_side import server_effects as fx
from wbengine.engines.worker_based._worker_side.jobs import Job
from wbengine.engines.worker_based._worker_side.slots import Pool
from wbengine.transports import _ledger as ledgers
from wbengine.transports._broker import Broker, Finish
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine._concurrency import event_loop
    from wbengine.engines.worker_based import server

LOG = logging.getLogger(__name__)

#: Seconds after which a cancelled task is killed, if possible.
CANCEL_GRACE_SECONDS: Final = 10.0

#: Runtime of a task in seconds after which RUNNING is sent.
RUNNING_DELAY_SECONDS: Final = 0.005

#: Delay in seconds after a failed operation on a row, before a retry or a requeue.
LEDGER_RETRY_SECONDS: Final = 0.5

#: Seconds of retries before a result that cannot be stored is given up. They count only while the
#: ledger accepts heartbeats, or the worker stops.
STORE_TIMEOUT_SECONDS: Final = 5.0

#: Minimum seconds between two reads of the digest of a separate ledger.
LEDGER_REFRESH_SECONDS: Final = 1.0


class TaskRunner:
    """Runs the tasks of one `Server`, and locks it. Thread-safe.

    `on_drain()` is called when the worker should stop.
    """

    def __init__(
        self,
        core: server.Server,
        wire: proxy.Proxy,
        pool: Pool,
        loop: event_loop.EventLoop | None,
        reports: reporting.Reports,
        beats: heartbeat.Beats,
        on_drain: Callable[[], None],
    ) -> None:
        self.server = core
        self.lock = threading.RLock()
        self._changed = conditions.Condition(self.lock)
        self.ledger: ledgers.Ledger | None = None
        #: Whether `Broker.finish` finishes the rows of the ledger.
        self.has_rows = False
        # When to read the digest of the ledger again.
        self._refresh_at = -math.inf
        #: Time of the last request, on the monotonic clock.
        self.last_request_at = -math.inf
        self._proxy = wire
        self._pool = pool
        self._loop = loop
        self._reports = reports
        self._beats = beats
        self._on_drain = on_drain
        self._closed = conditions.Event()
        self._publishing = _Publishing(self)
        self._one_step = _OneStep(self)
        self._unacked = 0
        self._reporting = 0
        # Jobs with an unsent RUNNING, each with the time at which it is due.
        self._starting: deque[tuple[float, Job]] = deque()

    def handlers(self) -> dict[str, dispatcher.Handler]:
        handler, schemas = dispatcher.Handler, worker_commands.SCHEMAS
        return {
            pr.NOTIFY: handler(self._on_notify, pr.Notify.validate),
            pr.REQUEST: handler(self.take, pr.Request.validate, owns_ack=True),
            worker_commands.ASK: handler(self._on_ask, schemas[worker_commands.ASK].check),
            worker_commands.CANCEL: handler(self._on_cancel, schemas[worker_commands.CANCEL].check),
        }

    def _on_notify(self, data: Any, message: Any) -> None:
        query = notices.Query.from_message(env.received(data, message))
        self._beats.adopt_period(query.period)
        self._refresh_ledger()
        self.report(self.server.on_query, query.reply_to, self._beats.period)

    def _on_ask(self, data: Any, message: Any) -> None:
        ask = worker_commands.Ask.from_message(env.received(data, message))
        self.report(self.server.on_ask, *ask)

    def _on_cancel(self, data: Any, message: Any) -> None:
        cancellation = worker_commands.Cancellation.from_message(env.received(data, message))
        self.report(self.server.on_cancel, cancellation.requests)

    def report(self, on_event: Callable[..., list[fx.Effect]], *arguments: Any) -> None:
        """Report an event to the server, and perform the resulting effects."""
        with self.lock:
            effects = on_event(*arguments)
        self.apply(effects)

    def take(self, data: Any, message: Any) -> None:
        request = request_messages.RequestMessage.from_message(env.received(data, message))
        self.last_request_at = time.monotonic()
        try:
            self._adopt_ledger(request.ledger)
        except exc.LedgerFailure as error:
            LOG.warning("request %s cannot be checked: %s", request.id, error)
            with self.lock:
                self._unacked += 1
            self._requeue_later(message)
            return
        with self.lock:
            effects = self.server.on_request(
                request, message, time.time(), claimed=getattr(message, "claim", None) is not None
            )
            self._unacked += 1  # Last: the dispatcher settles the message of a failed handler.
        self.apply(effects)

    def _adopt_ledger(self, digest: str | None) -> None:
        """Accept the digest of a request if the ledger has it, or had it before a loss of data."""
        if digest is None or self.ledger is None or self.server.is_known_ledger(digest):
            return
        if self.ledger.accepts(digest):
            with self.lock:
                self.server.rename_ledger(self.ledger.digest, digest)

    def _refresh_ledger(self) -> None:
        """Update the digest that the worker announces.

        A separate ledger that lost its data has another one, and no event reports this.
        """
        ledger, digest, now = self.ledger, self.server.ledger, time.monotonic()
        if ledger is None or digest is None or self.has_rows or now < self._refresh_at:
            return
        self._refresh_at = now + LEDGER_REFRESH_SECONDS
        try:
            ledger.accepts(digest)
        except exc.LedgerFailure as error:
            LOG.debug("%s", error)
            return
        if ledger.digest != digest:
            with self.lock:
                self.server.rename_ledger(ledger.digest)

    @property
    def busy(self) -> bool:
        """Whether tasks run, or messages are not acknowledged or reported yet."""
        return bool(self.server.running or self._unacked or self._reporting)

    def admit(self) -> bool:
        """Return whether a task without a request may start; if it may, count it."""
        with self.lock:
            admitted, effects = self.server.admit()
        self.apply(effects)
        return admitted

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until no work remains; return False on timeout or after `close`."""
        self._changed.wait_for(lambda: not self.busy or self._closed.is_set(), timeout)
        with self.lock:
            return not self.busy

    def close(self) -> None:
        """Unblock all waits."""
        self._closed.set()
        self._reports.flush()
        with self.lock:
            self._changed.notify_all()

    def apply(self, effects: Iterable[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Claim(job):
                    self._claim(job)
                case fx.Run(job):
                    self._run(job)
                case fx.Reply(job, envelope, terminal, deferrable):
                    self._reply(job, envelope, terminal, deferrable)
                case fx.Finish(job, answer):
                    self._discard_running(job)
                    self._finish(job, answer)
                case fx.Acknowledge(receipt):
                    self._acknowledge(receipt)
                case fx.Cancel(job):
                    self.cancel(job)
                case fx.Check(job):
                    self._check(job)
                case fx.Release(job):
                    self._release(job)
                case fx.Return(job):
                    self._proxy.consumer.return_unstarted(job.receipt, self.count_returned)
                case fx.Drain():
                    self._on_drain()

    def _claim(self, job: Job) -> None:
        assert self.ledger is not None
        crashpoint("worker.before-claim")
        now = time.monotonic()
        # Set before the claim: this process may be paused at any time.
        job.fresh = (getattr(job.receipt, "taken_at", None) or now) + self._beats.period
        # The message may have been claimed when it was received.
        claim: ledgers.Claim | None = getattr(job.receipt, "claim", None)
        if claim is None:
            try:
                # After an old heartbeat, an engine would consider this worker lost.
                if now >= self._beats.due:
                    self._beats.renew(now)
                claim = self.ledger.claim(job.id, job.epoch, self.server.identity)
            except Exception as error:
                if isinstance(error, exc.LedgerFailure):
                    LOG.warning("request %s cannot be claimed: %s", job.id, error)
                else:
                    LOG.exception("failed to claim request %s", job.id)
                with self.lock:
                    self.server.forget(job)
                self._requeue_later(job.receipt)
                return
        crashpoint("worker.after-claim")
        with self.lock:
            effects = self.server.on_claim(job, claim)
        self.apply(effects)

    def _requeue_later(self, receipt: Any) -> None:
        """Requeue a request after a delay: an immediate retry would only use CPU time."""
        self._closed.wait(LEDGER_RETRY_SECONDS)
        self._proxy.consumer.requeue(receipt, self.count_returned)

    def _check(self, job: Job) -> None:
        """Read whether this worker still owns the row, with retries until the ledger replies."""
        assert self.ledger is not None
        while True:
            job.fresh = time.monotonic() + self._beats.period
            try:
                row = self.ledger.state(job.id)
                break
            except exc.LedgerFailure as error:
                LOG.warning("request %s waits for its ledger: %s", job.id, error)
                if self._closed.wait(LEDGER_RETRY_SECONDS):
                    return
        self.report(self.server.on_checked, job, row)

    def _release(self, job: Job) -> None:
        """Release the row as if it had never been claimed. Does not retry."""
        assert self.ledger is not None
        released = False
        try:
            released = self.ledger.release(job.id, job.epoch, self.server.identity)
        except exc.LedgerFailure as error:
            LOG.warning("the claim of request %s cannot be released: %s", job.id, error)
        if not released:
            # The slot must check the row before it runs the task.
            job.fresh = -math.inf
        self.report(self.server.on_released, job, released)

    def _run(self, job: Job) -> None:
        assert job.endpoint is not None
        job.began = time.time()
        if reporting.LOG.isEnabledFor(logging.DEBUG):
            self._reports.started(job)
        call: running.Call = (job.endpoint.begin, (job.unit, self._loop, job.expires, job.fresh))
        # Without an event loop here, the call runs in a child process.
        if running.sending is not None and self._loop is None:
            call = running.sending(job.key, call)
        try:
            job.ticket = self._pool.submit(
                *call,
                functools.partial(self._on_outcome, job),
                functools.partial(self._on_event, job),
                job.limit,
                job.name,
                lazily=True,
            )
        except Exception as error:  # A user's executor may be shut down.
            self._on_outcome(job, ft.Failure.from_exception(error))
        if job.cancelled:  # This happened during the submission.
            self.cancel(job)

    def cancel(self, job: Job) -> None:
        if job.ticket is not None:
            job.ticket.cancel(CANCEL_GRACE_SECONDS)

    def _on_event(self, job: Job, event_type: str, details: dict[str, Any]) -> None:
        self.report(self.server.on_event, job, event_type, details)

    def _on_outcome(self, job: Job, value: Any) -> None:
        if value is None:  # It got its slot so late that another worker may own it.
            self.report(self.server.on_unstarted, job)
            return
        if not isinstance(value, invocation.Outcome):  # For example, a child process died.
            value = invocation.Outcome(value, started=job.began, ended=time.time())
        with self.lock:
            effects = self.server.on_finished(job, value)
            # The outcome changes if its reply cannot be encoded.
            ended, job.outcome = job.outcome, None
            failed = ended is not None and ended.failed
            self._reporting += failed
        if ended is not None and not failed and reporting.LOG.isEnabledFor(logging.INFO):
            self._reports.ended(job, ended)
        self.apply(effects)
        if ended is not None and failed:
            self._pool.call_others()  # The exception handlers may be slow.
            self._reports.ended(job, ended)
            with self.lock:
                self._reporting -= 1
                self._changed.notify_all()

    def _reply(
        self, job: Job | None, envelope: env.Envelope, terminal: bool, deferrable: bool
    ) -> None:
        if job is None:
            if envelope.type == pr.NOTIFY:
                notices.stamp(envelope, time.time())
            self._proxy.send(OutgoingMessage(envelope), first=True, defer=True)
        elif terminal:
            self._discard_running(job)
            self._send(OutgoingMessage(envelope, self._publishing, job))
        elif deferrable:
            due = time.monotonic() + RUNNING_DELAY_SECONDS
            job.running = envelope
            self._starting.append((due, job))
            self._proxy.consumer.wake_by(due)
        else:
            self._discard_running(job)
            self._proxy.send(OutgoingMessage(envelope), defer=True)

    def send_running(self, now: float) -> float | None:
        """Send RUNNING for the tasks for which it is due. Use one thread.

        :returns: time of the next call, or None.
        """
        starting = self._starting
        busy = bool(starting)
        while starting:
            due, job = starting[0]
            if job.running is not None and due > now:
                return due
            starting.popleft()
            with self.lock:  # RUNNING must precede later messages of the job.
                running, job.running = job.running, None
                if running is not None:
                    self._proxy.send(OutgoingMessage(running), defer=True)
        # More tasks will probably start; they need no wake-up.
        return now + RUNNING_DELAY_SECONDS if busy else None

    def _discard_running(self, job: Job) -> None:
        """Discard the delayed RUNNING: the next message implies it."""
        if job.running is None:
            return
        with self.lock:
            job.running = None

    # Finishing requests: store the result in the row, publish the reply, acknowledge the request.
    #
    # All three are one step of a broker that has the rows. On RabbitMQ, the reply and the
    # acknowledgement are one write, after the result is stored. Otherwise they follow each other in
    # this order, so that a request is delivered again if its worker is killed in between.

    def _finish(self, job: Job, reply: env.Envelope) -> None:
        """Finish a request with a row."""
        if self.has_rows:
            self._send(OutgoingMessage(reply, self._one_step, job))
            return
        message = OutgoingMessage(reply, self._publishing, job)
        # Engines accept only stored results. This may block, and heartbeats must continue.
        if self._store(message):
            self._send(message)

    def _send(self, message: OutgoingMessage) -> None:
        job = message.correlation
        soon = self._pool.has_more  # The next message follows at once: send both together.
        # Only publishing and acknowledging are left.
        is_last_step = message.hooks is self._publishing and job.is_quiet
        self._proxy.signed(message.envelope)
        if not (is_last_step and self._proxy.consumer.answer(message, job.receipt, soon)):
            self._proxy.send(message, defer=soon)

    def _store(self, message: OutgoingMessage) -> bool:
        """Store a result before it is published; return whether to publish it."""
        crashpoint("worker.before-finish")
        job: Job = message.correlation
        stored = self._finish_row(message)
        if isinstance(stored, exc.LedgerFailure):
            stored = self._retry_storing(message, stored)
        crashpoint("worker.after-finish")
        is_fenced = not stored and self._is_fenced(job)
        if isinstance(stored, exc.LedgerFailure):  # The reply is still sent.
            LOG.warning("the reply to request %s cannot be stored: %s", job.id, stored)
        with self.lock:
            effects = self.server.on_stored(job, is_fenced)
        self.apply(e for e in effects if not (isinstance(e, fx.Reply) and e.terminal))
        return not is_fenced

    def _finish_row(self, message: OutgoingMessage) -> bool | exc.LedgerFailure:
        assert self.ledger is not None
        job: Job = message.correlation
        reply = env.freeze(self._proxy.signed(message.envelope))
        (stored,) = self.ledger.finish_many(self.server.identity, [(job.id, job.epoch, reply)])
        return stored

    def _retry_storing(
        self, message: OutgoingMessage, error: exc.LedgerFailure
    ) -> bool | exc.LedgerFailure:
        """Retry to store a result, because the engine accepts no other.

        While the ledger is unavailable, this waits until the worker stops. If the ledger accepts
        heartbeats but refuses the result, a small failure replaces the result.
        """
        assert self.ledger is not None
        job: Job = message.correlation
        LOG.warning("the result of request %s cannot be stored, retrying: %s", job.id, error)
        give_up, is_refused = math.inf, False
        while not self._closed.wait(LEDGER_RETRY_SECONDS):
            try:
                self.ledger.renew(self.server.identity)
                is_unavailable = False
            except exc.LedgerFailure:
                is_unavailable = True
            now = time.monotonic()
            waits = is_unavailable and not self.server.ending
            give_up = math.inf if waits else min(give_up, now + STORE_TIMEOUT_SECONDS)
            stored = self._finish_row(message)
            if isinstance(stored, bool):
                return stored
            if now < give_up:
                continue
            if self.server.ending and (is_unavailable or is_refused):
                return stored
            give_up = math.inf
            if not is_refused:
                is_refused = True
                with self.lock:
                    message.envelope = self.server.on_unstorable(job, stored)
                LOG.warning("request %s fails: the ledger refused its result: %s", job.id, stored)
        return error

    def _is_fenced(self, job: Job) -> bool:
        """Return whether a row that rejected a result has another epoch or owner.

        The result of a fenced row must be discarded. A missing row is not fenced: it may be lost,
        and the engine may wait for the reply.
        """
        assert self.ledger is not None
        try:
            row = self.ledger.state(job.id)
        except exc.LedgerFailure:
            return False  # The engine decides.
        if row is None or (row.epoch == job.epoch and row.state == ledgers.ROW_DONE):
            return False
        _log_fenced(job)
        return True

    def release_slots(self, jobs: Sequence[Job]) -> None:
        """Release the slots of jobs that are about to be answered, in one step."""
        self._proxy.consumer.release_many(_receipts(jobs))

    def acknowledge(self, jobs: Sequence[Job]) -> None:
        """Acknowledge jobs whose replies are published, or cannot be published."""
        self._proxy.consumer.ack_answered(self._acknowledge_answered, jobs)

    def _acknowledge_answered(self, jobs: Sequence[Job]) -> None:
        self._proxy.consumer.ack_many(_receipts(jobs))
        self._on_settled(jobs)

    def finish_in_one_step(self, broker: Broker, messages: Sequence[OutgoingMessage]) -> None:
        """Store, publish and acknowledge the replies to jobs."""
        crashpoint("worker.before-finish")
        jobs: list[Job] = [message.correlation for message in messages]
        batch = [
            Finish(job.id, job.epoch, job.receipt, message)
            for job, message in zip(jobs, messages, strict=True)
        ]
        order = None
        if self._pool.private:
            order = self._proxy.consumer.order(_receipts(jobs))
        else:
            self.release_slots(jobs)
        finished = broker.finish(batch, order)
        crashpoint("worker.after-finish")
        try:
            for job, was_owned in zip(jobs, finished, strict=True):
                if not was_owned:
                    _log_fenced(job)
                with self.lock:
                    effects = self.server.on_stored(job, not was_owned, sent=True)
                self.apply(effects)
        finally:
            if order is not None:  # This must precede the report that the worker is idle.
                order.deliver()

    def fail(self, job: Job, error: exc.TooLarge) -> None:
        """Finish a request with a small failure, because its reply is too large for the broker."""
        with self.lock:
            reply = self.server.on_unstorable(job, error)
        self._finish(job, reply)

    def forget(self, jobs: Sequence[Job]) -> None:
        """Forget jobs whose messages were acknowledged together with their replies."""
        self._proxy.consumer.forget_many(_receipts(jobs))
        self._on_settled(jobs)

    def _on_settled(self, jobs: Sequence[Job]) -> None:
        with self.lock:
            for job in jobs:
                self.server.on_answered(job)
            self._count_settled(len(jobs))
        if self._reports.unlogged:
            self._reports.flush()

    def _acknowledge(self, receipt: Any) -> None:
        self._proxy.consumer.ack(receipt)
        self.count_returned()

    def count_returned(self) -> None:
        with self.lock:
            self._count_settled(1)

    def _count_settled(self, count: int) -> None:
        self._unacked -= count
        if not self._unacked:
            self._changed.notify_all()


class _Publishing(DeliveryHooks):
    """Acknowledges requests after their replies are published."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        self._runner.release_slots(_jobs(messages))

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        self._runner.acknowledge(_jobs(messages))

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        self._runner.acknowledge((message.correlation,))


class _OneStep(_Publishing):
    """Stores, publishes and acknowledges in one step of the broker."""

    writes = True

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        """Do nothing: `write` releases the slots."""

    def write(self, broker: Broker, messages: Sequence[OutgoingMessage]) -> Iterable[bool]:
        self._runner.finish_in_one_step(broker, messages)
        return (True for _ in messages)

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        self._runner.forget(_jobs(messages))

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        if isinstance(error, exc.TooLarge):
            self._runner.fail(message.correlation, error)
        else:
            super().failed(message, error)


def _jobs(messages: Iterable[OutgoingMessage]) -> list[Job]:
    return [message.correlation for message in messages]


def _receipts(jobs: Iterable[Job]) -> list[Any]:
    return [job.receipt for job in jobs]


def _log_fenced(job: Job) -> None:
    LOG.warning("the engine withdrew request %s while it ran here: its result is discarded", job.id)
