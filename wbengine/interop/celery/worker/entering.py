"""From a task message to a job: which task it is for, its limits, and what is wrong with it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from wbengine import exceptions, limits
from wbengine.interop.celery.protocol import codec, errors, serializers
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.worker import builtins, mapping
from wbengine.interop.celery.worker.jobs import Job, Past

if TYPE_CHECKING:
    from wbengine.engines.worker_based import endpoint as endpoints
    from wbengine.interop.celery.protocol.wire import Wire

__all__ = ["Desk", "log_foreign", "not_registered", "unreadable"]

LOG = logging.getLogger(__name__)

#: So much of what is wrong with a message is told to who sent it.
_LONGEST = 1000


class Desk:
    """Makes the jobs of one worker."""

    def __init__(self, tasks: mapping.Tasks, worker: str) -> None:
        self._tasks = tasks
        self._worker = worker
        #: Of those classes that were asked for.
        self._limits: dict[type, limits.TimeLimit] = {}

    def job_of(
        self,
        message: TaskMessage,
        wire: Wire,
        receipt: Any,
        queue: str,
        past: Past,
        note: str,
        now: float,
    ) -> Job:
        """The job of a message; one whose task is not offered has no endpoint."""
        job = Job(
            message.id, message.retries + 1, message, wire, receipt, queue, now, past, note,
            self._worker, self._tasks.find(message.task) or builtins.find(message, self._tasks),
        )  # fmt: skip
        if message.eta is not None:
            job.eta = message.eta.timestamp()
        if message.expires is not None:
            job.expires = message.expires.timestamp()
        if job.endpoint is not None:
            job.limit = self._limit(message.timelimit, job.endpoint)
        return job

    def nameless(self, wire: Wire, receipt: Any, queue: str, now: float) -> Job | None:
        """A job for a message that cannot be read, so that its sender is told; None: nobody knows
        who that is.

        One of version 1 has all in its body; but its correlation id is that of its task.
        """
        found = {key: wire.headers.get(key) for key in ("id", "task", "parent_id", "group")}
        name = found["id"] = found["id"] or wire.properties.get("correlation_id")
        if not (isinstance(name, str) and name and name.isprintable()):  # else nobody hears of it
            return None
        told: dict[str, Any] = {k: v for k, v in found.items() if isinstance(v, str) and v}
        told.setdefault("task", "unknown")
        for name in ("reply_to", "correlation_id"):
            value = wire.properties.get(name)
            if isinstance(value, str) and value:
                told[name] = value
        message = TaskMessage(**told, ignore_result=wire.headers.get("ignore_result") is True)
        return Job(message.id, 1, message, wire, receipt, queue, now, worker=self._worker)

    def _limit(self, given: limits.TimeLimit, endpoint: endpoints.Endpoint) -> limits.TimeLimit:
        """Each limit of the message, else that of the task."""
        cls = endpoint.task_cls
        own = self._limits.get(cls)
        if own is None:
            try:
                own = limits.read(cls.timelimit)
            except (TypeError, ValueError):  # the engine would have said so
                own = limits.UNLIMITED
            self._limits[cls] = own
        if given == limits.UNLIMITED:
            return own
        soft = own.soft if given.soft is None else given.soft
        hard = own.hard if given.hard is None else given.hard
        if soft is not None and hard is not None and soft >= hard:
            soft = None  # it would come too late
        return limits.TimeLimit(soft, hard)


def log_foreign(head: codec.Head, queue: str, place: str | None) -> None:
    """Say what becomes of a message in a language that is not spoken here."""
    if place is not None:
        text = "task %.200r [%s] of queue %r is in language %.50r: it goes on to queue %r"
        LOG.info(text, head.task, head.id, queue, head.lang, place)
        return
    text = (
        "rejected task %.200r [%s] of queue %r: it is in language %.50r, and no other queue is"
        " named for that"
    )
    LOG.warning(text, head.task, head.id, queue, head.lang)


def not_registered(task: str) -> dict[str, Any]:
    """What stands for a task that is not offered here."""
    return errors.describe("NotRegistered", "celery.exceptions", task)


def unreadable(error: exceptions.InvalidFormat) -> dict[str, Any]:
    """What stands for a message that cannot be read."""
    text = str(error)[:_LONGEST]
    if isinstance(error, serializers.Refused):
        return errors.describe("ContentDisallowed", "kombu.exceptions", text)
    if isinstance(error, serializers.Undecodable):
        return errors.describe("DecodeError", "kombu.exceptions", text)
    return errors.describe("InvalidTaskError", "celery.exceptions", text)
