"""OpenTelemetry traces of flows across engines and workers, and metrics of their messages.

Each run of a flow is a span. Its children are the executions and reversions of atoms. Their
children are the sending of requests, whose children are the processing on a worker. Spans contain
no values, arguments or error messages.

Only the package opentelemetry-api is needed; the configured SDK determines where data is exported.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

import wbengine
from wbengine import states
from wbengine._calls import invocation
from wbengine._imports import installing
from wbengine.listeners import base
from wbengine.telemetry import _attributes, _contexts, _instruments, _labels

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from wbengine.engines.worker_based._messages import envelope as env
    from wbengine.engines.worker_based._requests.request_state import TrackedRequest

__all__ = ["META_KEY", "FlowTracing", "context_of", "instrument", "tracer_of"]

#: Key of a flow's metadata with the `traceparent` of its first run.
META_KEY: Final = _contexts.TRACEPARENT

_DIRECTIONS: Final = {states.RUNNING: invocation.EXECUTE, states.REVERTING: invocation.REVERT}
_FLOW_ENDS: Final = frozenset({states.SUCCESS, states.FAILURE, states.REVERTED, states.SUSPENDED})


def tracer_of(provider: TracerProvider | None = None) -> Tracer:
    """Return the tracer of a provider.

    :raises ImportError: if opentelemetry-api is not installed.
    """
    try:
        from opentelemetry import trace
    except ImportError:
        raise ImportError(installing.needs("tracing", "opentelemetry-api", "otel")) from None
    return trace.get_tracer("wbengine", wbengine.__version__, provider)


def instrument(
    engine: Any,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> FlowTracing:
    """Trace the runs of an engine and measure its messages, until `uninstrument` of the result.

    Idempotent: a second call has no effect. Spans that tasks create are children of the span of
    their task, also in child processes of the engine or the worker.

    :param tracer_provider: the provider of spans (default: that of the process).
    :param meter_provider: the provider of metrics (default: that of the process).
    :raises ImportError: if opentelemetry-api is not installed.
    :raises TypeError: if `engine` is not an engine.
    """
    with _instrument_lock:
        reference = _INSTRUMENTED.get(engine) if hasattr(engine, "atom_notifier") else None
        tracing = reference() if reference is not None else None
        if tracing is None:
            tracer = tracer_of(tracer_provider)
            tracing = FlowTracing(engine, tracer, _instruments.Instruments(meter_provider))
            _INSTRUMENTED[engine] = weakref.ref(tracing)
        tracing.register()
    return tracing


class FlowTracing(base.Listener):
    """The spans of one engine; see `instrument`. Thread-safe."""

    def __init__(self, engine: Any, tracer: Tracer, measures: _instruments.Instruments) -> None:
        super().__init__(engine)
        self._tracer = tracer
        self._instruments = measures
        self._lock = threading.Lock()
        self._run: Span | None = None
        # Attributes of all spans of the flow.
        self._flow: dict[str, Any] = {}
        self._atoms: dict[_contexts.Key, Span] = {}
        self._sends: dict[str, _instruments.Operation] = {}
        executor = engine.executor
        self._executor: Any = executor if hasattr(executor, "add_observer") else None

    def deregister(self) -> None:
        super().deregister()
        self._end_run(None)
        with _instrument_lock:
            reference = _INSTRUMENTED.get(self._engine)
            if reference is not None and reference() is self:
                del _INSTRUMENTED[self._engine]

    #: Stop tracing, and end all open spans.
    uninstrument = deregister

    # Flows.

    def _flow_receiver(self, state: str, details: base.Details) -> None:
        if state == states.RUNNING:
            self._begin_run(details["flow_name"], details["flow_uuid"])
        elif state in _FLOW_ENDS:
            self._end_run(state)

    def _begin_run(self, name: str, uuid: str) -> None:
        from opentelemetry import trace

        self._end_run(None)
        # Observe it only during a run, because engines may share the executor.
        if self._executor is not None:
            self._executor.add_observer(self)
        storage = self._engine.storage
        first = _parse_traceparent(storage.flow_meta.get(META_KEY))
        links = [trace.Link(first)] if first is not None else []
        self._flow = _attributes.flow(uuid, name)
        span = self._tracer.start_span(
            _labels.text(f"flow {name}"), attributes=self._flow, links=links
        )
        self._run = span
        if first is None and span.get_span_context().is_valid:
            storage.update_flow_metadata(
                {META_KEY: _contexts.to_headers(context_of(span))[META_KEY]}
            )

    def _end_run(self, state: str | None) -> None:
        """End the span of the run; `state` is None if unknown."""
        if self._executor is not None:
            self._executor.remove_observer(self)
        with self._lock:
            open_spans: list[Any] = [*self._sends.values(), *self._atoms.values()]
            keys = list(self._atoms)
            self._sends.clear()
            self._atoms.clear()
            span, self._run = self._run, None
        for key in keys:
            _contexts.leave(key)
        for span_or_operation in open_spans:
            span_or_operation.end()
        if span is None:
            return
        if state is not None:
            span.set_attribute(_attributes.FLOW_STATE, state)
        if state in (states.FAILURE, states.REVERTED):
            _attributes.mark_failed(span, "error")
            storage = self._engine.storage
            _attributes.mark_failed_with(
                span, storage.get_revert_failures() or storage.get_execute_failures()
            )
        span.end()

    def _task_receiver(self, state: str, details: base.Details) -> None:
        self._on_atom_state(details["task_name"], details["task_uuid"], state, details)

    def _retry_receiver(self, state: str, details: base.Details) -> None:
        self._on_atom_state(details["retry_name"], details["retry_uuid"], state, details)

    def _on_atom_state(self, name: str, uuid: str, state: str, details: base.Details) -> None:
        key = uuid, details["attempt"]
        if state in _DIRECTIONS:
            self._span_of_attempt(key, name, _DIRECTIONS[state])
            return
        if state in (states.RETRYING, states.IGNORE) and self._run is not None:
            self._run.add_event(state.lower(), {_attributes.ATOM_NAME: _labels.text(name)})
        with self._lock:
            span = self._atoms.pop(key, None)
        _contexts.leave(key)
        if span is None:
            return
        span.set_attribute(_attributes.ATOM_STATE, state)
        if details.get("worker"):
            span.set_attribute(_attributes.WORKER, details["worker"])
        _attributes.mark_failed_with(span, details.get("result"))
        span.end()

    def _span_of_attempt(self, key: _contexts.Key, name: str, direction: str) -> Span | None:
        with self._lock:
            run, span = self._run, self._atoms.get(key)
            if span is not None or run is None:
                return span
            name = _labels.text(name)
            span = self._atoms[key] = self._tracer.start_span(
                f"{direction} {name}",
                context_of(run),
                attributes={
                    **self._flow,
                    _attributes.ATOM_UUID: key[0],
                    _attributes.ATOM_NAME: name,
                    _attributes.DIRECTION: direction,
                    _attributes.ATTEMPT: key[1],
                },
            )
        _contexts.enter(key, context_of(span))
        return span

    # Requests.

    def publishing(self, tracked: TrackedRequest, envelope: env.Envelope) -> None:
        """Start a span, and add its context to the headers of the request."""
        from opentelemetry import propagate, trace

        call = tracked.invocation
        if call.flow_uuid != self._engine.storage.flow_uuid or META_KEY in envelope.headers:
            return  # The request belongs to another engine, or this is a resend.
        parent = self._span_of_attempt((call.uuid, call.attempt), call.task.name, call.action)
        if parent is None:
            return
        topic, system = _labels.of_topic(tracked.queue), self._executor.system
        span = self._tracer.start_span(
            f"send {topic}",
            context_of(parent),
            kind=trace.SpanKind.PRODUCER,
            attributes={
                **_attributes.message(
                    "send", system, topic, tracked.id, tracked.epoch, envelope.routing_key
                ),
                _attributes.ATOM_NAME: _labels.text(call.task.name),
            },
        )  # fmt: skip
        propagate.inject(envelope.headers, context=context_of(span))
        with self._lock:
            previous = self._sends.pop(tracked.id, None)
            self._sends[tracked.id] = self._instruments.start_sending(span, system, topic)
        if previous is not None:
            previous.end()

    def published(self, tracked: TrackedRequest, error: BaseException | None) -> None:
        """End the span: the broker has the request, or rejected it."""
        with self._lock:
            sending = self._sends.pop(tracked.id, None)
        if sending is not None:
            sending.end(None if error is None else type(error).__name__)

    def settled(self, tracked: TrackedRequest, outcome: invocation.Outcome, waited: float) -> None:
        """End the span if the request ended before it was published."""
        if tracked.id in self._sends:
            self.published(tracked, None)


# Weak references: the registration of a listener keeps it alive as long as its engine, and a strong
# reference to the listener would keep the engine alive.
_INSTRUMENTED: Final[weakref.WeakKeyDictionary[Any, weakref.ref[FlowTracing]]] = (
    weakref.WeakKeyDictionary()
)
_instrument_lock: Final = threading.Lock()


def context_of(span: Span) -> Context:
    """Return a context that contains only this span, and no baggage."""
    from opentelemetry import context, trace

    return trace.set_span_in_context(span, context.Context())


def _parse_traceparent(traceparent: Any) -> Any:
    if not isinstance(traceparent, str):
        return None
    from opentelemetry import trace

    span = trace.get_current_span(
        _contexts.from_headers({META_KEY: traceparent})
    ).get_span_context()
    return span if span.is_valid else None
