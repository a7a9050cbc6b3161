"""`--events celery`: what becomes of the requests of flows, for Celery's monitors."""

from __future__ import annotations

import collections
import datetime as dt
import os
import time
from typing import TYPE_CHECKING, Any, Final

import celery

from wbengine import exceptions as exc
from wbengine.interop.celery import protocol, reconnecting
from wbengine.transports import reasons
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine import invocation
    from wbengine.engines.worker_based.worker_side.jobs import Job, Key

__all__ = ["Dispatcher"]

#: Seconds between two heartbeats.
PERIOD: Final = 2.0

#: So many events wait for the broker; others are dropped.
LIMIT: Final = 10_000

#: So many characters are told of values, and of tracebacks: their end.
_LONGEST: Final = 1024
_LONGEST_TRACEBACK: Final = 8192

_GIVEN_UP: Final = "the worker ended before the task did"


class Dispatcher(reconnecting.ReconnectLoop):
    """Publishes what becomes of a worker's requests, as events of Celery tasks.

    `uuid` is the id of the request, `name` that of the task class (with `.revert` where the task is
    reverted), `root_id` the uuid of the flow; `retries` counts the attempts before.  `atom`, a
    field of our own, is the name that the task has in its flow.

    It is an `Observer` of one worker: it waits for nobody, and runs no code of tasks.  `alive`: it
    also tells that the worker lives; else Celery's own worker does, in the same process.
    """

    def __init__(self, app: celery.Celery, node: str, *, alive: bool) -> None:
        super().__init__(f"Celery's broker for events at {app.connection_for_write().as_uri()}")
        self._app = app
        self._node = node
        self._alive = alive
        self._events: collections.deque[tuple[str, dict[str, Any]]] = collections.deque()
        self._running: set[Key] = set()
        self._processed = 0

    def start(self) -> None:
        """Begin; returns at once."""
        with self._changed:
            self._wake()

    def stop(self, timeout: float = 2.0) -> None:
        """Tell what is left, say goodbye, and end; for `timeout` seconds at most."""
        self.close(timeout)

    # An observer.

    def received(self, job: Job) -> None:
        unit = job.unit
        name, arguments = job.name, "{}"
        if unit is not None:
            name = unit.task_cls if unit.action == "execute" else f"{unit.task_cls}.{unit.action}"
            arguments = protocol.shown(dict(unit.arguments))
        told = {
            "uuid": job.id,
            "name": name,
            "args": "()",
            "kwargs": arguments,
            "retries": max(0, job.attempt - 1),
            "eta": None,
            "expires": _iso(job.expires),
            "root_id": job.flow or None,
            "parent_id": None,
            "atom": job.name,
        }
        self._tell("task-received", told)

    def started(self, job: Job) -> None:
        self._running.add(job.key)
        self._processed += 1
        self._tell("task-started", {"uuid": job.id})

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        self._running.discard(job.key)
        if outcome.failed:
            self._failed(job, outcome.value, ran=True)
            return
        runtime = None
        if outcome.started is not None and outcome.ended is not None:
            runtime = max(0.0, outcome.ended - outcome.started)
        told = {"uuid": job.id, "result": protocol.shown(outcome.value), "runtime": runtime}
        self._tell("task-succeeded", told)

    def refused(self, job: Job) -> None:
        failure = ft.Failure.from_exception(job.refusal or exc.Cancelled("refused"))
        self._failed(job, failure, ran=False)

    def returned(self, job: Job) -> None:
        self._running.discard(job.key)
        self._tell("task-rejected", {"uuid": job.id, "requeue": True})

    def given_up(self, job: Job) -> None:
        self._running.discard(job.key)
        self._failed(job, ft.Failure.from_exception(exc.WorkerLost(_GIVEN_UP)), ran=True)

    def _failed(self, job: Job, failure: ft.Failure, *, ran: bool) -> None:
        expired = failure.check(exc.Expired) is not None
        if expired or (job.cancelled and failure.check(exc.Cancelled) is not None):
            ended = ran and not expired
            told = {"uuid": job.id, "terminated": ended, "signum": None, "expired": expired}
            self._tell("task-revoked", told)
            return
        names = tuple(failure)
        kind = names[0].rpartition(".")[2] if names else "Exception"
        told = {
            "uuid": job.id,
            "exception": f"{kind}({failure.exception_str[:_LONGEST]!r})",
            "traceback": failure.traceback_str[-_LONGEST_TRACEBACK:],
        }
        self._tell("task-failed", told)

    def _tell(self, kind: str, fields: dict[str, Any]) -> None:
        with self._changed:
            if len(self._events) < LIMIT:
                self._events.append((kind, fields | {"timestamp": time.time()}))
                self._changed.notify()

    # Its thread.

    @property
    def _pending(self) -> int:
        return 1 + len(self._events)  # it lives until it is stopped

    def _refused(self, error: Exception) -> None:
        self._away(reasons.explain(error))

    def _serve(self) -> None:
        """Until told to stop, and all is told."""
        with self._app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1)
            self._back()
            dispatcher = self._app.events.Dispatcher(
                connection, hostname=self._node, buffer_while_offline=False
            )
            self._beat(dispatcher, "worker-online")
            due = time.monotonic() + PERIOD
            while self._events or not self._stopping.is_set():
                if self._events:
                    kind, fields = self._events[0]
                    dispatcher.send(kind, **fields)
                    self._events.popleft()
                if time.monotonic() >= due:
                    due = time.monotonic() + PERIOD
                    self._beat(dispatcher, "worker-heartbeat")
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._events or self._stopping.is_set(), due - time.monotonic()
                    )
            self._beat(dispatcher, "worker-offline")

    def _beat(self, dispatcher: Any, kind: str) -> None:
        if self._alive:
            facts = {"active": len(self._running), "processed": self._processed}
            dispatcher.send(kind, freq=PERIOD, loadavg=list(os.getloadavg()), **facts)


def _iso(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    try:
        return dt.datetime.fromtimestamp(seconds, dt.timezone.utc).isoformat()
    except (OverflowError, ValueError, OSError):
        return None
