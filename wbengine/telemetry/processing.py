"""The spans of a worker: one for each request, or other task, that it processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wbengine.telemetry import attributes, contexts, instruments, labels, tracing

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

    from wbengine import invocation
    from wbengine.engines.worker_based.worker_side.jobs import Job
    from wbengine.engines.worker_based.worker_side.reporting import ForeignJob

__all__ = ["WorkerTracing"]

#: What stands for the kind of an error where a worker ended before its task did.
_GIVEN_UP: Final = "given_up"


class WorkerTracing:
    """Traces and measures what a worker processes, as one of its `observers`.

    Each span is below the one that sent the request, and linked with it.  It is made in the process
    of the worker, also where tasks run in children of it; what these trace is below it.  `worker`
    and `system` are told once they are known.  Tasks of other sources of the worker are
    traced likewise, if it is told of them (`Worker.observe_tasks`).

    :raises ImportError: opentelemetry-api is not installed.
    """

    #: What a child needs, besides its tasks, for what these trace.
    IN_CHILDREN: ClassVar = (
        "wbengine.telemetry.contexts",
        "opentelemetry.trace.propagation.tracecontext",
    )

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._tracer = tracing.tracer_of(tracer_provider)
        self._measures = instruments.Instruments(meter_provider)
        self._running: dict[contexts.Key, instruments.Operation] = {}
        self.worker = self.system = ""

    def received(self, job: Job) -> None:
        """It may still be given back."""
        self._measures.consumed(self.system, _topic(job))

    def started(self, job: Job) -> None:
        self._running[job.key] = made = self._begin(job)
        contexts.enter(job.key, tracing.below(made.span))

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        made = self._pop(job)
        if made is not None:
            made.end(attributes.error_of(outcome.value))

    def refused(self, job: Job) -> None:
        made = self._pop(job) or self._begin(job)
        made.end(type(job.refusal).__name__)

    def returned(self, job: Job) -> None:
        made = self._pop(job)
        if made is not None:
            made.end()

    def given_up(self, job: Job) -> None:
        made = self._pop(job)
        if made is not None:
            made.end(_GIVEN_UP)

    def close(self) -> None:
        """End what is left; its task was given up."""
        for key in list(self._running):
            made = self._running.pop(key, None)
            contexts.leave(key)
            if made is not None:
                made.end(_GIVEN_UP)

    # Tasks of other sources.

    def task_began(self, job: ForeignJob, system: str) -> Mapping[str, str]:
        made = self._running.get(job.key)
        if made is None:  # else more is called for it, such as what is to be told that it failed
            made = self._running[job.key] = self._begin_for(job, system)
            self._measures.consumed(system, job.queue)
        context = tracing.below(made.span)
        contexts.enter(job.key, context)
        return contexts.handed_on(context)

    def task_ended(self, job: ForeignJob, outcome: invocation.Outcome, well: bool) -> None:
        made = self._pop(job)
        if made is not None:
            value = outcome.value
            kind = None if well else type(value).__name__
            made.end(attributes.error_of(value) or kind)

    def _pop(self, job: Job | ForeignJob) -> instruments.Operation | None:
        contexts.leave(job.key)
        return self._running.pop(job.key, None)

    def _begin(self, job: Job) -> instruments.Operation:
        receipt: Any = job.receipt
        topic, system = _topic(job), self.system
        found = attributes.message("process", system, topic, job.id, job.epoch, _queue(job))
        found |= {
            attributes.FLOW_UUID: labels.text(job.flow),
            attributes.ATOM_NAME: labels.text(job.name),
            attributes.ATTEMPT: job.attempt,
            attributes.WORKER: self.worker,
        }
        if job.unit is not None:
            found[attributes.DIRECTION] = job.unit.action
        span = self._start(topic, getattr(receipt, "headers", None) or {}, found)
        return self._measures.processing(span, system, topic)

    def _begin_for(self, job: ForeignJob, system: str) -> instruments.Operation:
        found = attributes.message("process", system, job.queue, job.id, job.epoch, job.queue)
        found |= {
            attributes.CONVERSATION: labels.text(job.flow or job.id),
            attributes.TASK: labels.text(job.task),
            attributes.ATTEMPT: job.attempt,
            attributes.WORKER: self.worker,
        }
        span = self._start(job.queue, job.headers, found)
        return self._measures.processing(span, system, job.queue)

    def _start(self, place: str, headers: Mapping[str, Any], found: dict[str, Any]) -> Span:
        """A span below the one that `headers` tell of, if they do."""
        from opentelemetry import context, propagate, trace

        above = propagate.extract(headers, context.Context())
        sender = trace.get_current_span(above).get_span_context()
        return self._tracer.start_span(
            f"process {place}",
            above,
            kind=trace.SpanKind.CONSUMER,
            attributes=found,
            links=[trace.Link(sender)] if sender.is_valid else [],
        )


def _queue(job: Job) -> str:
    return str((getattr(job.receipt, "delivery_info", None) or {}).get("routing_key", ""))


def _topic(job: Job) -> str:
    return labels.of_topic(_queue(job))
