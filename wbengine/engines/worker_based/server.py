"""The worker's side of the protocol, without I/O.

`Server` receives requests, results of claims and outcomes of tasks. It returns *effects*, which the
worker performs in that order. It has no thread, lock, socket or clock.

Each accepted request either gets exactly one terminal reply, or is requeued before its task starts.
Duplicates get the same reply.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine._calls import invocation
from wbengine._introspection import object_names
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import notices
from wbengine.engines.worker_based._messages import worker_life as lives
from wbengine.engines.worker_based._messages.request_messages import RequestMessage
from wbengine.engines.worker_based._worker_side.heartbeat import Heartbeat
from wbengine.engines.worker_based._worker_side.jobs import Job, Jobs, Offer, ReplyFactory
from wbengine.engines.worker_based._worker_side.observers import ObservedJobs, Observer
from wbengine.engines.worker_based._worker_side.server_effects import (
    Acknowledge,
    Cancel,
    Check,
    Claim,
    Drain,
    Effect,
    Finish,
    Release,
    Reply,
    Return,
    Run,
)
from wbengine.engines.worker_based.endpoint import Endpoint
from wbengine.transports import _ledger as ledgers
from wbengine.types import failure as ft

LOG = logging.getLogger(__name__)

#: Limits for remembered requests without a ledger, which are needed to detect duplicates: their
#: number, and the bytes of their replies.
MAX_REMEMBERED: Final = 10_000
MAX_REMEMBERED_BYTES: Final = 64 * 1024 * 1024


class RecentRequests:
    """The highest epochs of recent requests, and their replies if they fit. Cost: O(1).

    It also contains the epochs up to which later requests are refused.
    """

    def __init__(self) -> None:
        self._epochs: OrderedDict[str, int] = OrderedDict()
        self._replies: OrderedDict[str, env.Envelope] = OrderedDict()
        self._refused: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0

    def epoch(self, request_id: str) -> int:
        return self._epochs.get(request_id, 0)

    def reply(self, request_id: str) -> env.Envelope | None:
        return self._replies.get(request_id)

    def record(self, request_id: str, epoch: int) -> None:
        """Record an accepted request. It replaces lower epochs of the same id."""
        self._drop(request_id)
        self._epochs[request_id] = epoch
        while len(self._epochs) > MAX_REMEMBERED:
            self._drop(next(iter(self._epochs)))

    def keep(self, request_id: str, epoch: int, reply: env.Envelope) -> None:
        """Store the terminal reply of a request, unless a higher epoch was accepted since."""
        if self._epochs.get(request_id) == epoch and len(reply.encoded) <= MAX_REMEMBERED_BYTES:
            self._replies[request_id] = reply
            self._bytes += len(reply.encoded)
            while self._bytes > MAX_REMEMBERED_BYTES:
                self._bytes -= len(self._replies.popitem(last=False)[1].encoded)

    def forget(self, request_id: str, epoch: int) -> None:
        """Forget a request that did not run: it may arrive again with the same epoch."""
        if self._epochs.get(request_id) == epoch:
            self._drop(request_id)

    def refuse(self, request_id: str, epoch: int) -> None:
        """Refuse later copies of a request up to this epoch."""
        self._refused[request_id] = max(epoch, self._refused.pop(request_id, 0))
        if len(self._refused) > MAX_REMEMBERED:
            self._refused.popitem(last=False)

    def refused(self, request_id: str) -> int:
        return self._refused.get(request_id, 0)

    def _drop(self, request_id: str) -> None:
        self._epochs.pop(request_id, None)
        reply = self._replies.pop(request_id, None)
        if reply is not None:
            self._bytes -= len(reply.encoded)


class Server:
    """The logic of one worker process. The owner holds a lock around every call.

    All times are Unix time.

    :param max_tasks: maximum number of tasks of the process.
    :param plain: announce the worker like TaskFlow's workers do.
    """

    def __init__(
        self,
        identity: str,
        topics: Iterable[str],
        offered: Mapping[str, Endpoint],
        slots: int,
        *,
        max_message_size: int = env.MAX_MESSAGE_SIZE,
        max_tasks: int | None = None,
        birth: float | None = None,
        plain: bool = False,
        observers: Sequence[Observer] = (),
        code_version: str | None = None,
    ) -> None:
        self.identity = identity
        self._offer = Offer(identity, offered)
        self._stats = lives.WorkerStats(birth)
        self._job_table = Jobs(slots, max_tasks)
        self.heartbeat = Heartbeat(
            identity, tuple(topics), self._offer, self._stats, self._job_table, plain, code_version
        )
        # Jobs whose arguments this worker's tasks do not accept, until `return_unaccepted`.
        self._unaccepted: list[Job] = []
        self._observed = ObservedJobs(observers) if observers else None
        #: Number of completed tasks by state, and of other messages by reason.
        self.counts: Counter[str] = Counter()
        self._reply_factory = ReplyFactory(identity, max_message_size)
        self._recent = RecentRequests()

    @property
    def ledger(self) -> str | None:
        return self._offer.ledger

    @ledger.setter
    def ledger(self, digest: str | None) -> None:
        self._offer.ledger, self._offer.known_ledgers = digest, frozenset([digest])

    def is_known_ledger(self, digest: str | None) -> bool:
        return digest in self._offer.known_ledgers

    def rename_ledger(self, digest: str, *former: str) -> None:
        """Adopt a new digest of the ledger, and also accept requests with former ones."""
        self._offer.known_ledgers |= {digest, *former}
        self._offer.ledger = digest

    @property
    def running(self) -> int:
        """Number of accepted jobs that have not ended."""
        return len(self._job_table.jobs)

    @property
    def begun(self) -> list[Job]:
        return list(self._job_table.begun.values())

    @property
    def holding(self) -> int:
        """Number of jobs that have not ended, or whose results may not be stored yet."""
        return len(self._job_table.jobs) + len(self._job_table.ending)

    # Lifecycle.

    @property
    def life(self) -> lives.Life:
        return self.heartbeat.life

    @property
    def ending(self) -> bool:
        return self._stats.ending

    @property
    def suspended(self) -> bool:
        return self._stats.suspended

    def suspend(self, period: float | None = None) -> list[Effect]:
        """Accept no requests until `resume`; requeue unstarted ones. Idempotent."""
        if not self._stats.accepts:
            return []
        self._stats.suspend()
        return self._announce(notices.BEAT, period) + self._requeue_waiting()

    def resume(self, period: float | None = None) -> list[Effect]:
        """Accept requests again. Idempotent; no effect after `drain`."""
        if not self._stats.suspended or self._stats.ending:
            return []
        self._stats.resume()
        return self._announce(notices.BEAT, period)

    def drain(self, now: float, period: float | None = None) -> list[Effect]:
        """Accept no more requests; requeue unstarted ones. Idempotent."""
        if self._stats.ending:
            return []
        self._stats.end(now)
        return self._announce(notices.BEAT, period) + self._requeue_waiting()

    def shut_down(self, now: float, period: float | None = None) -> list[Effect]:
        """Announce the end, abandon running jobs, and send no more replies. Idempotent."""
        if self._stats.death is not None:
            return []
        self._stats.end(now, dead=True)
        effects = self._announce(notices.STOPPED, period)
        if self._observed is not None:
            for job in self._job_table.jobs.values():
                self._observed.given_up(job)
        self._job_table.abandon()
        return effects

    def _announce(self, state: str, period: float | None) -> list[Effect]:
        return self.heartbeat.create([env.ALL_ENGINES], state, period)

    def on_query(self, reply_to: str | None, period: float) -> list[Effect]:
        """Announce the tasks to the engine `reply_to`."""
        if reply_to is None:
            return []
        try:
            object_names.check_label("reply_to", reply_to)
        except ValueError as error:
            LOG.warning("refused a query: %s", error)
            self.counts["unanswerable"] += 1
            return []
        return self.heartbeat.announce_tasks(reply_to, period)

    def on_request(
        self, request: RequestMessage, receipt: Any, now: float = 0.0, *, claimed: bool = False
    ) -> list[Effect]:
        """Process a validated REQUEST: claim it, refuse it with a failure, or ignore it.

        :param now: Unix time.
        :param claimed: whether the message has a claim. The owner uses it for the effect `Claim`.
        """
        for name in (request.reply_to, request.id):
            if not object_names.is_label(name):
                LOG.warning(
                    "refused a request: reply_to and correlation_id must be valid names, got"
                    " %.200r",
                    name,
                )
                self.counts["unanswerable"] += 1
                return [Acknowledge(receipt)]
        job = Job(request, receipt)
        if not job.extended:
            job.set_epoch(self._recent.epoch(job.id))
        try:
            self._offer.check_ledger(request)
        except exc.NotFound as error:
            # A worker with the right ledger may also receive it, and replies as well.
            self.counts["refused"] += 1
            return [self._refuse(job, error)]
        duplicate = self._job_table.jobs.get(job.key)
        if duplicate is not None or job.key in self._job_table.ending:
            self.counts["repeated"] += 1
            if duplicate is None or duplicate.reply_to != job.reply_to:
                return [self._claimed_elsewhere(job)]
            return [Acknowledge(receipt)]
        self._offer.find(job, request)
        if not job.ledger:
            return self._without_ledger(job, now)
        if not (claimed or self._accepts):
            self.counts["returned"] += 1
            return [Return(job)]
        self._job_table.jobs[job.key] = job
        return [Claim(job)]

    def _without_ledger(self, job: Job, now: float) -> list[Effect]:
        highest_epoch = self._recent.epoch(job.id)
        if job.epoch <= highest_epoch:
            self.counts["repeated"] += 1
            # In TaskFlow, a later request may have the same id, and would get this reply.
            reply = self._recent.reply(job.id)
            if reply is None or job.epoch < highest_epoch or not job.extended:
                return [Acknowledge(job.receipt)]
            return [Reply(job, replace(reply, routing_key=job.reply_to), terminal=True)]
        if job.redelivered:
            # The first delivery may still arrive.
            self.counts["lost"] += 1
            lost = exc.WorkerLost(
                "the request was delivered before, to a worker that disconnected; without"
                " a ledger it is unknown whether the task ran"
            )
            return [self._refuse(job, lost)]
        if not self._accepts:
            return self._requeue(job)
        self._recent.record(job.id, job.epoch)
        self._job_table.jobs[job.key] = job
        if self._recent.refused(job.id) >= job.epoch:
            job.cancelled = True
        elif job.expires is not None and now > job.expires:
            job.refusal = exc.Expired(f"task {job.name!r} expired before it reached a worker")
        return self._start(job)

    def on_claim(self, job: Job, claim: ledgers.Claim) -> list[Effect]:
        if claim.verdict == ledgers.GRANTED:
            return self._start(job)
        self._leave(job)
        self.counts[claim.verdict] += 1
        if claim.verdict == ledgers.DONE and claim.result:
            try:
                reply = env.thaw(claim.result, job.id, job.reply_to)
            except (RecursionError, ValueError):  # The engine reads the row, and fails the request.
                return [self._claimed_elsewhere(job)]
            return [Reply(job, reply, terminal=True)]
        if claim.verdict == ledgers.HELD and claim.holder == self.identity:
            # A claim of this worker without a job: the job was lost.
            lost = exc.WorkerLost(
                f"request {job.id} is claimed by worker {self.identity}, which has no record of it"
            )
            return [self._refuse(job, lost)]
        if claim.verdict in (ledgers.HELD, ledgers.STALE):
            return [self._claimed_elsewhere(job)]
        return [Acknowledge(job.receipt)]

    def _claimed_elsewhere(self, job: Job) -> Effect:
        """Return the reply to a request that another worker claimed. The engine then checks it."""
        if not job.extended:
            return Acknowledge(job.receipt)
        return Reply(job, self._reply_factory.report(job, pr.PENDING, 0), terminal=True)

    def _refuse(self, job: Job, error: exc.NotFound | exc.WorkerLost) -> Effect:
        """Return the failure of a request that was not accepted. Nothing is stored."""
        answer = self._failure_of(job, error, lost=isinstance(error, exc.WorkerLost))
        return Reply(job, answer, terminal=True)

    def forget(self, job: Job) -> None:
        self._leave(job)
        self.counts["returned"] += 1

    def _start(self, job: Job) -> list[Effect]:
        if job.request is not None and job.refusal is None:
            self._offer.decode(job)
        if self._observed is not None:
            self._observed.received(job)
        if job.cancelled and job.refusal is None:
            job.refusal = exc.Cancelled(f"task {job.name!r} was cancelled before it started")
        if job.refusal is not None:
            self._leave(job)
            how = "cancelled" if job.cancelled else "refused"
            return self._end(job, self._failure_of(job, job.refusal), how)
        if not self._accepts:
            return self._requeue(job)
        return self._begin_if_accepted(job)

    def _begin_if_accepted(self, job: Job) -> list[Effect]:
        if self._offer.refuses_arguments(job):
            # Returned later: otherwise this worker could receive it again at once, and forever.
            self._unaccepted.append(job)
            return []
        return self._begin(job)

    def return_unaccepted(self) -> list[Effect]:
        """Requeue the requests whose arguments the tasks of this worker do not accept.

        Their engine has other code, and so have other workers.
        """
        returned, self._unaccepted = self._unaccepted, []
        effects: list[Effect] = []
        for job in returned:
            if job.key in self._job_table.jobs:
                effects += self._start(job) if job.cancelled else self._requeue(job)
        return effects

    def _failure_of(self, job: Job, error: BaseException, *, lost: bool = False) -> env.Envelope:
        outcome = invocation.Outcome(ft.Failure.from_exception(error))
        return self._reply_factory.failed(job, outcome, lost=lost)

    def _begin(self, job: Job) -> list[Effect]:
        table = self._job_table
        if len(table.begun) >= table.slots:
            table.waiting[job.key] = job
            return []
        table.begun[job.key] = job
        if table.starts_left:
            table.starts_left -= 1
        if self._observed is not None:
            self._observed.started(job)
        running = Reply(job, self._reply_factory.running(job), deferrable=job.extended)
        effects: list[Effect] = [running, Run(job)]
        if table.starts_left == 0 and not self._stats.ending:
            effects.append(Drain())
        return effects

    def admit(self) -> tuple[bool, list[Effect]]:
        """Return whether a task of another source may start. It counts like a request."""
        table = self._job_table
        if not table.starts_left:
            return table.starts_left is None, []
        table.starts_left -= 1
        return True, [] if table.starts_left or self._stats.ending else [Drain()]

    @property
    def _accepts(self) -> bool:
        return self._job_table.starts_left != 0 and self._stats.accepts

    def _refill(self) -> list[Effect]:
        table = self._job_table
        effects: list[Effect] = []
        while table.waiting and len(table.begun) < table.slots:
            if table.starts_left == 0 and not self._stats.ending:
                break  # The drain requeues the waiting requests.
            effects += self._begin(table.waiting.popitem(last=False)[1])
        return effects

    def _leave(self, job: Job) -> bool:
        """Remove a job; return False if it was removed before."""
        self._job_table.begun.pop(job.key, None)
        return self._job_table.jobs.pop(job.key, None) is not None

    def on_unstarted(self, job: Job) -> list[Effect]:
        """Check a job that got its slot so late that another worker may own it."""
        return [Check(job)] if job.key in self._job_table.begun else []

    def on_checked(self, job: Job, row: ledgers.Row | None) -> list[Effect]:
        """Run a job if this worker still owns its row, else requeue or drop it."""
        if job.key not in self._job_table.begun:
            return []
        row_state = row and (row.state, row.epoch, row.holder)
        if row_state == (ledgers.ROW_CLAIMED, job.epoch, self.identity):
            return [Run(job)]
        if self._observed is not None:
            self._observed.returned(job)
        if row_state == (ledgers.ROW_OPEN, job.epoch, None):
            self.forget(job)
            return [Return(job), *self._refill()]
        self._leave(job)
        self.counts["thawed"] += 1
        return [Acknowledge(job.receipt), *self._refill()]

    # Requeueing.

    def _requeue(self, job: Job) -> list[Effect]:
        if self._observed is not None:
            self._observed.returned(job)
        if job.ledger:
            return [Release(job)]
        self._leave(job)
        self._recent.forget(job.id, job.epoch)
        self.counts["returned"] += 1
        return [Return(job)]

    def on_released(self, job: Job, released: bool) -> list[Effect]:
        """Requeue a job whose row was released; otherwise start it."""
        if job.key not in self._job_table.jobs:
            return []
        if released:
            self.forget(job)
            return [Return(job)]
        if self._observed is not None:
            self._observed.received(job)
        return self._begin_if_accepted(job)

    def _requeue_waiting(self) -> list[Effect]:
        effects = self.return_unaccepted()
        while self._job_table.waiting:
            effects += self._requeue(self._job_table.waiting.popitem(last=False)[1])
        return effects

    def on_event(self, job: Job, event_type: str, details: Mapping[str, Any]) -> list[Effect]:
        """Send an event of a running task. Events that cannot be encoded are logged."""
        if job.key not in self._job_table.jobs:
            return []
        try:
            event = self._reply_factory.event(job, event_type, details)
        except Exception as error:  # An invalid event must not fail its task.
            LOG.warning("an event of request %s cannot be sent: %s", job.id, error)
            return []
        return [Reply(job, event)]

    def on_finished(self, job: Job, outcome: invocation.Outcome) -> list[Effect]:
        """Send exactly one terminal reply for a completed task."""
        if not self._leave(job):
            return []
        if not outcome.failed:
            try:
                answer = self._reply_factory.succeeded(job, outcome)
            except Exception as error:  # The result cannot be encoded, and the failure replaces it.
                outcome = replace(outcome, value=ft.Failure.from_exception(error))
        if outcome.failed:
            answer = self._reply_factory.failed(job, outcome)
        job.outcome = outcome
        self._stats.failures += outcome.failed
        self._stats.successes += not outcome.failed
        if outcome.started is not None and outcome.ended is not None:
            # A clock may be set back.
            self._stats.working += max(0.0, outcome.ended - outcome.started)
        if self._observed is not None:
            self._observed.ended(job, outcome)
        effects = self._end(job, answer)
        return effects + self._refill() if self._job_table.waiting else effects

    def _end(self, job: Job, answer: env.Envelope, how: str | None = None) -> list[Effect]:
        self.counts[how or answer.body["state"]] += 1
        if self._observed is not None and how is not None:
            self._observed.refused(job)
        self._job_table.leaving[job.key] = job, answer
        if job.ledger:
            self._job_table.ending[job.key] = job, answer
            return [Finish(job, answer)]
        self._recent.keep(job.id, job.epoch, answer)
        reply = Reply(job, answer, terminal=True)
        if job.extended or answer.body["state"] != pr.SUCCESS:
            return [reply]
        # A SUCCESS without RUNNING ends the receiving thread of TaskFlow. RUNNING may be lost, so
        # it is repeated.
        return [Reply(job, self._reply_factory.running(job)), reply]

    def on_unstorable(self, job: Job, error: exc.LedgerFailure | exc.TooLarge) -> env.Envelope:
        """Return the failure that replaces a result that the ledger or the broker refuses."""
        problem = type(error)(f"the result of task {job.name!r} cannot be stored: {error}")
        answer = self._failure_of(job, problem)
        self._job_table.ending[job.key] = self._job_table.leaving[job.key] = job, answer
        return answer

    def on_stored(self, job: Job, fenced: bool = False, *, sent: bool = False) -> list[Effect]:
        """Send a reply that was stored, or could not be stored; discard a `fenced` result.

        :param sent: whether the reply was sent, and the request acknowledged, in the same step.
        """
        _, answer = self._job_table.ending.pop(job.key)
        if fenced or sent:
            self._job_table.leaving.pop(job.key, None)
        if fenced:
            self.counts["fenced"] += 1
            return [] if sent else [Acknowledge(job.receipt)]
        effects: list[Effect] = [] if sent else [Reply(job, answer, terminal=True)]
        if job.listener is not None:
            effects.append(Reply(None, replace(answer, routing_key=job.listener)))
        return effects

    def on_answered(self, job: Job) -> None:
        self._job_table.leaving.pop(job.key, None)

    # Commands of engines.

    def on_ask(
        self, requests: Iterable[tuple[str, int]], reply_to: str | None, to_this_worker: bool = True
    ) -> list[Effect]:
        """Process an ask about requests. Later replies go to the engine that asked.

        The worker confirms requests that it runs, and sends the results of completed requests that
        it remembers. It reports requests that it does not have only if the ask is
        `to_this_worker` (to its identity).
        """
        if reply_to is None or not object_names.is_label(reply_to):
            LOG.warning("refused a query: reply_to must be a valid name, got %.200r", reply_to)
            self.counts["unanswerable"] += 1
            return []
        jobs, leaving = self._job_table.by_id(), self._job_table.answers()
        effects: list[Effect] = []
        for request_id, number in requests:
            reply = leaving.get(request_id) or self._recent.reply(request_id)
            if request_id in jobs:
                for job in jobs[request_id]:
                    effects += self._readdress(job, reply_to, number)
            elif reply is not None:
                effects.append(Reply(None, replace(reply, routing_key=reply_to)))
            elif to_this_worker:
                answer = self._reply_factory.unknown(request_id, number, reply_to)
                effects.append(Reply(None, answer))
        return effects

    def _readdress(self, job: Job, reply_to: str, number: int) -> list[Effect]:
        if number < job.ask_number:
            return []  # The engine no longer owns the flow.
        job.ask_number = number
        if job.key in self._job_table.ending:
            job.listener = reply_to
            return []
        job.reply_to = reply_to
        # Others wait for a slot.
        started_at = job.began if job.key in self._job_table.begun else None
        return [Reply(job, self._reply_factory.report(job, pr.RUNNING, number, started_at))]

    def on_cancel(self, cancelled: Iterable[tuple[str, int]]) -> list[Effect]:
        """Cancel requests up to these epochs. Idempotent.

        Running tasks are cancelled, and waiting tasks do not start. Without a ledger, requests that
        arrive later are also refused.
        """
        effects: list[Effect] = []
        epochs = dict(cancelled)
        for job in list(self._job_table.jobs.values()):
            if job.cancelled or job.epoch > epochs.get(job.id, -1):
                continue
            job.cancelled = True
            if job.key in self._job_table.begun:
                effects.append(Cancel(job))
            elif self._job_table.waiting.pop(job.key, None) is not None:
                effects += self._start(job)
        for request_id, epoch in epochs.items():
            if self._recent.epoch(request_id) < epoch:
                self._recent.refuse(request_id, epoch)
        return effects
