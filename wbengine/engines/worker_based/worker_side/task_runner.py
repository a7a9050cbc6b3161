"""Performs the effects of a worker's `Server`: on the broker, in the ledger, and in the pool."""

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
from wbengine import invocation, running
from wbengine._crash import crashpoint
from wbengine.engines.worker_based import dispatcher, endpoint, proxy, server
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.connections.outgoing import DeliveryHooks, OutgoingMessage
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import commands
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.worker_side import effects as fx
from wbengine.engines.worker_based.worker_side import heartbeat, reporting
from wbengine.engines.worker_based.worker_side.jobs import Job
from wbengine.engines.worker_based.worker_side.slots import Pool
from wbengine.transports.broker import Broker, LaidOut
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine.concurrency import event_loop

LOG = logging.getLogger(__name__)

#: Seconds that a cancelled task has to end by itself where it can be killed.
CANCEL_GRACE: Final = 10.0

#: Seconds that a task runs before its engine is told so.
RUNNING_AFTER: Final = 0.005

#: Seconds before a request goes back to its queue whose ledger could not be asked.
LEDGER_PAUSE: Final = 0.5

#: Seconds for which an outcome is offered to a ledger that takes other things, and does not take
#: this; and to one that is away while the worker ends.
LEDGER_PATIENCE: Final = 5.0


class TaskRunner:
    """Runs the tasks of one `Server`, which it locks; any thread may use it.

    `on_drain()` is called when the worker should end.
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
        self._changed = threading.Condition(self.lock)
        self.ledger: ledgers.Ledger | None = None
        #: Whether that is in a place of its own: then engines believe what is stored there only.
        self.separate_ledger = False
        #: When the last request came, on the monotonic clock.
        self.taken = -math.inf
        self._proxy = wire
        self._pool = pool
        self._loop = loop
        self._reports = reports
        self._beats = beats
        self._on_drain = on_drain
        self._closed = threading.Event()
        self._answering, self._storing, self._ending = (
            _Answering(self), _Storing(self), _Ending(self),
        )  # fmt: skip
        self._unacked = 0
        self._reporting = 0
        # Whose RUNNING is still to be told, by when.
        self._starting: deque[tuple[float, Job]] = deque()

    # For its worker.

    def handlers(self) -> dict[str, dispatcher.Handler]:
        """What takes in messages, by their types; orders to the worker are its own matter."""
        made, schemas = dispatcher.Handler, commands.SCHEMAS
        return {
            pr.NOTIFY: made(self._on_notify, pr.Notify.validate),
            pr.REQUEST: made(self.take, pr.Request.validate, owns_ack=True),
            commands.ASK: made(self._on_ask, schemas[commands.ASK].check),
            commands.CANCEL: made(self._on_cancel, schemas[commands.CANCEL].check),
        }

    def _on_notify(self, data: Any, message: Any) -> None:
        question = env.received(data, message)
        self._beats.obey(question)
        self.report(self.server.on_notify, question, self._beats.period)

    def _on_ask(self, data: Any, message: Any) -> None:
        question = env.received(data, message)
        in_person = env.WBE_ASK in question.headers
        self.report(self.server.on_ask, commands.named(data), question.reply_to, in_person)

    def _on_cancel(self, data: Any, message: Any) -> None:
        self.report(self.server.on_cancel, commands.named(data))

    def report(self, on_event: Callable[..., list[fx.Effect]], *told: Any) -> None:
        """Tell the server of an event, and perform what it wants then."""
        with self.lock:
            effects = on_event(*told)
        self.apply(effects)

    def take(self, data: Any, message: Any) -> None:
        """A REQUEST came."""
        request = env.received(data, message)
        self.taken = time.monotonic()
        if env.WBE_PERIOD in request.headers:
            self._beats.obey(request)
        with self.lock:
            self._unacked += 1
            effects = self.server.on_request(
                request, message, time.time(), claimed=getattr(message, "claim", None) is not None
            )
        self.apply(effects)

    @property
    def busy(self) -> bool:
        """Whether anything runs, or is not acknowledged yet, or not reported."""
        return bool(self.server.running or self._unacked or self._reporting)

    def admit(self) -> bool:
        """Whether one more task may begin that no request asked for; if so, it is counted."""
        with self.lock:
            admitted, effects = self.server.admit()
        self.apply(effects)
        return admitted

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until nothing is under way; False if time ran out, or it was closed."""
        with self.lock:
            self._changed.wait_for(lambda: not self.busy or self._closed.is_set(), timeout)
            return not self.busy

    def close(self) -> None:
        """End all waits."""
        self._closed.set()
        self._reports.tell()
        with self.lock:
            self._changed.notify_all()

    def apply(self, effects: Iterable[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Claim(job):
                    self._claim(job)
                case fx.Run(job):
                    self._run(job)
                case fx.Reply(job, envelope, terminal):
                    self._reply(job, envelope, terminal)
                case fx.Finish(job, answer):
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
                    self._proxy.consumer.give_back(job.receipt, self.returned)
                case fx.Drain():
                    self._on_drain()

    # The ledger.

    def _claim(self, job: Job) -> None:
        assert self.ledger is not None
        crashpoint("worker.before-claim")
        now = time.monotonic()
        # From before the claim: this process may be stopped at any moment after it.
        job.fresh = (getattr(job.receipt, "taken", None) or now) + self._beats.period
        # What the ledger said when the message was taken, where taking asks it.
        claim: ledgers.Claim | None = getattr(job.receipt, "claim", None)
        if claim is None:
            try:
                # After a long rest its last beat is old: an engine that looks at the row would
                # take it for dead.
                if now >= self._beats.due:
                    self._beats.renew(now)
                claim = self.ledger.claim(job.id, job.epoch, self.server.identity)
            except exc.LedgerFailure as error:
                LOG.warning("request %s cannot be claimed: %s", job.id, error)
                self._requeue(job)
                return
            except Exception:
                LOG.exception("failed to claim request %s", job.id)
                self._requeue(job)
                return
        crashpoint("worker.after-claim")
        with self.lock:
            effects = self.server.on_claim(job, claim)
        self.apply(effects)

    def _requeue(self, job: Job) -> None:
        """A request could not be claimed: it goes back for another worker to try."""
        with self.lock:
            self.server.forget(job)
        # Whatever ails the ledger, asking it again at once would only burn the processor.
        self._closed.wait(LEDGER_PAUSE)
        self._proxy.consumer.requeue(job.receipt, self.returned)

    def _check(self, job: Job) -> None:
        """Whether its row is still this worker's; its slot waits for a ledger that is away."""
        assert self.ledger is not None
        while True:
            job.fresh = time.monotonic() + self._beats.period
            try:
                row = self.ledger.state(job.id)
                break
            except exc.LedgerFailure as error:
                LOG.warning("request %s waits for its ledger: %s", job.id, error)
                if self._closed.wait(LEDGER_PAUSE):
                    return
        self.report(self.server.on_checked, job, row)

    def _release(self, job: Job) -> None:
        """Let go of its row, as if it was never claimed; never waits for a ledger that is away."""
        assert self.ledger is not None
        released = False
        try:
            released = self.ledger.release(job.id, job.epoch, self.server.identity)
        except exc.LedgerFailure as error:
            LOG.warning("request %s cannot be given back: %s", job.id, error)
        if not released:
            job.fresh = -math.inf  # another worker may have it: its slot asks before it runs it
        self.report(self.server.on_released, job, released)

    def _finish(self, job: Job, answer: env.Envelope) -> None:
        if getattr(job.receipt, "claim", None) is not None:
            self._send_end(OutgoingMessage(answer, self._ending, job))
            return
        message = OutgoingMessage(answer, self._storing, job)
        if self.separate_ledger or not self._proxy.target.ours:
            # Another place, which may let one wait: beats have to go out meanwhile.
            self.store((message,))
            if message.withdrawn:
                return
        self._send_end(message)

    def store(self, messages: Sequence[OutgoingMessage]) -> None:
        """Store what is about to be published; what must not be used is withdrawn."""
        assert self.ledger is not None
        crashpoint("worker.before-finish")
        told = self._finish_rows(messages)
        if self.separate_ledger:  # of one row: see `_finish`
            told = [
                self._finish_late(message, each) if isinstance(each, exc.LedgerFailure) else each
                for message, each in zip(messages, told, strict=True)
            ]
        crashpoint("worker.after-finish")
        for message, stored in zip(messages, told, strict=True):
            job = message.correlation
            message.hooks = self._answering  # once: publishing may take several attempts
            message.withdrawn = not stored and self._is_fenced(job)
            if isinstance(stored, exc.LedgerFailure):  # the engine is answered all the same
                LOG.warning("the answer to request %s cannot be stored: %s", job.id, stored)
            with self.lock:
                effects = self.server.on_stored(job, message.withdrawn)
            self.apply(e for e in effects if not (isinstance(e, fx.Reply) and e.terminal))

    def _finish_rows(self, messages: Sequence[OutgoingMessage]) -> list[bool | exc.LedgerFailure]:
        assert self.ledger is not None
        ended = [(m.correlation.id, m.correlation.epoch, self._frozen(m)) for m in messages]
        return self.ledger.finish_many(self.server.identity, ended)

    def _frozen(self, message: OutgoingMessage) -> bytes:
        return env.freeze(self._proxy.signed(message.envelope))

    def _finish_late(
        self, message: OutgoingMessage, error: exc.LedgerFailure
    ) -> bool | exc.LedgerFailure:
        """Store what a ledger did not take: its engine believes nothing else.

        One that is away is waited for, unless the worker ends.  One that takes beats meanwhile, and
        goes on to refuse this, does so for good: it gets a small failure instead.
        """
        assert self.ledger is not None
        job: Job = message.correlation
        LOG.warning("the outcome of request %s cannot be stored, trying again: %s", job.id, error)
        give_up, refused = math.inf, False
        while not self._closed.wait(LEDGER_PAUSE):
            try:
                self.ledger.renew(self.server.identity)
                away = False
            except exc.LedgerFailure:
                away = True
            now = time.monotonic()
            waits = away and not self.server.ending
            give_up = math.inf if waits else min(give_up, now + LEDGER_PATIENCE)
            (stored,) = self._finish_rows((message,))
            if isinstance(stored, bool):
                return stored
            if now < give_up:
                continue
            if self.server.ending and (away or refused):
                return stored
            give_up = math.inf
            if not refused:
                refused = True
                with self.lock:
                    message.envelope = self.server.on_unstorable(job, stored)
                LOG.warning("request %s fails: its outcome is refused: %s", job.id, stored)
        return error

    def end(
        self, broker: Broker, messages: Sequence[OutgoingMessage], prepared: Sequence[LaidOut]
    ) -> Iterable[bool]:
        """Store, publish and acknowledge in one step what was claimed as it was taken."""
        crashpoint("worker.before-finish")
        jobs: list[Job] = [message.correlation for message in messages]
        ended = [
            ((job.id, job.epoch), job.receipt, laid_out)
            for job, laid_out in zip(jobs, prepared, strict=True)
        ]
        order = None
        if self._pool.private:
            order = self._proxy.consumer.order([job.receipt for job in jobs])
        else:
            self.ended(jobs)
        counts = broker.answer_many(ended, order)
        crashpoint("worker.after-finish")
        try:
            for job, count in zip(jobs, counts, strict=True):
                if count < 0:
                    _tell_fenced(job)
                with self.lock:
                    effects = self.server.on_told(job, count < 0)
                self.apply(effects)
        finally:
            if order is not None:  # before it may seem that there is nothing to do any more
                order.deliver()
        return (True for _ in jobs)

    def _is_fenced(self, job: Job) -> bool:
        """Whether a row took no result because it is another worker's, or is done.

        If it was removed, the answer is of no use; if it was lost, its engine may wait for it.
        """
        assert self.ledger is not None
        try:
            row = self.ledger.state(job.id)
        except exc.LedgerFailure:
            return False  # the engine knows
        if row is None or (row.epoch == job.epoch and row.state == ledgers.ROW_DONE):
            return False
        _tell_fenced(job)
        return True

    # The pool.

    def _run(self, job: Job) -> None:
        assert job.endpoint is not None
        job.began = time.time()
        if reporting.LOG.isEnabledFor(logging.DEBUG):
            self._reports.started(job)
        call: running.Call = (
            job.endpoint.begin,
            (job.unit, self._loop, job.expires, job.fresh),
        )
        if running.sending is not None and self._loop is None:  # it goes into a child
            call = running.sending(job.key, call)
        try:
            job.ticket = self._pool.submit(
                *call,
                functools.partial(self._ran, job),
                functools.partial(self._told, job),
                job.limit,
                job.name,
                lazily=True,
            )
        except Exception as error:  # a given executor may be shut down
            self._ran(job, ft.Failure.from_exception(error))
        if job.cancelled:  # meanwhile
            self.cancel(job)

    def cancel(self, job: Job) -> None:
        """Let a task that runs end soon."""
        if job.ticket is not None:
            job.ticket.cancel(CANCEL_GRACE)

    def _told(self, job: Job, event_type: str, details: dict[str, Any]) -> None:
        self.report(self.server.on_event, job, event_type, details)

    def _ran(self, job: Job, value: Any) -> None:
        if value is endpoint.Turn.MISSED:
            self.report(self.server.on_unstarted, job)
            return
        if isinstance(value, invocation.Outcome):
            outcome = value
        else:  # such as of a child that died
            outcome = invocation.Outcome(value, started=job.began, ended=time.time())
        with self.lock:
            effects = self.server.on_finished(job, outcome)
            # It may have failed at being sent, and may have been given up before.
            ended, job.outcome = job.outcome, None
            failed = ended is not None and ended.failed
            self._reporting += failed
        if ended is not None and not failed and reporting.LOG.isEnabledFor(logging.INFO):
            self._reports.ended(job, ended)
        self.apply(effects)
        if ended is not None and failed:
            self._pool.call_others()  # handlers may take their time
            self._reports.ended(job, ended)
            with self.lock:
                self._reporting -= 1
                self._changed.notify_all()

    # The broker.

    def _reply(self, job: Job | None, envelope: env.Envelope, terminal: bool) -> None:
        if job is None:
            if envelope.type == pr.NOTIFY:
                envelope.headers[env.WBE_TIME] = time.time()
            self._proxy.send(OutgoingMessage(envelope), first=True, defer=True)
        elif terminal:
            self._send_end(OutgoingMessage(envelope, self._answering, job))
        elif (
            envelope.body["state"] == pr.RUNNING
            and job.ours
            and env.WBE_ASK not in envelope.headers
        ):
            # It is not urgent to hear that it runs, and it may have ended before.
            due = time.monotonic() + RUNNING_AFTER
            job.running = envelope
            self._starting.append((due, job))
            self._proxy.consumer.wake_by(due)
        else:
            self._leave_out_running(job)
            self._proxy.send(OutgoingMessage(envelope), defer=True)

    def tell_running(self, now: float) -> float | None:
        """Tell engines of the tasks that have run for some milliseconds; when to call this again,
        if at all.  Of one thread."""
        starting = self._starting
        busy = bool(starting)
        while starting:
            due, job = starting[0]
            if job.running is not None and due > now:
                return due
            starting.popleft()
            with self.lock:  # what follows it is sent after it
                running, job.running = job.running, None
                if running is not None:
                    self._proxy.send(OutgoingMessage(running), defer=True)
        return now + RUNNING_AFTER if busy else None  # others will come, and need not wake it

    def _leave_out_running(self, job: Job) -> None:
        """That it runs need not be told any more: it follows from what is told now."""
        if job.running is None:
            return
        with self.lock:
            job.running = None

    def _send_end(self, message: OutgoingMessage) -> None:
        job = message.correlation
        self._leave_out_running(job)
        soon = self._pool.has_more  # with what comes next
        plainly = message.hooks is self._answering and job.is_quiet
        self._proxy.signed(message.envelope)
        if not (plainly and self._proxy.consumer.answer(message, job.receipt, soon)):
            self._proxy.send(message, defer=soon)

    def ended(self, jobs: Sequence[Job]) -> None:
        """They are about to be answered, and run no more: together, their slots are taken once."""
        self._proxy.consumer.release_many([job.receipt for job in jobs])

    def answered(self, jobs: Sequence[Job]) -> None:
        """Their terminal answers are published, or never can be."""
        if self._proxy.target.ours:  # no slot waits for it
            for job in jobs:
                self._proxy.call_later(self._acknowledge_all, job)
        else:
            self._acknowledge_all(jobs)

    def _acknowledge_all(self, jobs: Sequence[Job]) -> None:
        self._proxy.consumer.ack_many([job.receipt for job in jobs])
        self._forget(jobs)

    def done(self, jobs: Sequence[Job]) -> None:
        """They are answered, and acknowledged with that."""
        self._proxy.consumer.forget_many([job.receipt for job in jobs])
        self._forget(jobs)

    def _forget(self, jobs: Sequence[Job]) -> None:
        with self.lock:
            for job in jobs:
                self.server.on_answered(job)
            self._settled(len(jobs))
        if self._reports.untold:
            self._reports.tell()

    def _acknowledge(self, receipt: Any) -> None:
        self._proxy.consumer.ack(receipt)
        self.returned()

    def returned(self) -> None:
        with self.lock:
            self._settled(1)

    def _settled(self, count: int) -> None:
        self._unacked -= count
        if not self._unacked:
            self._changed.notify_all()


class _Answering(DeliveryHooks):
    """Sees to it that a request that was answered is acknowledged."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        self._runner.ended([message.correlation for message in messages])

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        self._runner.answered([message.correlation for message in messages])

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        self._runner.answered((message.correlation,))


class _Storing(_Answering):
    """Sees to it that what is answered is in the ledger before."""

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        super().prepare(messages)
        self._runner.store(messages)


class _Ending(_Answering):
    """Does all that is owed to a request in one step."""

    writes = True

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        """Their slots are taken with that step."""

    def write(
        self, broker: Broker, messages: Sequence[OutgoingMessage], prepared: Sequence[LaidOut]
    ) -> Iterable[bool]:
        return self._runner.end(broker, messages, prepared)

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        self._runner.done([message.correlation for message in messages])


def _tell_fenced(job: Job) -> None:
    LOG.warning(
        "request %s was given up by its engine while it ran here: what came of it is not told",
        job.id,
    )
