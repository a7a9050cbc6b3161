"""What Celery's monitors are told of a job."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, Final

from wbengine import invocation
from wbengine.interop.celery import retrying
from wbengine.interop.celery.protocol import errors, results, showing, steps
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.worker.deeds import End, Tell
from wbengine.interop.celery.worker.jobs import Job
from wbengine.types import failure as ft

__all__ = ["ended", "failed", "received", "rejected", "revoked", "sent", "started", "words"]

#: So many characters are told of tracebacks: their end.
_LONGEST_TRACEBACK: Final = 8192

#: A process that is ended because somebody said so gets this signal.
_SIGNAL: Final = "SIGTERM"


def received(job: Job) -> Tell:
    """It was taken."""
    return Tell("task-received", {"uuid": job.id, "name": job.name, **_about(job.message)})


def sent(following: Iterable[Any]) -> list[Tell]:
    """What follows from it was sent."""
    return [_sent(step) for step in following if isinstance(step, steps.Send)]


def _sent(step: steps.Send) -> Tell:
    message = step.message
    return Tell(
        "task-sent",
        {
            "uuid": message.id,
            "name": message.task,
            **_about(message),
            "queue": step.queue,
            "exchange": step.exchange or "",
            "routing_key": step.routing_key or step.queue,
        },
    )


def started(job: Job) -> Tell:
    """It runs."""
    return Tell("task-started", {"uuid": job.id})


def ended(job: Job, end: End, outcome: invocation.Outcome) -> Tell:
    """It ran, and succeeded, failed, or is to run again."""
    value = outcome.value
    if isinstance(value, ft.Failure):
        return failed(job, end, value)
    if isinstance(value, retrying.Again) and end.state != results.FAILURE:
        shown = "None" if value.why is None else errors.shown(value.why)
        trace = "" if end.result is None else end.result.traceback or ""
        return Tell(
            "task-retried",
            {"uuid": job.id, "exception": shown, "traceback": trace[-_LONGEST_TRACEBACK:]},
        )
    if end.state == results.FAILURE:
        return failed(job, end)
    runtime = None
    if outcome.started is not None and outcome.ended is not None:
        runtime = max(0.0, outcome.ended - outcome.started)
    return Tell(
        "task-succeeded", {"uuid": job.id, "result": words(outcome.value), "runtime": runtime}
    )


def failed(job: Job, end: End, failure: ft.Failure | None = None) -> Tell:
    """It failed, or was not run because it cannot be."""
    result = end.result
    trace = "" if result is None else result.traceback or ""
    if failure is not None:
        shown = errors.shown(failure)
    else:
        shown = "" if result is None else errors.shown_of(result.value)
    return Tell(
        "task-failed",
        {"uuid": job.id, "exception": shown, "traceback": trace[-_LONGEST_TRACEBACK:]},
    )


def revoked(job: Job, end: End, reason: str) -> Tell:
    """It is not run, or was ended, because nobody wants it any more."""
    terminated = reason == "terminated"
    return Tell(
        "task-revoked",
        {
            "uuid": job.id,
            "terminated": terminated,
            "signum": _SIGNAL if terminated else None,
            "expired": reason == "expired",
        },
    )


def rejected(id: str, requeued: bool = False) -> Tell:
    """Its message was refused; Celery's reference has another name for the field than its code."""
    return Tell("task-rejected", {"uuid": id, "requeued": requeued, "requeue": requeued})


def words(value: object) -> str:
    """A value, as monitors show it; at no more than the cost of that."""
    return showing.shown(value, asks=True)


def _about(message: TaskMessage) -> Mapping[str, Any]:
    return {
        "args": message.argsrepr or words(tuple(message.args)),
        "kwargs": message.kwargsrepr or words(dict(message.kwargs)),
        "root_id": message.root_id,
        "parent_id": message.parent_id,
        "retries": message.retries,
        "eta": _iso(message.eta),
        "expires": _iso(message.expires),
    }


def _iso(time: dt.datetime | None) -> str | None:
    return None if time is None else time.isoformat()
