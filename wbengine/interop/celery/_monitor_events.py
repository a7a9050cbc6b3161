"""Events of requests for Celery's monitors (`--events celery`)."""

from __future__ import annotations

import collections
import datetime as dt
import os
import time
from typing import TYPE_CHECKING, Any, Final

import celery

from wbengine import exceptions as exc
from wbengine.interop.celery import _protocol, _reconnecting
from wbengine.transports import _reasons
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine._calls import invocation
    from wbengine.engines.worker_based._worker_side.jobs import Job, Key

__all__ = ["Dispatcher"]

#: Seconds between two heartbeats.
HEARTBEAT_SECONDS: Final = 2.0

#: Maximum number of events that wait for the broker; further events are dropped.
MAX_WAITING_EVENTS: Final = 10_000

#: Maximum characters of values, and of tracebacks, whose end is kept.
_MAX_VALUE_LENGTH: Final = 1024
_MAX_TRACEBACK_LENGTH: Final = 8192

_GIVEN_UP: Final = "the worker stopped before the task ended"


class Dispatcher(_reconnecting.ReconnectLoop):
    """Publishes the events of a worker's requests as events of Celery tasks.

    `uuid` is the id of the request, `name` the task class (with the suffix `.revert` for a revert),
    `root_id` the uuid of the flow, and `retries` the number of earlier attempts. The additional
    field `atom` is the name of the task in its flow.

    The dispatcher is an `Observer` of one worker: its methods do not block and run no task code.

    :param alive: also publish the worker's heartbeats. If False, Celery's own worker in the same
        process publishes them.
    """

    def __init__(self, app: celery.Celery, node: str, *, alive: bool) -> None:
        super().__init__(
            f"the broker of Celery for events at {app.connection_for_write().as_uri()}"
        )
        self._app = app
        self._node = node
        self._alive = alive
        self._events: collections.deque[tuple[str, dict[str, Any]]] = collections.deque()
        self._running: set[Key] = set()
        self._processed = 0

    def start(self) -> None:
        """Start the thread. Does not block."""
        with self._lock:
            self._wake()

    def stop(self, timeout: float = 2.0) -> None:
        """Publish the remaining events, then end, within at most `timeout` seconds."""
        self.close(timeout)

    def received(self, job: Job) -> None:
        unit = job.unit
        name, arguments = job.name, "{}"
        if unit is not None:
            name = unit.task_cls if unit.action == "execute" else f"{unit.task_cls}.{unit.action}"
            arguments = _protocol.shown(dict(unit.arguments))
        fields = {
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
        self._add_event("task-received", fields)

    def started(self, job: Job) -> None:
        self._running.add(job.key)
        self._processed += 1
        self._add_event("task-started", {"uuid": job.id})

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        self._running.discard(job.key)
        if outcome.failed:
            self._failed(job, outcome.value, ran=True)
            return
        runtime = None
        if outcome.started is not None and outcome.ended is not None:
            runtime = max(0.0, outcome.ended - outcome.started)
        fields = {"uuid": job.id, "result": _protocol.shown(outcome.value), "runtime": runtime}
        self._add_event("task-succeeded", fields)

    def refused(self, job: Job) -> None:
        failure = ft.Failure.from_exception(job.refusal or exc.Cancelled("refused"))
        self._failed(job, failure, ran=False)

    def returned(self, job: Job) -> None:
        self._running.discard(job.key)
        self._add_event("task-rejected", {"uuid": job.id, "requeue": True})

    def given_up(self, job: Job) -> None:
        self._running.discard(job.key)
        self._failed(job, ft.Failure.from_exception(exc.WorkerLost(_GIVEN_UP)), ran=True)

    def _failed(self, job: Job, failure: ft.Failure, *, ran: bool) -> None:
        expired = failure.check(exc.Expired) is not None
        if expired or (job.cancelled and failure.check(exc.Cancelled) is not None):
            ended = ran and not expired
            fields = {"uuid": job.id, "terminated": ended, "signum": None, "expired": expired}
            self._add_event("task-revoked", fields)
            return
        names = tuple(failure)
        kind = names[0].rpartition(".")[2] if names else "Exception"
        fields = {
            "uuid": job.id,
            "exception": f"{kind}({failure.exception_str[:_MAX_VALUE_LENGTH]!r})",
            "traceback": failure.traceback_str[-_MAX_TRACEBACK_LENGTH:],
        }
        self._add_event("task-failed", fields)

    def _add_event(self, kind: str, fields: dict[str, Any]) -> None:
        with self._lock:
            if len(self._events) < MAX_WAITING_EVENTS:
                self._events.append((kind, fields | {"timestamp": time.time()}))
                self._changed.notify_all()

    # Only the dispatcher's thread calls the following methods.

    @property
    def _pending(self) -> int:
        return 1 + len(self._events)  # never 0: the thread runs until `stop`

    def _on_refusal(self, error: Exception) -> None:
        self._note_unavailable(_reasons.explain(error))

    def _serve(self) -> None:
        with self._app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1)
            self._note_available()
            dispatcher = self._app.events.Dispatcher(
                connection, hostname=self._node, buffer_while_offline=False
            )
            self._send_heartbeat(dispatcher, "worker-online")
            next_beat_at = time.monotonic() + HEARTBEAT_SECONDS
            while self._events or not self._stopping.is_set():
                if self._events:
                    kind, fields = self._events[0]
                    dispatcher.send(kind, **fields)
                    self._events.popleft()
                if time.monotonic() >= next_beat_at:
                    next_beat_at = time.monotonic() + HEARTBEAT_SECONDS
                    self._send_heartbeat(dispatcher, "worker-heartbeat")
                self._changed.wait_for(
                    lambda: self._events or self._stopping.is_set(), next_beat_at - time.monotonic()
                )
            self._send_heartbeat(dispatcher, "worker-offline")

    def _send_heartbeat(self, dispatcher: Any, kind: str) -> None:
        if self._alive:
            load = {"active": len(self._running), "processed": self._processed}
            dispatcher.send(kind, freq=HEARTBEAT_SECONDS, loadavg=list(os.getloadavg()), **load)


def _iso(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    try:
        return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return None
