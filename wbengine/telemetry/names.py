"""The metrics: what each is called, counts, and is divided by.

Needs no package: the guide, the dashboards and the tests read it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["MESSAGING", "METRICS", "Kind", "Metric"]

Kind = Literal["counter", "gauge", "histogram"]

#: Seconds, from a few milliseconds to an hour.
SECONDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
    *(2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)


#: Seconds, as OpenTelemetry's conventions advise.
ADVISED: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)


@dataclass(frozen=True)
class Metric:
    """One metric; `buckets` are the upper bounds of a histogram."""

    kind: Kind
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


#: All those for Prometheus, by name.
METRICS: Final[Mapping[str, Metric]] = {
    "wbengine_flows_total": Metric(
        "counter", ("flow", "state"), "Runs of flows that came to an end, or were suspended"
    ),
    "wbengine_flows_running": Metric("gauge", ("flow",), "Flows that run now"),
    "wbengine_flow_duration_seconds": Metric(
        "histogram", ("flow",), "How long runs of flows took", SECONDS
    ),
    "wbengine_tasks_total": Metric(
        "counter", ("task", "topic", "state"), "Executions and reversions of tasks that ended"
    ),
    "wbengine_task_duration_seconds": Metric(
        "histogram", ("task", "direction"), "How long executions and reversions took", SECONDS
    ),
    "wbengine_task_queue_wait_seconds": Metric(
        "histogram", ("topic",), "How long requests waited for a worker, with their travel", SECONDS
    ),
    "wbengine_task_retries_total": Metric(
        "counter", ("task",), "Executions of tasks that had been executed before"
    ),
    "wbengine_untrusted_messages_total": Metric(
        "counter", (), "Messages that were refused: nobody signed them who may say them"
    ),
    "wbengine_worker_slots": Metric(
        "gauge", ("worker", "state"), "Slots of a worker: busy, free, or closed"
    ),
    "wbengine_worker_last_seen_timestamp_seconds": Metric(
        "gauge", ("worker",), "When a worker was heard of last, in unix seconds"
    ),
    "wbengine_queue_messages": Metric("gauge", ("queue",), "Messages that wait in a queue"),
    "wbengine_build_info": Metric(
        "gauge", ("version", "python"), "Always 1; the versions are in the labels"
    ),
}

OPERATION_DURATION: Final = "messaging.client.operation.duration"
SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
PROCESS_DURATION: Final = "messaging.process.duration"

_MESSAGE: Final = ("messaging.system", "messaging.operation.name", "messaging.destination.name")

#: All those by OpenTelemetry, by name.
MESSAGING: Final[Mapping[str, Metric]] = {
    OPERATION_DURATION: Metric(
        "histogram",
        (*_MESSAGE, "messaging.operation.type", "error.type"),
        "How long sending a request took, until the broker had it",
        ADVISED,
    ),
    SENT_MESSAGES: Metric(
        "counter", (*_MESSAGE, "error.type"), "Requests that were sent, or could not be"
    ),
    CONSUMED_MESSAGES: Metric(
        "counter", _MESSAGE, "Requests, and tasks of other clients, that came to a worker"
    ),
    PROCESS_DURATION: Metric(
        "histogram",
        (*_MESSAGE, "error.type"),
        "How long a worker took to do what a request, or another client, asked for",
        ADVISED,
    ),
}
