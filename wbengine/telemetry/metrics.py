"""Prometheus metrics of engines, workers and the fleet.

The sum over all processes counts each task once. A worker counts the tasks that it runs. An engine
counts its flows, the tasks that run in its process, and the tasks that no worker can count because
none started them or the worker was lost. Child processes of a pool count nothing, because their
parent counts their tasks.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from wbengine import states
from wbengine._calls import invocation
from wbengine.listeners import base
from wbengine.running import LOCAL
from wbengine.telemetry import _fleet_collector, _labels, _meters

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from wbengine.engines.worker_based._messages import envelope as env
    from wbengine.engines.worker_based._requests.request_state import TrackedRequest
    from wbengine.engines.worker_based._worker_side.jobs import Job
    from wbengine.engines.worker_based._worker_side.reporting import ForeignJob

__all__ = ["FleetCollector", "MetricsListener", "WorkerObserver", "observe", "render"]

FleetCollector = _fleet_collector.FleetCollector
render = _fleet_collector.render

_FLOW_ENDS: Final = frozenset({states.SUCCESS, states.FAILURE, states.REVERTED, states.SUSPENDED})
_DIRECTIONS: Final = {
    states.SUCCESS: (invocation.EXECUTE, False),
    states.FAILURE: (invocation.EXECUTE, True),
    states.REVERTED: (invocation.REVERT, False),
    states.REVERT_FAILURE: (invocation.REVERT, True),
}


class MetricsListener(base.Listener):
    """Counts the runs of an engine's flow, and the tasks that no worker counts.

    The listener also measures how long requests wait for a worker, and counts the tasks that wait
    because their type is paused.

    :param registry: the registry (default: prometheus-client's).
    :param remote: count tasks of workers, too; for fleets whose workers are not scraped.
    :raises ImportError: if prometheus-client is not installed.
    """

    def __init__(
        self, engine: Any, registry: CollectorRegistry | None = None, *, remote: bool = False
    ) -> None:
        super().__init__(
            engine,
            task_listen_for=(*_DIRECTIONS, states.IGNORE, states.RESENT),
            flow_listen_for=(states.RUNNING, *_FLOW_ENDS),
        )
        self._meters = _meters.of(registry)
        self._remote = remote
        self._tasks: dict[str, Any] = {}
        self._run = _Run(self._meters)
        weakref.finalize(self, self._run.leave)

    def deregister(self) -> None:
        """Stop listening. A flow that is running is not counted."""
        super().deregister()
        self._observe_executor(False)
        self._meters.engines.discard(self._engine)
        self._run.leave()

    def _observe_executor(self, enabled: bool) -> None:
        """Observe the executor, which engines may share, only while the flow runs."""
        executor = self._engine.executor
        if hasattr(executor, "add_observer"):
            (executor.add_observer if enabled else executor.remove_observer)(self)

    def publishing(self, tracked: TrackedRequest, envelope: env.Envelope) -> None:
        """Do nothing: `settled` counts the request."""

    def published(self, tracked: TrackedRequest, error: BaseException | None) -> None:
        """Do nothing: `settled` counts the request."""

    def settled(self, tracked: TrackedRequest, outcome: invocation.Outcome, waited: float) -> None:
        """Count a request that ended `waited` seconds after it was submitted."""
        if outcome.started is None or outcome.ended is None or tracked.invocation.recovered:
            return
        if tracked.flow != self._engine.storage.flow_uuid:
            return  # The request belongs to another engine with the same executor.
        topic = _labels.of_topic(tracked.queue)
        self._meters.waited(topic, waited - (outcome.ended - outcome.started))
        if self._remote:
            call, seconds = tracked.invocation, outcome.ended - outcome.started
            self._meters.task_ended(
                tracked.task_cls, topic, call.action, outcome.failed, call.attempt, seconds
            )

    def _flow_receiver(self, state: str, details: base.Details) -> None:
        self._observe_executor(state == states.RUNNING)
        if state == states.RUNNING:
            self._run.begin(details["flow_name"])
            self._meters.engines.add(self._engine)
        else:
            self._run.end(state)
            outcome = self._engine.storage.flow_detail.undo_outcome(state)
            if outcome not in (None, "running"):
                self._meters.flow_undone(details["flow_name"], outcome)

    def _task_receiver(self, state: str, details: base.Details) -> None:
        if state == states.IGNORE:
            self._meters.task_ignored(self._label(details))
            return
        if state == states.RESENT:
            self._meters.task_resent(self._label(details))
            return
        if "result" not in details:
            return  # The task was requeued.
        action, failed = _DIRECTIONS[state]
        if details["worker"] not in (LOCAL, None) and self._started_on_worker(details):
            return  # A worker ran the task and counts it.
        self._meters.task_ended(
            self._label(details),
            "",
            action,
            failed,
            details["attempt"],
            details["runtime"],
        )

    def _started_on_worker(self, details: base.Details) -> bool:
        executor = self._engine.executor
        return details["runtime"] is not None or not getattr(executor, "reports_times", True)

    def _label(self, details: base.Details) -> str:
        name = details["task_name"]
        label = self._tasks.get(name)
        if label is None:
            plan = self._engine.compilation.plan
            if name in plan.by_name:
                label = _labels.of_task(plan.items[plan.by_name[name]])
            else:
                label = _labels.of_step(self._engine.storage.flow_detail, details["task_uuid"])
            self._tasks[name] = label
        return str(label)


class _Run:
    def __init__(self, counts: _meters.Meters) -> None:
        self._meters = counts
        self._flow: str | None = None
        self._began = 0.0

    def begin(self, flow: str) -> None:
        self.leave()
        self._flow, self._began = flow, time.monotonic()
        self._meters.flow_began(flow)

    def end(self, state: str) -> None:
        flow = self._flow
        if flow is not None:  # None: the flow had ended before the engine started.
            self.leave()
            self._meters.flow_ended(flow, state, time.monotonic() - self._began)

    def leave(self) -> None:
        flow, self._flow = self._flow, None
        if flow is not None:
            self._meters.flow_left(flow)


@contextlib.contextmanager
def observe(
    engine: Any, registry: CollectorRegistry | None = None, *, remote: bool = False
) -> Iterator[MetricsListener]:
    """Count what an engine does, for the length of a `with` block; see `MetricsListener`."""
    with MetricsListener(engine, registry, remote=remote) as listener:
        yield listener


class WorkerObserver:
    """Counts the tasks of a worker, as one of its `observers`.

    :param registry: the registry (default: prometheus-client's).
    :raises ImportError: if prometheus-client is not installed.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._meters = _meters.of(registry)
        #: Topics by queue. The topic of any other queue is derived from its name.
        self.topics: dict[str, str] = {}

    def received(self, job: Job) -> None:
        """Do nothing: `ended` counts the task."""

    def started(self, job: Job) -> None:
        """Do nothing: `ended` counts the task."""

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        unit, started, ended = job.unit, outcome.started, outcome.ended
        if unit is None or started is None or ended is None:
            return  # The task did not start: its engine counts it.
        queue = (getattr(job.receipt, "delivery_info", None) or {}).get("routing_key", "")
        topic = self.topics.get(queue) or _labels.of_topic(queue)
        self._meters.task_ended(
            unit.task_cls, topic, unit.action, outcome.failed, job.attempt, ended - started
        )

    def task_began(self, job: ForeignJob, system: str) -> Mapping[str, str]:
        """Do nothing: `task_ended` counts the task."""
        return {}

    def task_ended(self, job: ForeignJob, outcome: invocation.Outcome, well: bool) -> None:
        """Count a task from another source, such as a client of Celery."""
        started, ended = outcome.started, outcome.ended
        seconds = None if started is None or ended is None else ended - started
        self._meters.task_ended(
            job.task, job.queue, invocation.EXECUTE, not well, job.attempt, seconds
        )

    def refused(self, job: Job) -> None:
        """Do nothing: the engine counts the task."""

    def returned(self, job: Job) -> None:
        """Do nothing: the next worker counts the task."""

    def given_up(self, job: Job) -> None:
        """Do nothing: the engine counts the task as lost."""
