"""Metrics for Prometheus: of engines, of workers, and of the fleet.

Whoever runs a task counts it, so that what all processes show can be added up: an engine counts
the flows that it runs, the tasks that run in its own process, and those that nobody else can count
(that no worker began, or whose worker was lost); a worker those that it runs.
All is counted in the process that is asked, never in the children of its pool.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from wbengine import invocation, states
from wbengine.listeners import base
from wbengine.telemetry import fleet, labels, meters

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from wbengine.engines.worker_based.messages import envelope as env
    from wbengine.engines.worker_based.requests.tracked import TrackedRequest
    from wbengine.engines.worker_based.worker_side.jobs import Job
    from wbengine.engines.worker_based.worker_side.reporting import ForeignJob

__all__ = ["FleetCollector", "MetricsListener", "WorkerObserver", "observe", "render"]

FleetCollector = fleet.FleetCollector
render = fleet.render

_ENDS: Final = frozenset({states.SUCCESS, states.FAILURE, states.REVERTED, states.SUSPENDED})
_DIRECTIONS: Final = {
    states.SUCCESS: (invocation.EXECUTE, False),
    states.FAILURE: (invocation.EXECUTE, True),
    states.REVERTED: (invocation.REVERT, False),
    states.REVERT_FAILURE: (invocation.REVERT, True),
}


class MetricsListener(base.Listener):
    """Counts the runs of an engine's flow, and those of its tasks that it runs itself.

    `registry` is where they are counted (by default, that of prometheus-client).  With `remote` the
    tasks that ran on workers are counted here too: for fleets whose workers are not scraped.  How
    long requests wait for a worker is always measured here.

    :raises ImportError: prometheus-client is not installed.
    """

    def __init__(
        self, engine: Any, registry: CollectorRegistry | None = None, *, remote: bool = False
    ) -> None:
        super().__init__(
            engine,
            task_listen_for=(*_DIRECTIONS, states.IGNORE),
            flow_listen_for=(states.RUNNING, *_ENDS),
        )
        self._meters = meters.of(registry)
        self._remote = remote
        self._tasks: dict[str, Any] = {}
        self._run = _Run(self._meters)
        weakref.finalize(self, self._run.leave)

    def deregister(self) -> None:
        """Listen no longer; what still runs is not counted any more."""
        super().deregister()
        self._look(False)
        self._run.leave()

    def _look(self, looks: bool) -> None:
        """At the executor, for as long as the flow runs: others use it, too."""
        executor = self._engine.executor
        if hasattr(executor, "add_observer"):
            (executor.add_observer if looks else executor.remove_observer)(self)

    def publishing(self, tracked: TrackedRequest, envelope: env.Envelope) -> None:
        """Nothing is counted yet."""

    def published(self, tracked: TrackedRequest, error: BaseException | None) -> None:
        """Nor now."""

    def settled(self, tracked: TrackedRequest, outcome: invocation.Outcome, waited: float) -> None:
        """A request of the engine's executor ended, `waited` seconds after it was submitted."""
        if outcome.started is None or outcome.ended is None or tracked.invocation.recovered:
            return
        if tracked.flow != self._engine.storage.flow_uuid:
            return  # of another engine, which uses the same executor
        topic = labels.of_topic(tracked.queue)
        self._meters.waited(topic, waited - (outcome.ended - outcome.started))
        if self._remote:
            call, seconds = tracked.invocation, outcome.ended - outcome.started
            self._meters.task_ended(
                tracked.task_cls, topic, call.action, outcome.failed, call.attempt, seconds
            )

    def _flow_receiver(self, state: str, details: base.Details) -> None:
        self._look(state == states.RUNNING)
        if state == states.RUNNING:
            self._run.begin(details["flow_name"])
        else:
            self._run.end(state)

    def _task_receiver(self, state: str, details: base.Details) -> None:
        if state == states.IGNORE:
            self._meters.task_ignored(self._label(details["task_name"]))
            return
        if "result" not in details:
            return  # it was given back
        action, failed = _DIRECTIONS[state]
        if details["worker"] not in (invocation.LOCAL, None) and self._began_there(details):
            return  # a worker ran it, and counts it
        self._meters.task_ended(
            self._label(details["task_name"]),
            "",
            action,
            failed,
            details["attempt"],
            details["runtime"],
        )

    def _began_there(self, details: base.Details) -> bool:
        executor = self._engine.executor
        return details["runtime"] is not None or not getattr(executor, "tells_times", True)

    def _label(self, name: str) -> str:
        found = self._tasks.get(name)
        if found is None:
            plan = self._engine.compilation.plan
            found = self._tasks[name] = labels.of_task(plan.items[plan.by_name[name]])
        return str(found)


class _Run:
    """One run of a flow, from its beginning to whatever ends it."""

    def __init__(self, counts: meters.Meters) -> None:
        self._meters = counts
        self._flow: str | None = None
        self._began = 0.0

    def begin(self, flow: str) -> None:
        self.leave()
        self._flow, self._began = flow, time.monotonic()
        self._meters.flow_began(flow)

    def end(self, state: str) -> None:
        flow = self._flow
        if flow is not None:  # else it was not run: an engine found it so
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
    """Count what an engine does, for the length of a `with` block: see `MetricsListener`."""
    with MetricsListener(engine, registry, remote=remote) as listener:
        yield listener


class WorkerObserver:
    """Counts the tasks of a worker, as one of its `observers`.

    :raises ImportError: prometheus-client is not installed.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._meters = meters.of(registry)
        #: The topic of each queue; of what came from elsewhere the name of the queue says it.
        self.topics: dict[str, str] = {}

    def received(self, job: Job) -> None:
        """It is counted when it ended."""

    def started(self, job: Job) -> None:
        """It is counted when it ended."""

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        unit, started, ended = job.unit, outcome.started, outcome.ended
        if unit is None or started is None or ended is None:
            return  # it never began: its engine counts it
        queue = (getattr(job.receipt, "delivery_info", None) or {}).get("routing_key", "")
        topic = self.topics.get(queue) or labels.of_topic(queue)
        self._meters.task_ended(
            unit.task_cls, topic, unit.action, outcome.failed, job.attempt, ended - started
        )

    def task_began(self, job: ForeignJob, system: str) -> Mapping[str, str]:
        """It is counted when it ended."""
        return {}

    def task_ended(self, job: ForeignJob, outcome: invocation.Outcome, well: bool) -> None:
        """A task ended that came in another way, such as from a client of Celery."""
        started, ended = outcome.started, outcome.ended
        seconds = None if started is None or ended is None else ended - started
        self._meters.task_ended(
            job.task, job.queue, invocation.EXECUTE, not well, job.attempt, seconds
        )

    def refused(self, job: Job) -> None:
        """It never ran: its engine counts it."""

    def returned(self, job: Job) -> None:
        """Somebody else runs it, and counts it."""

    def given_up(self, job: Job) -> None:
        """Its engine counts it, as lost."""
