"""The spans of a worker: one for each request, or other task, that it processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar, Final

from wbengine.telemetry import attributes, contexts, labels, tracing

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

    from wbengine import invocation
    from wbengine.engines.worker_based.jobs import Job
    from wbengine.engines.worker_based.reporting import GuestJob

__all__ = ["WorkerTracing", "configure", "is_wanted"]

_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_OTLP: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


class WorkerTracing:
    """Traces what a worker processes, as its `observer`.

    Each span is below the one that sent the request, and linked with it.  It is made in the process
    of the worker, also where tasks run in children of it; what these trace is below it.  `worker`
    and `system` are told once they are known.  Tasks that guests of the worker bring are traced
    likewise, if it is told of them (`Worker.tell_guests`).

    :raises ImportError: opentelemetry-api is not installed.
    """

    #: What a child needs, besides its tasks, for what these trace.
    IN_CHILDREN: ClassVar = (
        "wbengine.telemetry.contexts",
        "opentelemetry.trace.propagation.tracecontext",
    )

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = tracing.tracer_of(tracer_provider)
        self._spans: dict[contexts.Key, Span] = {}
        self.worker = self.system = ""

    def received(self, job: Job) -> None:
        """It may still be given back."""

    def started(self, job: Job) -> None:
        span = self._begin(job)
        self._spans[job.key] = span
        contexts.enter(job.key, tracing.below(span))

    def ended(self, job: Job, outcome: invocation.Outcome) -> None:
        span = self._pop(job)
        if span is not None:
            attributes.failed_with(span, outcome.value)
            span.end()

    def refused(self, job: Job) -> None:
        span = self._pop(job) or self._begin(job)
        attributes.failed(span, type(job.refusal).__name__)
        span.end()

    def returned(self, job: Job) -> None:
        span = self._pop(job)
        if span is not None:
            span.end()

    def given_up(self, job: Job) -> None:
        span = self._pop(job)
        if span is not None:
            attributes.failed(span, "given_up")
            span.end()

    def close(self) -> None:
        """End what is left; its task was given up."""
        for key in list(self._spans):
            span = self._spans.pop(key, None)
            contexts.leave(key)
            if span is not None:
                attributes.failed(span, "given_up")
                span.end()

    # Tasks of guests.

    def guest_began(self, job: GuestJob, system: str) -> Mapping[str, str]:
        span = self._spans.get(job.key)
        if span is None:  # else more is called for it, such as what is to be told that it failed
            found = attributes.message("process", system, job.queue, job.id, job.epoch, job.queue)
            found |= {
                "messaging.message.conversation_id": job.flow or job.id,
                attributes.TASK: job.task,
                attributes.ATTEMPT: job.attempt,
                attributes.WORKER: self.worker,
            }
            span = self._spans[job.key] = self._start(job.queue, job.headers, found)
        contexts.enter(job.key, tracing.below(span))
        return contexts.handed_on(tracing.below(span))

    def guest_ended(self, job: GuestJob, outcome: invocation.Outcome, well: bool) -> None:
        span = self._pop(job)
        if span is None:
            return
        if not (well or outcome.failed):
            attributes.failed(span, type(outcome.value).__name__)
        attributes.failed_with(span, outcome.value)
        span.end()

    def _pop(self, job: Job | GuestJob) -> Span | None:
        contexts.leave(job.key)
        return self._spans.pop(job.key, None)

    def _begin(self, job: Job) -> Span:
        receipt: Any = job.receipt
        queue = (getattr(receipt, "delivery_info", None) or {}).get("routing_key", "")
        topic = labels.of_topic(queue)
        found = attributes.message("process", self.system, topic, job.id, job.epoch, queue)
        found |= {
            attributes.FLOW_UUID: job.flow,
            attributes.ATOM_NAME: job.name,
            attributes.ATTEMPT: job.attempt,
            attributes.WORKER: self.worker,
        }
        if job.unit is not None:
            found[attributes.DIRECTION] = job.unit.action
        return self._start(topic, getattr(receipt, "headers", None) or {}, found)

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


def is_wanted() -> bool:
    """Whether the environment asks for traces, and they can be made."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get(_EXPORTER, "").strip().lower() in ("", "none"):
        return False
    try:
        tracing.tracer_of()
    except ImportError:
        return False
    return True


def configure() -> Any:
    """The provider of this process: as somebody has set it (such as `opentelemetry-instrument`), or
    a new one, with the exporters that `$OTEL_TRACES_EXPORTER` names (`otlp`).

    :raises ImportError: the SDK or an exporter is not installed; says which.
    """
    tracing.tracer_of()  # says what to install
    from opentelemetry import trace

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return trace.get_tracer_provider()
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ImportError(
            "traces would go nowhere: pip install opentelemetry-sdk, and an exporter"
        ) from None
    made = TracerProvider()
    for name in os.environ.get(_EXPORTER, "otlp").split(","):
        if name.strip().lower() not in ("", "none"):
            made.add_span_processor(BatchSpanProcessor(_exporter(name.strip().lower())))
    trace.set_tracer_provider(made)
    return made


def _exporter(name: str) -> Any:
    group = "opentelemetry_traces_exporter"
    if name == "otlp":
        spoken = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"
        )
        name = _OTLP.get(spoken, spoken)
    for point in metadata.entry_points(group=group, name=name):
        return point.load()()
    known = sorted({point.name for point in metadata.entry_points(group=group)})
    raise ImportError(
        f"no exporter of traces {name!r} is installed (${_EXPORTER}); there are: {', '.join(known)}"
    )
