"""Finish requests: store the result in the row, publish the reply, acknowledge the request.

All three are one step of a broker that has the rows. On RabbitMQ, the reply and the acknowledgement
are one write, after the result is stored. Otherwise they follow each other in this order, so that a
request is delivered again if its worker is killed in between.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions as exc
from wbengine._concurrency.crash_points import crashpoint
from wbengine.engines.worker_based._connections.sender import DeliveryHooks, OutgoingMessage
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._worker_side import server_effects as fx
from wbengine.engines.worker_based._worker_side.jobs import Job
from wbengine.transports import _ledger as ledgers
from wbengine.transports._broker import Broker, Finish

if TYPE_CHECKING:
    import threading

    from wbengine._concurrency import conditions
    from wbengine.engines.worker_based import proxy, server
    from wbengine.engines.worker_based._worker_side.slots import Pool

LOG = logging.getLogger(__name__)

#: Delay in seconds before a result is stored again.
RETRY_SECONDS: Final = 0.5

#: Seconds of retries before a result that cannot be stored is given up. They count only while the
#: ledger accepts heartbeats, or the worker stops.
TIMEOUT_SECONDS: Final = 5.0


class Finisher:
    """Finishes the requests of one `Server`. Thread-safe.

    :param lock: the lock of `core`; `closed`: set when the worker stops.
    :param apply: performs effects of the server.
    :param settled: called with the jobs whose requests are acknowledged.
    """

    def __init__(
        self,
        core: server.Server,
        lock: threading.RLock,
        wire: proxy.Proxy,
        pool: Pool,
        closed: conditions.Event,
        apply: Callable[[Iterable[fx.Effect]], None],
        settled: Callable[[Sequence[Job]], None],
    ) -> None:
        self._server = core
        self._lock = lock
        self._proxy = wire
        self._pool = pool
        self._closed = closed
        self._apply = apply
        self._settled = settled
        self._ledger: ledgers.Ledger | None = None
        self._has_rows = False
        self._publishing = _Publishing(self)
        self._one_step = _OneStep(self)

    def use(self, ledger: ledgers.Ledger | None, *, has_rows: bool) -> None:
        """Set the ledger; see `TaskRunner.use_ledger`."""
        self._ledger = ledger
        self._has_rows = has_rows

    def finish(self, job: Job, reply: env.Envelope) -> None:
        """Finish a request with a row."""
        if self._has_rows:
            self._send(OutgoingMessage(reply, self._one_step, job))
            return
        message = OutgoingMessage(reply, self._publishing, job)
        # Engines accept only stored results. This may block, and heartbeats must continue.
        if self._store(message):
            self._send(message)

    def reply(self, job: Job, reply: env.Envelope) -> None:
        """Finish a request without a row."""
        self._send(OutgoingMessage(reply, self._publishing, job))

    def _send(self, message: OutgoingMessage) -> None:
        job = message.correlation
        soon = self._pool.has_more  # The next message follows at once: send both together.
        # Only publishing and acknowledging are left.
        is_last_step = message.hooks is self._publishing and job.is_quiet
        self._proxy.signed(message.envelope)
        if not (is_last_step and self._proxy.consumer.answer(message, job.receipt, soon)):
            self._proxy.send(message, defer=soon)

    # One step after another.

    def _store(self, message: OutgoingMessage) -> bool:
        """Store a result before it is published; return whether to publish it."""
        crashpoint("worker.before-finish")
        job: Job = message.correlation
        stored = self._finish_row(message)
        if isinstance(stored, exc.LedgerFailure):
            stored = self._retry(message, stored)
        crashpoint("worker.after-finish")
        is_fenced = not stored and self._is_fenced(job)
        if isinstance(stored, exc.LedgerFailure):  # The reply is still sent.
            LOG.warning("the reply to request %s cannot be stored: %s", job.id, stored)
        with self._lock:
            effects = self._server.on_stored(job, is_fenced)
        self._apply(e for e in effects if not (isinstance(e, fx.Reply) and e.terminal))
        return not is_fenced

    def _finish_row(self, message: OutgoingMessage) -> bool | exc.LedgerFailure:
        assert self._ledger is not None
        job: Job = message.correlation
        reply = env.freeze(self._proxy.signed(message.envelope))
        (stored,) = self._ledger.finish_many(self._server.identity, [(job.id, job.epoch, reply)])
        return stored

    def _retry(
        self, message: OutgoingMessage, error: exc.LedgerFailure
    ) -> bool | exc.LedgerFailure:
        """Retry to store a result, because the engine accepts no other.

        While the ledger is unavailable, this waits until the worker stops. If the ledger accepts
        heartbeats but refuses the result, a small failure replaces the result.
        """
        assert self._ledger is not None
        job: Job = message.correlation
        LOG.warning("the result of request %s cannot be stored, retrying: %s", job.id, error)
        give_up, is_refused = math.inf, False
        while not self._closed.wait(RETRY_SECONDS):
            try:
                self._ledger.renew(self._server.identity)
                is_unavailable = False
            except exc.LedgerFailure:
                is_unavailable = True
            now = time.monotonic()
            waits = is_unavailable and not self._server.ending
            give_up = math.inf if waits else min(give_up, now + TIMEOUT_SECONDS)
            stored = self._finish_row(message)
            if isinstance(stored, bool):
                return stored
            if now < give_up:
                continue
            if self._server.ending and (is_unavailable or is_refused):
                return stored
            give_up = math.inf
            if not is_refused:
                is_refused = True
                with self._lock:
                    message.envelope = self._server.on_unstorable(job, stored)
                LOG.warning("request %s fails: the ledger refused its result: %s", job.id, stored)
        return error

    def _is_fenced(self, job: Job) -> bool:
        """Return whether a row that rejected a result has another epoch or owner.

        The result of a fenced row must be discarded. A missing row is not fenced: it may be lost,
        and the engine may wait for the reply.
        """
        assert self._ledger is not None
        try:
            row = self._ledger.state(job.id)
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
        self._proxy.consumer.ack_answered(self._acknowledge, jobs)

    def _acknowledge(self, jobs: Sequence[Job]) -> None:
        self._proxy.consumer.ack_many(_receipts(jobs))
        self._settled(jobs)

    # In one step.

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
                with self._lock:
                    effects = self._server.on_stored_and_sent(job, not was_owned)
                self._apply(effects)
        finally:
            if order is not None:  # This must precede the report that the worker is idle.
                order.deliver()

    def fail(self, job: Job, error: exc.TooLarge) -> None:
        """Finish a request with a small failure, because its reply is too large for the broker."""
        with self._lock:
            reply = self._server.on_unstorable(job, error)
        self.finish(job, reply)

    def forget(self, jobs: Sequence[Job]) -> None:
        """Forget jobs whose messages were acknowledged together with their replies."""
        self._proxy.consumer.forget_many(_receipts(jobs))
        self._settled(jobs)


class _Publishing(DeliveryHooks):
    """Acknowledges requests after their replies are published."""

    def __init__(self, finisher: Finisher) -> None:
        self._finisher = finisher

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        self._finisher.release_slots(_jobs(messages))

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        self._finisher.acknowledge(_jobs(messages))

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        self._finisher.acknowledge((message.correlation,))


class _OneStep(_Publishing):
    """Stores, publishes and acknowledges in one step of the broker."""

    writes = True

    def prepare(self, messages: Sequence[OutgoingMessage]) -> None:
        """Do nothing: `write` releases the slots."""

    def write(self, broker: Broker, messages: Sequence[OutgoingMessage]) -> Iterable[bool]:
        self._finisher.finish_in_one_step(broker, messages)
        return (True for _ in messages)

    def sent(self, messages: Sequence[OutgoingMessage]) -> None:
        self._finisher.forget(_jobs(messages))

    def failed(self, message: OutgoingMessage, error: BaseException) -> None:
        if isinstance(error, exc.TooLarge):
            self._finisher.fail(message.correlation, error)
        else:
            super().failed(message, error)


def _jobs(messages: Iterable[OutgoingMessage]) -> list[Job]:
    return [message.correlation for message in messages]


def _receipts(jobs: Iterable[Job]) -> list[Any]:
    return [job.receipt for job in jobs]


def _log_fenced(job: Job) -> None:
    LOG.warning("the engine withdrew request %s while it ran here: its result is discarded", job.id)
