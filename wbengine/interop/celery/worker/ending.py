"""What is owed to a task message when its task has come to an end, of whatever kind."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from wbengine import exceptions, invocation
from wbengine.interop.celery import retrying
from wbengine.interop.celery.canvas import sequel
from wbengine.interop.celery.protocol import errors, results, serializers
from wbengine.interop.celery.protocol.steps import Send, Step
from wbengine.interop.celery.worker.deeds import End
from wbengine.interop.celery.worker.jobs import Job
from wbengine.types import failure as ft

__all__ = ["Endings"]

LOG = logging.getLogger(__name__)

_REVOKED = ("TaskRevokedError", "celery.exceptions")


class Endings:
    """Makes the `End` of jobs; results are written in the first of the serializers that
    are accepted: who reads a Redis can only know it beforehand.

    `extended`: they also tell what their task was called with, and where it ran.
    """

    def __init__(
        self, accepted: serializers.Accepted, worker: str, *, extended: bool = False
    ) -> None:
        self._extended = extended
        self._accepted = accepted
        self._serializer = accepted.names[0]
        self._worker = worker

    def succeeded(self, job: Job, value: Any, now: float) -> End | ft.Failure:
        """It returned `value`: what comes next is sent.

        With a value that cannot be written, or a signature that makes no sense, it failed.
        """
        message, serializer = job.message, self._serializer
        try:
            following = sequel.next_of(
                message, value, new_id=_ids(job), now=now, origin=self._worker
            )
            result = results.of_success(message, value, following.children, now, serializer)
            self.extend(job, result)
            # It must be possible to write all of it.
            if message.chord or not message.ignore_result:
                result.encoded  # noqa: B018
            if following.steps:
                serializers.dump(value, serializers.name_of(message.content_type) or "json")
        except Exception as error:  # whatever a result does, there is an end
            return ft.Failure.from_exception(error)
        return self._end(job, result, following.steps)

    def failed(self, job: Job, failure: ft.Failure, now: float, *, reject: bool = False) -> End:
        """It failed: so does what would have come next, and who waits for that is told."""
        result = results.of_failure(job.message, failure, now, self._serializer, limit=job.limit)
        return self._broken(job, result, now, reject)

    def refused(self, job: Job, error: Mapping[str, Any], now: float) -> End:
        """It cannot be run here; `error` is one of `errors.describe`."""
        result = results.of_error(job.message, error, now, self._serializer)
        return self._broken(job, result, now)

    def revoked(self, job: Job, reason: str, now: float) -> End:
        """Nobody wants it any more."""
        error = errors.describe(*_REVOKED, reason)
        result = results.of_error(job.message, error, now, self._serializer, results.REVOKED)
        return self._end(job, result, (), self._fallout(job, result))

    def retried(self, job: Job, again: retrying.Again, now: float) -> End:
        """It is to run again: its message is sent again, under its id."""
        message = job.message
        args = message.args if again.args is None else tuple(again.args)
        kwargs = message.kwargs if again.kwargs is None else dict(again.kwargs)
        try:
            once_more = replace(
                message,
                args=args,
                kwargs=kwargs,
                argsrepr=message.argsrepr if again.args is None else None,
                kwargsrepr=message.kwargsrepr if again.kwargs is None else None,
                retries=message.retries + 1,
                eta=dt.datetime.fromtimestamp(again.eta, dt.timezone.utc),
            )
            serializers.dump([args, kwargs], self._accepted.written(message.content_type))
        except Exception as error:
            return self.failed(job, ft.Failure.from_exception(error), now)
        value = again.why and errors.told(again.why, job.limit, self._serializer)
        result = results.of_state(message, results.RETRY, value, self._serializer)
        result.traceback = errors.traceback_of(again.why) if again.why else again.traceback
        self.extend(job, result)
        step = Send(once_more, job.queue)
        kept = None if message.ignore_result else result
        return End(job, kept, (step,), state=results.RETRY)

    def extend(self, job: Job, result: results.Result) -> results.Result:
        """The same result, which also tells of its task, if results are to; idempotent."""
        if self._extended and result.about is None:
            result.about = results.about(job.message, self._worker, job.queue, self._serializer)
        return result

    def ignored(self, job: Job) -> End:
        """Nothing of it is stored or told."""
        return End(job, None)

    def _broken(self, job: Job, result: results.Result, now: float, reject: bool = False) -> End:
        steps: Any = ()
        try:
            steps = sequel.errbacks_of(
                job.message, new_id=_ids(job), now=now, origin=self._worker
            ).steps
        except Exception as error:
            LOG.warning("the errbacks of task %s cannot be called: %s", job.id, error)
        end = self._end(job, result, steps, self._fallout(job, result))
        end.reject = reject
        return end

    def _end(self, job: Job, result: results.Result, steps: Any, fallout: Any = ()) -> End:
        message = job.message
        self.extend(job, result)
        part = results.part_of(message, result)
        kept = None if message.ignore_result else result
        steps = [_tied(step, job.handed_on) for step in steps] if job.handed_on else steps
        return End(job, kept, steps, part, fallout, state=result.state)

    def _fallout(self, job: Job, result: results.Result) -> list[results.Fallen]:
        """What fails with it: whoever waits for the last task of its chain waits for that."""
        if not job.message.chain:
            return []
        try:
            missed = sequel.never_run(job.message)
        except Exception as error:
            LOG.warning("the chain behind task %s cannot be read: %s", job.id, error)
            return []
        return [results.of_missed(one, result) for one in missed]


def _tied(step: Step, headers: Mapping[str, str]) -> Step:
    """A step whose message, if it has one, has these headers unless it says otherwise."""
    if not isinstance(step, Send):
        return step
    return replace(step, message=replace(step.message, extra={**headers, **step.message.extra}))


def _ids(job: Job) -> Callable[[], str]:
    """Ids for what follows from a job: the same ones, if it has to be told twice."""
    number = 0

    def make() -> str:
        nonlocal number
        number += 1
        return invocation.request_id(job.id, invocation.EXECUTE, job.epoch, number)

    return make


def lost(text: str) -> ft.Failure:
    """What stands for a task of which nobody knows what it did."""
    return ft.Failure.from_exception(exceptions.WorkerLost(text))


def lost_before(job: Job) -> ft.Failure:
    """What stands for a task that began elsewhere, and nobody knows what became of it."""
    return lost(
        f"task {job.name} [{job.id}] had begun in a worker that went away; what became of it is not"
        " known"
    )
