"""Traces by OpenTelemetry: one for each run of a flow, across its engine and its workers; and what
it measures of the messages between them.

A run is a span; below it there is one for each execution and reversion of an atom, below that the
sending of its request, and below that its processing on a worker.  Values, arguments and messages
of errors are in none of them.

This needs the package opentelemetry-api only; where all that goes is up to whoever configures the
SDK.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

import wbengine
from wbengine import invocation, states
from wbengine.listeners import base
from wbengine.telemetry import attributes, contexts, instruments, labels

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from wbengine.engines.worker_based.messages import envelope as env
    from wbengine.engines.worker_based.requests.tracked import TrackedRequest

__all__ = ["META", "FlowTracing", "below", "instrument", "tracer_of"]

#: Where a flow keeps the `traceparent` of its first run, in its meta.
META: Final = contexts.TRACEPARENT

_BEGUN: Final = {states.RUNNING: invocation.EXECUTE, states.REVERTING: invocation.REVERT}
_ENDS: Final = frozenset({states.SUCCESS, states.FAILURE, states.REVERTED, states.SUSPENDED})


def tracer_of(provider: TracerProvider | None = None) -> Tracer:
    """What makes the spans.

    :raises ImportError: opentelemetry-api is not installed.
    """
    try:
        from opentelemetry import trace
    except ImportError:
        raise ImportError("traces need opentelemetry-api: pip install 'wbengine[otel]'") from None
    return trace.get_tracer("wbengine", wbengine.__version__, provider)


def instrument(
    engine: Any,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> FlowTracing:
    """Trace the runs of an engine, and measure what it sends, until `uninstrument` of what is
    returned; idempotent, with the providers of the first call.

    `tracer_provider`, `meter_provider`: without one, that of the process.  What the bodies of tasks
    trace themselves is found below their spans, also where they run in children of the process that
    made these, an engine's or a worker's.

    :raises ImportError: opentelemetry-api is not installed.
    :raises TypeError: `engine` is none.
    """
    with _instrumenting:
        known = _INSTRUMENTED.get(engine) if hasattr(engine, "atom_notifier") else None
        found = known() if known is not None else None
        if found is None:
            tracer = tracer_of(tracer_provider)
            found = FlowTracing(engine, tracer, instruments.Instruments(meter_provider))
            _INSTRUMENTED[engine] = weakref.ref(found)
        found.register()
    return found


class FlowTracing(base.Listener):
    """Makes the spans of one engine; see `instrument`.  Thread-safe."""

    def __init__(self, engine: Any, tracer: Tracer, measures: instruments.Instruments) -> None:
        super().__init__(engine)
        self._tracer = tracer
        self._measures = measures
        self._lock = threading.Lock()
        self._run: Span | None = None
        # What all spans say of the flow.
        self._flow: dict[str, Any] = {}
        self._atoms: dict[contexts.Key, Span] = {}
        self._sends: dict[str, instruments.Operation] = {}
        executor = engine.executor
        self._executor: Any = executor if hasattr(executor, "add_observer") else None

    def deregister(self) -> None:
        super().deregister()
        self._end_run(None)
        with _instrumenting:
            known = _INSTRUMENTED.get(self._engine)
            if known is not None and known() is self:
                del _INSTRUMENTED[self._engine]

    #: Trace no more; what still runs ends here, as far as anybody is told.
    uninstrument = deregister

    # The flow.

    def _flow_receiver(self, state: str, details: base.Details) -> None:
        if state == states.RUNNING:
            self._begin_run(details["flow_name"], details["flow_uuid"])
        elif state in _ENDS:
            self._end_run(state)

    def _begin_run(self, name: str, uuid: str) -> None:
        from opentelemetry import trace

        self._end_run(None)
        if self._executor is not None:  # for as long as it runs: others use it, too
            self._executor.add_observer(self)
        storage = self._engine.storage
        first = _context_of(storage.flow_meta.get(META))
        links = [trace.Link(first)] if first is not None else []
        self._flow = attributes.flow(uuid, name)
        span = self._tracer.start_span(
            labels.text(f"flow {name}"), attributes=self._flow, links=links
        )
        self._run = span
        if first is None and span.get_span_context().is_valid:
            storage.update_flow_metadata({META: contexts.carried(below(span))[META]})

    def _end_run(self, state: str | None) -> None:
        """It ended in this state; None: nobody is told how."""
        if self._executor is not None:
            self._executor.remove_observer(self)
        with self._lock:
            left: list[Any] = [*self._sends.values(), *self._atoms.values()]
            keys = list(self._atoms)
            self._sends.clear()
            self._atoms.clear()
            span, self._run = self._run, None
        for key in keys:
            contexts.leave(key)
        for each in left:
            each.end()
        if span is None:
            return
        if state is not None:
            span.set_attribute(attributes.FLOW_STATE, state)
        if state in (states.FAILURE, states.REVERTED):
            attributes.failed(span, "error")
            storage = self._engine.storage
            attributes.failed_with(
                span, storage.get_revert_failures() or storage.get_execute_failures()
            )
        span.end()

    # Atoms.

    def _task_receiver(self, state: str, details: base.Details) -> None:
        self._atom(details["task_name"], details["task_uuid"], state, details)

    def _retry_receiver(self, state: str, details: base.Details) -> None:
        self._atom(details["retry_name"], details["retry_uuid"], state, details)

    def _atom(self, name: str, uuid: str, state: str, details: base.Details) -> None:
        key = uuid, details["attempt"]
        if state in _BEGUN:
            self._span(key, name, _BEGUN[state])
            return
        if state in (states.RETRYING, states.IGNORE) and self._run is not None:
            self._run.add_event(state.lower(), {attributes.ATOM_NAME: labels.text(name)})
        with self._lock:
            span = self._atoms.pop(key, None)
        contexts.leave(key)
        if span is None:
            return
        span.set_attribute(attributes.ATOM_STATE, state)
        if details.get("worker"):
            span.set_attribute(attributes.WORKER, details["worker"])
        attributes.failed_with(span, details.get("result"))
        span.end()

    def _span(self, key: contexts.Key, name: str, direction: str) -> Span | None:
        """That of an attempt: whoever hears of it first begins it."""
        with self._lock:
            run, span = self._run, self._atoms.get(key)
            if span is not None or run is None:
                return span
            name = labels.text(name)
            span = self._atoms[key] = self._tracer.start_span(
                f"{direction} {name}",
                below(run),
                attributes={
                    **self._flow,
                    attributes.ATOM_UUID: key[0],
                    attributes.ATOM_NAME: name,
                    attributes.DIRECTION: direction,
                    attributes.ATTEMPT: key[1],
                },
            )
        contexts.enter(key, below(span))
        return span

    # Requests.

    def publishing(self, tracked: TrackedRequest, envelope: env.Envelope) -> None:
        """Send the context of the request with it."""
        from opentelemetry import propagate, trace

        call = tracked.invocation
        if call.flow_uuid != self._engine.storage.flow_uuid or META in envelope.headers:
            return  # of another engine, or a second try
        above = self._span((call.uuid, call.attempt), call.task.name, call.action)
        if above is None:
            return
        topic, system = labels.of_topic(tracked.queue), self._executor.system
        span = self._tracer.start_span(
            f"send {topic}",
            below(above),
            kind=trace.SpanKind.PRODUCER,
            attributes={
                **attributes.message(
                    "send", system, topic, tracked.id, tracked.epoch, envelope.routing_key
                ),
                attributes.ATOM_NAME: labels.text(call.task.name),
            },
        )  # fmt: skip
        propagate.inject(envelope.headers, context=below(span))
        with self._lock:
            before = self._sends.pop(tracked.id, None)
            self._sends[tracked.id] = self._measures.sending(span, system, topic)
        if before is not None:
            before.end()

    def published(self, tracked: TrackedRequest, error: BaseException | None) -> None:
        """The broker has it."""
        with self._lock:
            sending = self._sends.pop(tracked.id, None)
        if sending is not None:
            sending.end(None if error is None else type(error).__name__)

    def settled(self, tracked: TrackedRequest, outcome: invocation.Outcome, waited: float) -> None:
        """It is not sent any more, if it ever was."""
        if tracked.id in self._sends:
            self.published(tracked, None)


# Who is registered lives as long as its engine, which it refers to.
_INSTRUMENTED: Final[weakref.WeakKeyDictionary[Any, weakref.ref[FlowTracing]]] = (
    weakref.WeakKeyDictionary()
)
_instrumenting: Final = threading.Lock()


def below(span: Span) -> Context:
    """The context of what is below a span: nothing else is in it, such as somebody's baggage."""
    from opentelemetry import context, trace

    return trace.set_span_in_context(span, context.Context())


def _context_of(traceparent: Any) -> Any:
    """The span that a flow remembers, if it does."""
    if not isinstance(traceparent, str):
        return None
    from opentelemetry import trace

    span = trace.get_current_span(contexts.read({META: traceparent})).get_span_context()
    return span if span.is_valid else None
