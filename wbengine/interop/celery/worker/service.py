"""A worker's side of Celery's protocol, without any I/O.

`Service` takes task messages and what tasks did; it returns *effects*: what is to be done next, in
that order.  It owns no thread, no lock, no socket and no clock.

Every message that it takes ends in exactly one of these: its task's end is told and it is
acknowledged, it is given back before its task began, it is sent on to others who speak its
language, or it is rejected.  No task runs twice for one message, unless it is `idempotent`.

What others may have begun is *in doubt* until they are asked: if it ended there, it is
acknowledged, and while it runs there, it stays here.  If nobody knows it, it is lost if a note says
that it began, and else it runs.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from wbengine import exceptions, invocation
from wbengine.interop.celery import retrying
from wbengine.interop.celery.protocol import codec, results, serializers
from wbengine.interop.celery.protocol.wire import Wire
from wbengine.interop.celery.worker import (
    beginning,
    doubting,
    ending,
    entering,
    holding,
    informing,
    mapping,
    telling,
)
from wbengine.interop.celery.worker.deeds import (
    Acknowledge,
    Cancel,
    Effect,
    End,
    Note,
    Redirect,
    Reject,
    Run,
)
from wbengine.interop.celery.worker.jobs import Job, Past
from wbengine.types import failure as ft

__all__ = ["Service"]

LOG = logging.getLogger(__name__)

#: The only language that is spoken here.
_PYTHON: Final = "py"


class Service(beginning.Beginning):
    """What one worker does about Celery's task messages.  Its owner holds a lock around every call.

    `now` is in unix seconds.  No more than `slots` tasks run at once, and each begins only if
    `admit()` says so; when it does not, what waits stays until `drain` gives it back.

    Messages whose time has not come (`eta`) are held, `max_held` at most: more go back to their
    queue a few seconds later, as does each that is held for `max_hold` seconds.  `ahead` messages
    more than there are slots may wait here.

    `langs` maps a language to the queue of those who speak it: what is in another language than
    Python goes there, or is rejected.  `worker` is the name that people know it by.  `telling`:
    events are wanted.  `local` is the zone of times that version 1 of the protocol leaves without.
    Names of notes begin with `nonce`, which no other worker has, nor had.  `extended`: results also
    tell what their task was called with.
    """

    def __init__(
        self,
        tasks: mapping.Tasks,
        slots: int,
        *,
        accepted: serializers.Accepted,
        worker: str,
        langs: Mapping[str, str] | None = None,
        ahead: int = 0,
        max_held: int = 10_000,
        max_hold: float | None = None,
        telling: bool = False,
        local: dt.tzinfo = dt.timezone.utc,
        admit: Callable[[], bool] | None = None,
        nonce: str = "",
        extended: bool = False,
        patience: doubting.Patience | None = None,
    ) -> None:
        super().__init__(tasks, slots, worker, ahead, max_held)
        self.telling = telling
        self._accepted = accepted
        self._langs = dict(langs or {})
        self._max_hold = max_hold
        self._local = local
        self._admit = admit
        self._nonce = nonce
        self._ends = ending.Endings(accepted, worker, extended=extended)
        self._timetable = holding.Timetable(self.jobs.held)
        waits = patience or doubting.Patience()
        self._doubts = doubting.Doubts(self.jobs.doubtful, max_hold, waits)
        self._desk = entering.Desk(tasks, worker)

    # Messages.

    def on_message(
        self, wire: Wire, receipt: Any, queue: str, past: Past, now: float, note: str = ""
    ) -> list[Effect]:
        """A task message came from a queue; `note` is the name of the one that it came as."""
        try:
            if codec.is_version_2(wire) and wire.headers.get("lang", _PYTHON) != _PYTHON:
                head = codec.read_head(wire)
                if head.lang != _PYTHON:  # it may be None
                    return self._foreign(wire, receipt, queue, head)
            message = codec.decode(wire, self._accepted, local=self._local)
        except exceptions.InvalidFormat as error:
            return self._unreadable(wire, receipt, queue, error, now)
        job = self._desk.job_of(message, wire, receipt, queue, past, note, now)
        here = self.jobs.find(job.key)
        if here is not None:
            return self._repeated(here, job, now)
        if job.key in self._ended:
            self._count("repeated")
            LOG.info("%s came again after it had ended here: it is not run again", job)
            return [Acknowledge(receipt)]
        return self._take(job, now)

    def _repeated(self, here: Job, job: Job, now: float) -> list[Effect]:
        """It is here already; whichever receipt is older may be of no use any more."""
        self._count("repeated")
        if here.past is Past.BEGUN or here.note:
            if job.past is not Past.BEGUN or here.key in self.jobs.noting:
                return [Acknowledge(job.receipt)]  # the note stands for it
        elif job.past is Past.BEGUN and self._withdraw(here):
            return [Acknowledge(here.receipt), *self._take(job, now)]
        old, here.receipt = here.receipt, job.receipt
        return [Acknowledge(old)]

    def _withdraw(self, job: Job) -> bool:
        """Have it no more, unless it has begun."""
        jobs = self.jobs
        if jobs.held.get(job.key) is job:
            self._timetable.remove(job)
        elif jobs.doubtful.get(job.key) is job:
            self._doubts.drop(job)
        elif jobs.waiting.pop(job.key, None) is None:
            return False
        return True

    def _take(self, job: Job, now: float) -> list[Effect]:
        begun = job.past is Past.BEGUN and not self._spared.take(job.id, job.note)
        # Nobody begins a task before its time.
        given = job.past is Past.GIVEN and not beginning.is_early(job, now)
        if (begun or given) and not self._is_idempotent(job):
            if not self._takes:
                return self._requeue(job)
            self._count("doubtful")
            self._doubts.add(job, now)
            return []
        return self._enter(job, now)

    def _enter(self, job: Job, now: float, lost: bool = False) -> list[Effect]:
        """It is this worker's; `lost`: somebody had it before."""
        revoked = self.revoked.covers(job.id, job.message.stamps)
        if not (self._takes or revoked or lost or job.endpoint is None):
            return self._give_back(job)
        effects: list[Effect] = []
        if job.endpoint is not None:
            self.totals[job.task] = self.totals.get(job.task, 0) + 1
        if self.telling:
            effects.append(telling.received(job))
        if job.endpoint is None:
            self._count("unknown")
            hint = self.tasks.hint(job.task)
            LOG.error("task %r [%s] is not offered here%s", job.task, job.id, hint)
            end = self._ends.refused(job, entering.not_registered(job.task), now)
            effects += self._close(job, end, telling.failed)
        elif revoked:
            effects += self._revoke(job, "revoked", now)
        elif lost:
            effects += self._lose(job, now)
        elif beginning.is_early(job, now):
            self._hold(job, now)
        else:
            effects += self._begin(job, now)
        return effects

    def _foreign(self, wire: Wire, receipt: Any, queue: str, head: codec.Head) -> list[Effect]:
        """Others speak its language."""
        place = self._langs.get(head.lang)
        if place is not None and place != queue:
            self._count("redirected")
            entering.log_foreign(head, queue, place)
            return [Redirect(receipt, wire, place)]
        self._count("rejected")
        entering.log_foreign(head, queue, None)
        return [Reject(receipt), *([telling.rejected(head.id)] if self.telling else [])]

    def _unreadable(
        self, wire: Wire, receipt: Any, queue: str, error: exceptions.InvalidFormat, now: float
    ) -> list[Effect]:
        """A message that cannot be read is of no use to anybody; its sender is told, if known."""
        kind = "refused" if isinstance(error, serializers.Refused) else "malformed"
        self._count(kind)
        job = self._desk.nameless(wire, receipt, queue, now)
        named = "" if job is None else f" of task {job.task[:200]!r} [{job.id[:200]}]"
        LOG.error("a message%s from queue %r is %s: %.500s", named, queue, kind, error)
        if job is None or self.jobs.find(job.key) is not None or job.key in self._ended:
            return [Acknowledge(receipt)]
        end = self._ends.refused(job, entering.unreadable(error), now)
        return self._close(job, end, telling.failed)

    def on_answers(self, fates: doubting.Fates, now: float) -> list[Effect]:
        """What all workers that can be reached know of the tasks of the last `Inquire`."""
        effects: list[Effect] = []
        self._widen()
        for job, fate in self._doubts.judge(fates, now):
            if fate != doubting.ENDED:
                effects += self._enter(job, now, lost=fate == doubting.LOST)
                continue
            self._count("elsewhere")
            self._ended.note(job.key)
            LOG.info("%s ended in another worker: it is not run again", job)
            effects.append(Acknowledge(job.receipt))
        return effects

    # What tasks do.

    def on_event(
        self, job: Job, event_type: str, details: Mapping[str, Any], now: float
    ) -> list[Effect]:
        """A running task told something: its progress is a state of its own, PROGRESS."""
        if event_type != "update_progress" or self.jobs.begun.get(job.key) is not job:
            return []
        if job.message.ignore_result or job.informing is not None:
            return []
        serializer = self._accepted.names[0]
        told = results.of_state(job.message, "PROGRESS", dict(details), serializer)
        return [Note(job, self._ends.extend(job, told))]

    def on_finished(self, job: Job, outcome: Any, now: float) -> list[Effect]:
        """A task ended (`Outcome`, or the `Failure` of a call that was not made): what follows
        from that, and who waited for its slot."""
        if self.jobs.begun.get(job.key) is not job:
            return []  # it was given up
        del self.jobs.begun[job.key]
        if not isinstance(outcome, invocation.Outcome):
            outcome = invocation.Outcome(outcome)
        if job.informing is not None:
            return self._informed(job, job.informing, outcome.value, now) + self._refill(now)
        return self._ended_with(job, outcome, now) + self._refill(now)

    def _ended_with(self, job: Job, outcome: invocation.Outcome, now: float) -> list[Effect]:
        value = outcome.value
        job.outcome = outcome
        meant = value if isinstance(value, retrying.Again | retrying.Refusal) else None
        if job.cancelled and (meant is not None or outcome.failed):
            return self._revoke(job, "terminated", now)
        if isinstance(meant, retrying.Refusal):
            return self._refused(job, meant, outcome, now)
        if isinstance(meant, retrying.Again):
            end = self._ends.retried(job, meant, now)
            return self._close(job, end, telling.ended, outcome)
        if not outcome.failed:
            told = self._ends.succeeded(job, value, now)
            if isinstance(told, End):
                return self._close(job, told, telling.ended, outcome)
            outcome = replace(outcome, value=told)
        elif value.check(exceptions.Expired) and job.expires is not None and now > job.expires:
            return self._revoke(job, "expired", now)
        return self._failed(job, informing.Informing(job.message, outcome), now)

    def _failed(self, job: Job, told: informing.Informing, now: float) -> list[Effect]:
        """It failed: its errbacks that take more than an id are called first, and in its slot."""
        told.errbacks, others = informing.split(job.message, self.tasks)
        if not told.errbacks:
            return self._informed(job, told, None, now)
        job.informing = told
        job.message = replace(job.message, errbacks=others)
        job.outcome = None  # nobody is told yet
        self.jobs.begun[job.key] = job
        return [Run(job)]

    def _informed(
        self, job: Job, told: informing.Informing, value: Any, now: float
    ) -> list[Effect]:
        """Its errbacks were called; `value` are the failures of some."""
        for failure in [value] if isinstance(value, ft.Failure) else value or ():
            LOG.warning("an errback of %s failed: %s", job, failure)
        job.outcome = told.outcome
        end = self._ends.failed(job, told.failure, now, reject=told.reject)
        return self._close(job, end, telling.ended, told.outcome)

    def _refused(
        self, job: Job, refusal: retrying.Refusal, outcome: invocation.Outcome, now: float
    ) -> list[Effect]:
        """A task does not want its message, or to be known."""
        if refusal.ignored:
            return self._close(job, self._ends.ignored(job), None)
        told = [telling.rejected(job.id, refusal.requeue)] if self.telling else []
        if refusal.requeue:
            return [*told, *self._give_back(job)]
        outcome = replace(outcome, value=refusal.failure)
        return [*told, *self._failed(job, informing.Informing(job.message, outcome, True), now)]

    # Giving back.

    def _give_back_all(self) -> list[Effect]:
        jobs = [*self.jobs.waiting.values(), *self.jobs.held.values()]
        self.jobs.waiting.clear()
        self._timetable.clear()
        effects = [effect for job in jobs for effect in self._give_back(job)]
        return effects + [effect for job in self._doubts.clear() for effect in self._requeue(job)]

    def on_disconnected(self) -> None:
        """The broker gives what is unsettled to others, or here again: what has not begun is
        theirs.  Not to be called where a new connection settles what came over the old one."""
        jobs = self.jobs
        for job in (*jobs.noting.values(), *jobs.waiting.values(), *jobs.returning):
            if job.note:
                self._spared.note(job.id, job.note)  # it may have been noted all the same
        self.jobs.noting.clear()
        self.jobs.waiting.clear()
        self._timetable.clear()
        self._doubts.clear()

    def on_connected(self, now: float) -> list[Effect]:
        """Messages come over a new connection."""
        self._doubts.connected = now
        return []

    # What people want.

    def revoke(self, ids: Iterable[Any], terminate: bool, now: float) -> list[Effect]:
        """These tasks are not to run; with `terminate`, those that run are to end soon."""
        wanted = self.revoked.add(ids)
        return self._revoke_all(lambda job: job.id in wanted, terminate, now)

    def revoke_by_stamps(
        self, stamps: Mapping[str, Any], terminate: bool, now: float
    ) -> list[Effect]:
        """As `revoke`, of all tasks with one of these stamps (name -> value, or several)."""
        self.revoked.add_stamps(stamps)
        return self._revoke_all(
            lambda job: self.revoked.covers(job.id, job.message.stamps), terminate, now
        )

    def _revoke_all(
        self, meant: Callable[[Job], bool], terminate: bool, now: float
    ) -> list[Effect]:
        effects: list[Effect] = []
        for job in list(filter(meant, self.jobs.unbegun())):
            if self.jobs.waiting.pop(job.key, None) is None:
                self._timetable.remove(job)
            effects += self._revoke(job, "revoked", now)
        for job in filter(meant, self.jobs.begun.values()) if terminate else ():
            if not job.cancelled:
                job.cancelled = True
                effects.append(Cancel(job))
        return effects

    def suspend(self, now: float) -> list[Effect]:
        """Take nothing new until `resume`; what has not begun goes back.  Idempotent."""
        self._suspended = True
        return self._give_back_all()

    def resume(self, now: float) -> list[Effect]:
        """Take what comes again.  Idempotent; not after `drain`."""
        self._suspended = False
        return []

    def drain(self, now: float) -> list[Effect]:
        """Take nothing new any more; what has not begun goes back.  Idempotent."""
        self._draining = True
        return self._give_back_all()

    def abandon(self, now: float) -> list[Effect]:
        """What still runs is given up, whatever it does: it fails as `WorkerLostError`, or is given
        back if it is idempotent."""
        self._draining = self._abandoned = True
        effects = self._give_back_all()
        begun = list(self.jobs.begun.values())
        self.jobs.begun.clear()
        for job in begun:
            effects.append(Cancel(job))
            if job.informing is not None:
                effects += self._informed(job, job.informing, None, now)
                continue
            if self._is_idempotent(job):
                effects += self._give_back(job)
                continue
            failure = ending.lost(f"worker {self.worker} ended before task {job.name} [{job.id}]")
            end = self._ends.failed(job, failure, now)
            effects += self._close(job, end, telling.failed)
        return effects
