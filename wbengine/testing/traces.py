"""Recorded events of a run, and their comparison with expected ones."""

from __future__ import annotations

import weakref
from typing import Any, Final

from wbengine import states
from wbengine.listeners import base, capturing
from wbengine.testing import patterns

__all__ = ["Trace", "assert_flow_trace"]

# Weak references: the registration keeps a listener alive as long as its engine, but the listener
# refers to the engine.
_TRACES: Final[weakref.WeakKeyDictionary[Any, weakref.ref[Trace]]] = weakref.WeakKeyDictionary()


class Trace(base.Listener):
    """Records the state changes of an engine's atoms and of its flow.

    `events` contains texts such as `'greet SUCCESS'`, in order, without PENDING; `flow` contains
    the states of the flow.
    """

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.events: list[str] = []
        self.flow: list[str] = []

    @classmethod
    def of(cls, engine: Any) -> Trace:
        """Return the trace of an engine. The first call starts it."""
        trace = _trace_of(engine)
        if trace is None:
            trace = cls(engine)
            trace.register()
            _TRACES[engine] = weakref.ref(trace)
        return trace

    def _flow_receiver(self, state: str, details: base.Details) -> None:
        self.flow.append(state)

    def _task_receiver(self, state: str, details: base.Details) -> None:
        self._record(details["task_name"], state)

    def _retry_receiver(self, state: str, details: base.Details) -> None:
        self._record(details["retry_name"], state)

    def _record(self, name: str, state: str) -> None:
        if state != states.PENDING:
            self.events.append(f"{name} {state}")


def assert_flow_trace(traced: Any, expected: Any) -> None:
    """Assert that exactly the expected events occurred.

    :param traced: an engine of the fixture `wbe_engine` (or one that was passed to `Trace.of`
        before the run), a `Trace` or a `CaptureListener`.
    :param expected: a text `'atom STATE'`, or `'atom'` for an atom that ran and succeeded. Lists
        and tuples are in order, members of sets in any order. They can be nested.
    :raises AssertionError: if the events differ; the message contains all events and the
        difference.
    :raises TypeError: if `traced` is anything else, or was not recorded.
    """
    __tracebackhide__ = True
    events = _events_of(traced)
    mismatch = patterns.match(patterns.parse(expected), events)
    if mismatch is None:
        return
    lines = ["the trace differs:", *(f"  {event}" for event in events)]
    alternatives = " or ".join(mismatch.expected) or "the end"
    if mismatch.position < len(events):
        lines[mismatch.position + 1] += f"   <-- expected: {alternatives}"
    else:
        lines.append(f"  (the end)   <-- expected: {alternatives}")
    raise AssertionError("\n".join(lines))


def _events_of(traced: Any) -> list[str]:
    if isinstance(traced, Trace):
        return traced.events
    if isinstance(traced, capturing.CaptureListener):
        return [
            f"{details[f'{kind}_name']} {state}"
            for kind, state, details in traced.values
            if kind != traced.FLOW and state != states.PENDING
        ]
    trace = _trace_of(traced)
    if trace is None:
        raise TypeError(f"{traced!r:.100} has no trace; call Trace.of(engine) before the run")
    return trace.events


def _trace_of(engine: Any) -> Trace | None:
    try:
        reference = _TRACES.get(engine)
    except TypeError:  # Not an engine: no weak reference is possible.
        return None
    return None if reference is None else reference()
