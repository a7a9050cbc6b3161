"""Spans of a worker, one for each task that it processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wbengine.telemetry import _attributes, _contexts, _instruments, _labels, tracing

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from wbengine._calls import invocation
    from wbengine.engines.worker_based._worker_side.jobs import Job
    from wbengine.engines.worker_based._worker_side.reporting import ForeignJob

__all__ = ["WorkerTracing"]

#: Error type of a task whose worker stopped before the task ended.
_GIVEN_UP: Final = "given_up"


class WorkerTracing:
    """Traces and measures the tasks of a worker, as one of its `observers`.

    Each span is a child of the span that sent the request, and linked with it. The worker process
    creates it, also for tasks that run in child processes. Spans that tasks create are its
    children. Set `worker` and `system` before the first request. `Worker.observe_tasks` adds tasks
    from other sources, such as clients of Celery.

    :raises ImportError: if opentelemetry-api is not installed.
    """

    #: Modules that child processes need.
    IN_CHILDREN: ClassVar = (
        "wbengine.telemetry._contexts",
        "opentelemetry.trace.propagation.tracecontext",
    )

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._tracer = tracing.tracer_of(tracer_provider)
        self._instruments = _instruments.Instruments(meter_provider)
        self._running: dict[_contexts.Key, _instruments.Operation] = {}
        self.worker = self.system = ""

    def received(self, job: Job) -> None:
        """Count the message. The request may still be requeued."""
        self._instruments.count_consumed(self.system, _topic(job))

    def started(self, job: Job) -> None:
        self._running[job.key] = operation = self._start_operation(job)
        _contexts.enter(job.key, tracing.context_of(operation.span))

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        operation = self._pop(job)
        if operation is not None:
            operation.end(_attributes.error_type(outcome.value))

    def refused(self, job: Job) -> None:
        operation = self._pop(job) or self._start_operation(job)
        operation.end(type(job.refusal).__name__)

    def returned(self, job: Job) -> None:
        operation = self._pop(job)
        if operation is not None:
            operation.end()

    def given_up(self, job: Job) -> None:
        operation = self._pop(job)
        if operation is not None:
            operation.end(_GIVEN_UP)

    def close(self) -> None:
        """End the spans of tasks that are still running."""
        for key in list(self._running):
            operation = self._running.pop(key, None)
            _contexts.leave(key)
            if operation is not None:
                operation.end(_GIVEN_UP)

    # Tasks from other sources.

    def task_began(self, job: ForeignJob, system: str) -> Mapping[str, str]:
        operation = self._running.get(job.key)
        # Otherwise, this call belongs to the same task, such as its error callback.
        if operation is None:
            operation = self._running[job.key] = self._start_foreign_operation(job, system)
            self._instruments.count_consumed(system, job.queue)
        context = tracing.context_of(operation.span)
        _contexts.enter(job.key, context)
        return _contexts.inject_headers(context)

    def task_ended(self, job: ForeignJob, outcome: invocation.Outcome, well: bool) -> None:
        operation = self._pop(job)
        if operation is not None:
            value = outcome.value
            kind = None if well else type(value).__name__
            operation.end(_attributes.error_type(value) or kind)

    def _pop(self, job: Job | ForeignJob) -> _instruments.Operation | None:
        _contexts.leave(job.key)
        return self._running.pop(job.key, None)

    def _start_operation(self, job: Job) -> _instruments.Operation:
        receipt: Any = job.receipt
        topic, system = _topic(job), self.system
        attrs = _attributes.message("process", system, topic, job.id, job.epoch, _queue(job))
        attrs |= {
            _attributes.FLOW_UUID: _labels.text(job.flow),
            _attributes.ATOM_NAME: _labels.text(job.name),
            _attributes.ATTEMPT: job.attempt,
            _attributes.WORKER: self.worker,
        }
        if job.unit is not None:
            attrs[_attributes.DIRECTION] = job.unit.action
        span = self._start_span(topic, getattr(receipt, "headers", None) or {}, attrs)
        return self._instruments.start_processing(span, system, topic)

    def _start_foreign_operation(self, job: ForeignJob, system: str) -> _instruments.Operation:
        attrs = _attributes.message("process", system, job.queue, job.id, job.epoch, job.queue)
        attrs |= {
            _attributes.CONVERSATION: _labels.text(job.flow or job.id),
            _attributes.TASK: _labels.text(job.task),
            _attributes.ATTEMPT: job.attempt,
            _attributes.WORKER: self.worker,
        }
        span = self._start_span(job.queue, job.headers, attrs)
        return self._instruments.start_processing(span, system, job.queue)

    def _start_span(self, topic: str, headers: Mapping[str, Any], attrs: dict[str, Any]) -> Span:
        from opentelemetry import context, propagate, trace

        parent = propagate.extract(headers, context.Context())
        sender = trace.get_current_span(parent).get_span_context()
        return self._tracer.start_span(
            f"process {topic}",
            parent,
            kind=trace.SpanKind.CONSUMER,
            attributes=attrs,
            links=[trace.Link(sender)] if sender.is_valid else [],
        )


def _queue(job: Job) -> str:
    return str((getattr(job.receipt, "delivery_info", None) or {}).get("routing_key", ""))


def _topic(job: Job) -> str:
    return _labels.of_topic(_queue(job))
