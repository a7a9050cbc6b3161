"""Names, kinds, labels and help texts of all metrics.

This module imports no optional package: the documentation and tests read it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["MESSAGING", "METRICS", "Kind", "Metric"]

Kind = Literal["counter", "gauge", "histogram"]

#: Bounds in seconds, from a few milliseconds to an hour.
SECONDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
    *(2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)


#: Bounds in seconds that OpenTelemetry's conventions advise.
ADVISED: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)


@dataclass(frozen=True)
class Metric:
    """A metric; `buckets` are the upper bounds of a histogram."""

    kind: Kind
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


#: Prometheus metrics by name.
METRICS: Final[Mapping[str, Metric]] = {
    "wbengine_flows_total": Metric(
        "counter", ("flow", "state"), "Runs of flows that ended or were suspended"
    ),
    "wbengine_flows_undone_total": Metric(
        "counter", ("flow", "outcome"), "Reversions of flows that had succeeded"
    ),
    "wbengine_flows_running": Metric("gauge", ("flow",), "Running flows"),
    "wbengine_flow_duration_seconds": Metric(
        "histogram", ("flow",), "Duration of runs of flows", SECONDS
    ),
    "wbengine_tasks_total": Metric(
        "counter", ("task", "topic", "state"), "Executions and reversions of tasks that ended"
    ),
    "wbengine_task_duration_seconds": Metric(
        "histogram", ("task", "direction"), "Duration of executions and reversions", SECONDS
    ),
    "wbengine_task_queue_wait_seconds": Metric(
        "histogram", ("topic",), "Time from sending a request to its start on a worker", SECONDS
    ),
    "wbengine_task_retries_total": Metric("counter", ("task",), "Repeated executions of tasks"),
    "wbengine_tasks_resent_total": Metric(
        "counter", ("task",), "Tasks that were resent, or began again after their engine died"
    ),
    "wbengine_tasks_paused": Metric(
        "gauge", ("task",), "Tasks and items of Maps in running flows whose type is paused"
    ),
    "wbengine_requests_unserved": Metric(
        "gauge", ("task",), "Requests of running flows for which no worker is known"
    ),
    "wbengine_task_pauses": Metric("gauge", ("pattern",), "Pauses of task types in the store"),
    "wbengine_flows_waiting_for_code": Metric(
        "gauge", ("code",), "Flows that wait for code that no conductor has"
    ),
    "wbengine_untrusted_messages_total": Metric(
        "counter", (), "Rejected messages without a signature of an authorized key"
    ),
    "wbengine_worker_slots": Metric(
        "gauge", ("worker", "state"), "Slots of a worker: busy, free or closed"
    ),
    "wbengine_worker_last_seen_timestamp_seconds": Metric(
        "gauge", ("worker",), "Time of the latest message of a worker, in Unix seconds"
    ),
    "wbengine_queue_messages": Metric("gauge", ("queue",), "Messages in a queue"),
    "wbengine_job_queue_flows": Metric(
        "gauge", ("queue", "state"), "Flows in a queue of flows: waiting, delayed or running"
    ),
    "wbengine_job_queue_oldest_timestamp_seconds": Metric(
        "gauge", ("queue",), "Submission of the oldest waiting flow of a queue, in Unix seconds"
    ),
    "wbengine_job_queue_served": Metric(
        "gauge", ("queue",), "1 if a conductor serves a queue of flows, otherwise 0"
    ),
    "wbengine_flows_pending": Metric("gauge", (), "Flows that no engine has started"),
    "wbengine_oldest_pending_flow_timestamp_seconds": Metric(
        "gauge", (), "Creation time of the oldest flow that no engine has started, in Unix seconds"
    ),
    "wbengine_oldest_flow_timestamp_seconds": Metric(
        "gauge", (), "Creation time of the oldest flow in the store, in Unix seconds"
    ),
    "wbengine_flows_deleted_total": Metric(
        "counter", (), "Flows that the retention of this process deleted"
    ),
    "wbengine_retention_last_run_timestamp_seconds": Metric(
        "gauge", (), "Latest complete run of the retention of the store, in Unix seconds"
    ),
    "wbengine_bulks_running": Metric(
        "gauge", ("operation",), "Stored operations on many flows that are not complete"
    ),
    "wbengine_bulk_flows_total": Metric(
        "counter",
        ("operation", "result"),
        "Flows of operations on many flows that this process has done or skipped",
    ),
    "wbengine_bulk_errors_total": Metric(
        "counter",
        ("operation",),
        "Failed attempts of this process to carry a part of such an operation out",
    ),
    "wbengine_notifications_total": Metric(
        "counter",
        ("destination", "result"),
        "Messages that this process sent, failed to send (each attempt), or dropped",
    ),
    "wbengine_notification_events_total": Metric(
        "counter",
        ("destination", "event", "result"),
        "Events in messages that were sent or dropped, and events that are not selected",
    ),
    "wbengine_build_info": Metric(
        "gauge", ("version", "python"), "Always 1; the versions are in the labels"
    ),
}

OPERATION_DURATION: Final = "messaging.client.operation.duration"
SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
PROCESS_DURATION: Final = "messaging.process.duration"

_MESSAGE: Final = ("messaging.system", "messaging.operation.name", "messaging.destination.name")

#: OpenTelemetry metrics by name.
MESSAGING: Final[Mapping[str, Metric]] = {
    OPERATION_DURATION: Metric(
        "histogram",
        (*_MESSAGE, "messaging.operation.type", "error.type"),
        "Time to send a request, until the broker has received it",
        ADVISED,
    ),
    SENT_MESSAGES: Metric(
        "counter", (*_MESSAGE, "error.type"), "Requests sent, including failed attempts"
    ),
    CONSUMED_MESSAGES: Metric(
        "counter", _MESSAGE, "Requests and tasks of other clients that a worker received"
    ),
    PROCESS_DURATION: Metric(
        "histogram",
        (*_MESSAGE, "error.type"),
        "Time that a worker needed to process a request or a task of another client",
        ADVISED,
    ),
}
