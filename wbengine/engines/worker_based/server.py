"""A worker's side of the protocol, without any I/O.

`Server` takes requests, the ledger's verdicts, and what tasks did; it returns *effects*: what the
worker should do next, in that order.  It owns no thread, no lock, no socket and no clock.

Every request that it takes on ends in exactly one terminal answer, whatever its task does, or goes
back to its queue before its task began; repeats of the request get that same answer again, and
nothing else.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from wbengine import _names, invocation
from wbengine import exceptions as exc
from wbengine.engines.worker_based import endpoint as endpoints
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based.ledger import base as ledgers
from wbengine.engines.worker_based.messages import commands
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import life as lives
from wbengine.engines.worker_based.worker_side.effects import (
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
from wbengine.engines.worker_based.worker_side.heartbeat import Heartbeat
from wbengine.engines.worker_based.worker_side.jobs import Job, Jobs
from wbengine.engines.worker_based.worker_side.observers import ObservedJobs, Observer
from wbengine.types import failure as ft

LOG = logging.getLogger(__name__)

#: How many requests without a ledger a worker remembers, so that repeats of them are not run, and
#: how many bytes of their answers, so that repeats of those are answered.
REMEMBERED: Final = 10_000
REMEMBERED_BYTES: Final = 64 * 1024 * 1024


class Recent:
    """The newest epoch seen of the last requests, and their answers while there is room.  O(1).

    And up to which epoch requests are to be refused that did not come yet.
    """

    def __init__(self) -> None:
        self._epochs: OrderedDict[str, int] = OrderedDict()
        self._answers: OrderedDict[str, env.Envelope] = OrderedDict()
        self._refused: OrderedDict[str, int] = OrderedDict()
        self._bytes = 0

    def epoch(self, request_id: str) -> int:
        """The newest epoch of a request that was seen; 0 for one that was not."""
        return self._epochs.get(request_id, 0)

    def answer(self, request_id: str) -> env.Envelope | None:
        return self._answers.get(request_id)

    def note(self, request_id: str, epoch: int) -> None:
        """Remember that a request was taken, instead of what is known of older epochs."""
        self._drop(request_id)
        self._epochs[request_id] = epoch
        while len(self._epochs) > REMEMBERED:
            self._drop(next(iter(self._epochs)))

    def keep(self, request_id: str, epoch: int, answer: env.Envelope) -> None:
        """Remember how it ended, unless a newer epoch of it was taken since."""
        if self._epochs.get(request_id) == epoch and len(answer.encoded) <= REMEMBERED_BYTES:
            self._answers[request_id] = answer
            self._bytes += len(answer.encoded)
            while self._bytes > REMEMBERED_BYTES:
                self._bytes -= len(self._answers.popitem(last=False)[1].encoded)

    def forget(self, request_id: str, epoch: int) -> None:
        """A request was not run after all: it may come again under the same epoch."""
        if self._epochs.get(request_id) == epoch:
            self._drop(request_id)

    def refuse(self, request_id: str, epoch: int) -> None:
        """Nobody has a use for a request any more, up to this epoch."""
        newest = max(epoch, self._refused.pop(request_id, 0))
        self._refused[request_id] = newest
        if len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)

    def refused(self, request_id: str) -> int:
        """The newest epoch of a request that is to be refused; 0 for none."""
        return self._refused.get(request_id, 0)

    def _drop(self, request_id: str) -> None:
        self._epochs.pop(request_id, None)
        answer = self._answers.pop(request_id, None)
        if answer is not None:
            self._bytes -= len(answer.encoded)


class Server:
    """What one worker process does about messages.  Its owner holds a lock around every call.

    `queues` maps the topics it serves to the queues it takes their requests from.  No more than
    `slots` tasks run at once, and no more than `max_tasks` in its life.  `plain`: it tells of
    itself what TaskFlow's workers tell.  `now` is in unix seconds everywhere.
    """

    def __init__(
        self,
        identity: str,
        queues: Mapping[str, str],
        offered: Mapping[str, endpoints.Endpoint],
        slots: int,
        *,
        ledger: str | None = None,
        max_message_size: int = env.MAX_MESSAGE_SIZE,
        max_tasks: int | None = None,
        birth: float | None = None,
        plain: bool = False,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.identity = identity
        self._offer = endpoints.Offer(identity, offered, ledger)
        self._stats = lives.WorkerStats(birth)
        self._roll = Jobs(slots, max_tasks)
        self.heartbeat = Heartbeat(identity, queues, self._offer, self._stats, self._roll, plain)
        self._observed = ObservedJobs(observers) if observers else None
        #: How many tasks ended, and how many messages were not run, by what became of them.
        self.counts: Counter[str] = Counter()
        self._answers = env.Answers(identity, max_message_size)
        self._recent = Recent()

    @property
    def ledger(self) -> str | None:
        """Digest of the ledger that this worker holds."""
        return self._offer.ledger

    @ledger.setter
    def ledger(self, digest: str | None) -> None:
        self._offer.ledger = digest

    @property
    def running(self) -> int:
        """Number of jobs that were taken and have not ended."""
        return len(self._roll.jobs)

    @property
    def begun(self) -> list[Job]:
        """The jobs that hold a slot."""
        return list(self._roll.begun.values())

    @property
    def holding(self) -> int:
        """Number of jobs that have not ended, or whose end may not be in the ledger yet."""
        return len(self._roll.jobs) + len(self._roll.ending)

    # Its life.

    @property
    def life(self) -> lives.Life:
        """What this worker tells of itself."""
        return self.heartbeat.life

    @property
    def ending(self) -> bool:
        """Whether it was told to end."""
        return self._stats.ending

    @property
    def suspended(self) -> bool:
        return self._stats.suspended

    def suspend(self, period: float | None = None) -> list[Effect]:
        """Take nothing new, until `resume`; what is not started goes back.  Idempotent."""
        if not self._stats.takes:
            return []
        self._stats.suspend()
        return self._tell_all(env.BEAT, period) + self._hand_back_all()

    def resume(self, period: float | None = None) -> list[Effect]:
        """Take what comes again.  Idempotent; not after `drain`."""
        if not self._stats.suspended or self._stats.ending:
            return []
        self._stats.resume()
        return self._tell_all(env.BEAT, period)

    def drain(self, now: float, period: float | None = None) -> list[Effect]:
        """Take nothing new any more; what is not started goes back.  Idempotent."""
        if self._stats.ending:
            return []
        self._stats.end(now)
        return self._tell_all(env.BEAT, period) + self._hand_back_all()

    def die(self, now: float, period: float | None = None) -> list[Effect]:
        """Say goodbye, and answer nothing any more: what still runs is given up.  Idempotent."""
        if self._stats.death is not None:
            return []
        self._stats.end(now, dead=True)
        effects = self._tell_all(env.STOPPED, period)
        if self._observed is not None:
            for job in self._roll.jobs.values():
                self._observed.given_up(job)
        self._roll.abandon()
        return effects

    def _tell_all(self, state: str, period: float | None) -> list[Effect]:
        return self.heartbeat.tell([env.ALL_ENGINES], state, period)

    def on_notify(self, question: env.Envelope, period: float) -> list[Effect]:
        """An engine asks who is there."""
        if question.reply_to is None:
            return []
        try:
            _names.check_label("reply_to", question.reply_to)
        except ValueError as error:
            LOG.warning("refused a question: %s", error)
            self.counts["unanswerable"] += 1
            return []
        return self.heartbeat.introduce(question.reply_to, period)

    # Requests.

    def on_request(
        self, request: env.Envelope, receipt: Any, now: float = 0.0, *, claimed: bool = False
    ) -> list[Effect]:
        """A validated REQUEST: claim it, refuse it with a failure, or ignore it.

        `now` is in unix seconds.  `claimed`: a claim came with it, which `Claim` is answered with.
        """
        for name in (request.reply_to, request.correlation_id):
            if not _names.is_label(name or ""):
                LOG.warning("refused a request: %.200r is no name to answer to", name)
                self.counts["unanswerable"] += 1
                return [Acknowledge(receipt)]
        job = endpoints.job_of(request, receipt)
        if not job.ours:
            job.number(self._recent.epoch(job.id))
        try:
            self._offer.check_ledger(job, request)
        except exc.NotFound as error:
            # There is no row to finish: a worker that is granted it elsewhere answers as well.
            self.counts["refused"] += 1
            return [self._refuse(job, error)]
        if job.key in self._roll.jobs or job.key in self._roll.ending:
            self.counts["repeated"] += 1
            before = self._roll.jobs.get(job.key)
            if before is None or before.reply_to != job.reply_to:
                return [self._elsewhere(job)]
            return [Acknowledge(receipt)]
        self._offer.find(job, request)
        if not job.ledger:
            return self._without_ledger(job, now)
        if not (claimed or self._takes):
            self.counts["returned"] += 1
            return [Return(job, fresh=False)]
        self._roll.jobs[job.key] = job
        return [Claim(job)]

    def _without_ledger(self, job: Job, now: float) -> list[Effect]:
        seen = self._recent.epoch(job.id)
        if job.epoch <= seen:
            self.counts["repeated"] += 1
            # TaskFlow would take it for the answer to what it asks under the same id by now.
            known = self._recent.answer(job.id) if job.epoch == seen and job.ours else None
            if known is None:
                return [Acknowledge(job.receipt)]
            return [Reply(job, replace(known, routing_key=job.reply_to), terminal=True)]
        if job.redelivered:
            # Nothing is remembered of it: it may yet come as one that was not given out before.
            self.counts["lost"] += 1
            lost = exc.WorkerLost(
                "the request was given to a worker before, which went away, and no ledger knows"
                " whether it was run"
            )
            return [self._refuse(job, lost, lost=True)]
        if not self._takes:
            return self._hand_back(job)
        self._recent.note(job.id, job.epoch)
        self._roll.jobs[job.key] = job
        if self._recent.refused(job.id) >= job.epoch:
            job.cancelled = True
        elif job.expires is not None and now > job.expires:
            job.refusal = exc.Expired(f"task {job.name!r} was taken after its time was up")
        return self._start(job)

    def on_claim(self, job: Job, claim: ledgers.Claim) -> list[Effect]:
        """What the ledger said."""
        if claim.verdict == ledgers.GRANTED:
            return self._start(job)
        self._leave(job)
        self.counts[claim.verdict] += 1
        if claim.verdict == ledgers.DONE and claim.result:
            known = env.thaw(claim.result, job.id, job.reply_to)
            return [Reply(job, known, terminal=True)]
        if claim.verdict == ledgers.HELD and claim.holder == self.identity:
            # It was claimed here, and nothing here knows of it: it is lost.
            lost = exc.WorkerLost(f"worker {self.identity} lost track of request {job.id}")
            return [self._refuse(job, lost, lost=True)]
        if claim.verdict in (ledgers.HELD, ledgers.STALE):
            return [self._elsewhere(job)]
        return [Acknowledge(job.receipt)]

    def _elsewhere(self, job: Job) -> Effect:
        """Another worker has it, and may answer another engine: the sender should look."""
        if not job.ours:
            return Acknowledge(job.receipt)
        return Reply(job, self._answers.elsewhere(job), terminal=True)

    def _refuse(self, job: Job, error: BaseException, *, lost: bool = False) -> Effect:
        """Answer what was not taken on: nothing is stored or remembered of it."""
        failure = ft.Failure.from_exception(error)
        return Reply(job, self._answers.failed(job, failure, lost=lost), terminal=True)

    def forget(self, job: Job) -> None:
        """The ledger could not be asked: the request goes back to where it came from."""
        self._leave(job)
        self.counts["returned"] += 1

    # Beginning.

    def _start(self, job: Job) -> list[Effect]:
        """It is granted: run it now, or as soon as there is a slot."""
        if job.body is not None and job.refusal is None:
            self._offer.decode(job)
        if self._observed is not None:
            self._observed.received(job)
        if job.cancelled and job.refusal is None:
            job.refusal = exc.Cancelled(f"task {job.name!r} was cancelled before it started")
        if job.refusal is not None:
            self._leave(job)
            how = "cancelled" if job.cancelled else "refused"
            return self._end(job, self._failure_of(job, job.refusal), how)
        if not self._takes:
            return self._hand_back(job)
        return self._begin(job)

    def _failure_of(self, job: Job, error: BaseException) -> env.Envelope:
        return self._answers.failed(job, ft.Failure.from_exception(error))

    def _begin(self, job: Job) -> list[Effect]:
        roll = self._roll
        if len(roll.begun) >= roll.slots:
            roll.waiting[job.key] = job
            return []
        roll.begun[job.key] = job
        if roll.left:
            roll.left -= 1
        if self._observed is not None:
            self._observed.started(job)
        effects: list[Effect] = [Reply(job, self._answers.running(job)), Run(job)]
        if roll.left == 0 and not self._stats.ending:
            effects.append(Drain())
        return effects

    def admit(self) -> tuple[bool, list[Effect]]:
        """Whether a task of another source may begin: it counts as a request does."""
        roll = self._roll
        if not roll.left:
            return roll.left is None, []
        roll.left -= 1
        return True, [] if roll.left or self._stats.ending else [Drain()]

    @property
    def _takes(self) -> bool:
        return self._roll.left != 0 and self._stats.takes

    def _refill(self) -> list[Effect]:
        """Slots are free: they are for the jobs that waited longest."""
        roll = self._roll
        effects: list[Effect] = []
        while roll.waiting and len(roll.begun) < roll.slots:
            if roll.left == 0 and not self._stats.ending:
                break  # what waits is given back when it is told to end
            effects += self._begin(roll.waiting.popitem(last=False)[1])
        return effects

    def _leave(self, job: Job) -> bool:
        """It runs no more; False: nor did it."""
        self._roll.begun.pop(job.key, None)
        return self._roll.jobs.pop(job.key, None) is not None

    def on_unstarted(self, job: Job) -> list[Effect]:
        """Its slot came to it so late that its engine may have given it to another worker."""
        if job.key not in self._roll.begun:
            return []
        return [Check(job)]

    def on_checked(self, job: Job, row: ledgers.Row | None) -> list[Effect]:
        """Its row as it is now: it runs if it is this worker's, and is left alone otherwise."""
        if job.key not in self._roll.begun:
            return []
        found = row and (row.state, row.epoch, row.holder)
        if found == (ledgers.ROW_CLAIMED, job.epoch, self.identity):
            return [Run(job)]
        if self._observed is not None:
            self._observed.returned(job)
        if found == (ledgers.ROW_OPEN, job.epoch, None):
            self.forget(job)
            return [Return(job, fresh=False), *self._refill()]
        self._leave(job)
        self.counts["thawed"] += 1
        return [Acknowledge(job.receipt), *self._refill()]

    # Handing back.

    def _hand_back(self, job: Job) -> list[Effect]:
        if self._observed is not None:
            self._observed.returned(job)
        if job.ledger:
            return [Release(job)]
        self._leave(job)
        self._recent.forget(job.id, job.epoch)
        self.counts["returned"] += 1
        return [Return(job, fresh=True)]

    def on_released(self, job: Job, released: bool) -> list[Effect]:
        """Whether its row is as if it had never been claimed; otherwise it is begun after all."""
        if job.key not in self._roll.jobs:
            return []
        if released:
            self.forget(job)
            return [Return(job, fresh=False)]
        if self._observed is not None:
            self._observed.received(job)
        return self._begin(job)

    def _hand_back_all(self) -> list[Effect]:
        """What waits for a slot is for others to take."""
        waiting = list(self._roll.waiting.values())
        self._roll.waiting.clear()
        return [effect for job in waiting for effect in self._hand_back(job)]

    # What tasks do.

    def on_event(self, job: Job, event_type: str, details: Mapping[str, Any]) -> list[Effect]:
        """A running task told something; what cannot be sent is logged and left out."""
        if job.key not in self._roll.jobs:
            return []
        try:
            event = self._answers.event(job, event_type, details)
        except Exception as error:  # a task that tells nonsense must not be hurt by it
            LOG.warning("an event of request %s cannot be sent: %s", job.id, error)
            return []
        return [Reply(job, event)]

    def on_finished(self, job: Job, outcome: invocation.Outcome) -> list[Effect]:
        """The task ended: exactly one terminal answer."""
        if not self._leave(job):
            return []
        answer: env.Envelope | None = None
        if not outcome.failed:
            try:
                answer = self._answers.succeeded(job, outcome)
            except Exception as error:  # whatever a result does, there is an answer
                outcome = replace(outcome, value=ft.Failure.from_exception(error))
        if answer is None:
            answer = self._answers.failed(job, outcome.value, outcome)
        job.outcome = outcome
        self._count(outcome)
        if self._observed is not None:
            self._observed.ended(job, outcome)
        effects = self._end(job, answer)
        return effects + self._refill() if self._roll.waiting else effects

    def _count(self, outcome: invocation.Outcome) -> None:
        stats = self._stats
        stats.failures += outcome.failed
        stats.successes += not outcome.failed
        if outcome.started is not None and outcome.ended is not None:
            stats.working += max(0.0, outcome.ended - outcome.started)  # clocks are set back

    def _end(self, job: Job, answer: env.Envelope, how: str | None = None) -> list[Effect]:
        self.counts[how or answer.body["state"]] += 1
        if self._observed is not None and how is not None:
            self._observed.refused(job)
        self._roll.leaving[job.key] = job, answer
        if job.ledger:
            self._roll.ending[job.key] = job, answer
            return [Finish(job, answer)]
        self._recent.keep(job.id, job.epoch, answer)
        end = Reply(job, answer, terminal=True)
        if job.ours or answer.body["state"] != pr.SUCCESS:
            return [end]
        # A success without RUNNING, which may be lost, ends the thread that TaskFlow reads with.
        return [Reply(job, self._answers.running(job)), end]

    def on_unstorable(self, job: Job, error: exc.LedgerFailure) -> env.Envelope:
        """The ledger refuses what came of a job: a failure that says so is its answer instead."""
        problem = exc.LedgerFailure(
            f"task {job.name!r} ended, but its result cannot be stored: {error}"
        )
        answer = self._failure_of(job, problem)
        self._roll.ending[job.key] = self._roll.leaving[job.key] = job, answer
        return answer

    def on_stored(self, job: Job, fenced: bool = False) -> list[Effect]:
        """The ledger was told that a job ended, or cannot be: now it is answered.

        `fenced`: the row is another worker's by now.  What ended here is no result.
        """
        _, answer = self._roll.ending.pop(job.key)
        if fenced:
            self._roll.leaving.pop(job.key, None)
            self.counts["fenced"] += 1
            return [Acknowledge(job.receipt)]
        effects: list[Effect] = [Reply(job, answer, terminal=True)]
        if job.listener is not None:
            effects.append(Reply(None, replace(answer, routing_key=job.listener)))
        return effects

    def on_told(self, job: Job, fenced: bool = False) -> list[Effect]:
        """As `on_stored`, of what was stored, answered, and acknowledged in one step."""
        _, answer = self._roll.ending.pop(job.key)
        self._roll.leaving.pop(job.key, None)
        if fenced:
            self.counts["fenced"] += 1
        elif job.listener is not None:
            return [Reply(None, replace(answer, routing_key=job.listener))]
        return []

    def on_answered(self, job: Job) -> None:
        """Its terminal answer is published, or never can be."""
        self._roll.leaving.pop(job.key, None)

    # What engines want.

    def on_ask(
        self, asked: Iterable[tuple[str, int]], reply_to: str | None, in_person: bool = True
    ) -> list[Effect]:
        """An engine asks for requests that another one sent: it is answered from now on.

        Of what runs here it is told so, of what ended how, as far as that is remembered.  Of the
        rest, where it asks `in_person` and not everybody, that it does not run here: what ended is
        in the ledger, where there is one.
        """
        if reply_to is None or not _names.is_label(reply_to):
            LOG.warning("refused a question: %.200r is no name to answer to", reply_to)
            self.counts["unanswerable"] += 1
            return []
        jobs, leaving = self._roll.by_id(), self._roll.answers()
        effects: list[Effect] = []
        for request_id, number in asked:
            found = jobs.get(request_id)
            known = leaving.get(request_id) or self._recent.answer(request_id)
            if found is not None:
                effects += [e for job in found for e in self._readdress(job, reply_to, number)]
            elif known is not None:
                effects.append(Reply(None, replace(known, routing_key=reply_to)))
            elif in_person:
                answer = commands.not_here(request_id, number, self.identity, reply_to)
                effects.append(Reply(None, answer))
        return effects

    def _readdress(self, job: Job, reply_to: str, number: int) -> list[Effect]:
        if number < job.asked:
            return []  # by an engine that lost its flow to another since
        job.asked = number
        if job.key in self._roll.ending:
            job.listener = reply_to
            return []
        job.reply_to = reply_to
        answer = self._answers.running(job, asked=number)
        if job.key in self._roll.begun:  # else it waits for a slot
            answer.headers[env.WBE_STARTED] = job.began
        return [Reply(job, answer)]

    def on_cancel(self, cancelled: Iterable[tuple[str, int]]) -> list[Effect]:
        """An engine has no use for requests any more, up to these epochs.  Idempotent.

        What runs is to end soon, what waits does not begin.  What did not come yet is refused when
        it does, where no ledger refuses it.
        """
        effects: list[Effect] = []
        wanted = dict(cancelled)
        here = [job for job in self._roll.jobs.values() if job.epoch <= wanted.get(job.id, -1)]
        for job in here:
            if job.cancelled:
                continue
            job.cancelled = True
            if job.key in self._roll.begun:
                effects.append(Cancel(job))
            elif self._roll.waiting.pop(job.key, None) is not None:
                effects += self._start(job)
        for request_id, epoch in wanted.items():
            if self._recent.epoch(request_id) < epoch:
                self._recent.refuse(request_id, epoch)
        return effects
