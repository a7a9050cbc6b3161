"""Events of wbengine's own requests: what Celery's monitors see of the tasks of flows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions as exc
from wbengine.interop.celery.protocol.showing import LONGEST, shown
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine import invocation
    from wbengine.engines.worker_based.worker_side.jobs import Job, Key

__all__ = ["Watch"]

#: So many characters are told of tracebacks: their end.
_LONGEST_TRACEBACK: Final = 8192

_GIVEN_UP: Final = "the worker ended before the task did"


class Watch:
    """Tells `tell(type, **fields)` what becomes of a worker's requests, as events of Celery tasks.

    `uuid` is the id of the request, `name` that of the task class (with `.revert` where the task is
    reverted), `root_id` the uuid of the flow; `retries` counts the attempts before.  `atom`, a
    field of our own, is the name that the task has in its flow.

    It is an `Observer` of one worker: it waits for nobody, and runs no code of tasks.
    """

    def __init__(self, tell: Callable[..., Any]) -> None:
        self._tell = tell
        self._running: set[Key] = set()
        #: How many tasks began.
        self.processed = 0

    @property
    def active(self) -> int:
        """How many tasks run."""
        return len(self._running)

    def received(self, job: Job) -> None:
        unit = job.unit
        name, arguments = job.name, "{}"
        if unit is not None:
            name = unit.task_cls if unit.action == "execute" else f"{unit.task_cls}.{unit.action}"
            arguments = shown(unit.arguments)
        self._tell(
            "task-received",
            uuid=job.id,
            name=name,
            args="()",
            kwargs=arguments,
            retries=max(0, job.attempt - 1),
            eta=None,
            expires=_iso(job.expires),
            root_id=job.flow or None,
            parent_id=None,
            atom=job.name,
        )

    def started(self, job: Job) -> None:
        self._running.add(job.key)
        self.processed += 1
        self._tell("task-started", uuid=job.id)

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        self._running.discard(job.key)
        if outcome.failed:
            self._failed(job, outcome.value, ran=True)
            return
        runtime = None
        if outcome.started is not None and outcome.ended is not None:
            runtime = max(0.0, outcome.ended - outcome.started)
        self._tell("task-succeeded", uuid=job.id, result=shown(outcome.value), runtime=runtime)

    def refused(self, job: Job) -> None:
        failure = ft.Failure.from_exception(job.refusal or exc.Cancelled("refused"))
        self._failed(job, failure, ran=False)

    def returned(self, job: Job) -> None:
        self._running.discard(job.key)
        # The first is what the reference says, the other what Celery sends.
        self._tell("task-rejected", uuid=job.id, requeued=True, requeue=True)

    def given_up(self, job: Job) -> None:
        self._running.discard(job.key)
        self._failed(job, ft.Failure.from_exception(exc.WorkerLost(_GIVEN_UP)), ran=True)

    def _failed(self, job: Job, failure: ft.Failure, *, ran: bool) -> None:
        expired = failure.check(exc.Expired) is not None
        if expired or (job.cancelled and failure.check(exc.Cancelled) is not None):
            ended = ran and not expired
            self._tell("task-revoked", uuid=job.id, terminated=ended, signum=None, expired=expired)
            return
        names = tuple(failure)
        kind = names[0].rpartition(".")[2] if names else "Exception"
        self._tell(
            "task-failed",
            uuid=job.id,
            exception=f"{kind}({failure.exception_str[:LONGEST]!r})",
            traceback=failure.traceback_str[-_LONGEST_TRACEBACK:],
        )


def _iso(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    try:
        return dt.datetime.fromtimestamp(seconds, dt.timezone.utc).isoformat()
    except (OverflowError, ValueError, OSError):
        return None
