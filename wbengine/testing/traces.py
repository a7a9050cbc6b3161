"""What happened in a run, and whether that was what was expected."""

from __future__ import annotations

import weakref
from typing import Any, Final

from wbengine import states
from wbengine.listeners import base, capturing
from wbengine.testing import patterns

__all__ = ["Trace", "assert_flow_trace"]

# Who is registered lives as long as its engine, which it refers to.
_TRACES: Final[weakref.WeakKeyDictionary[Any, weakref.ref[Trace]]] = weakref.WeakKeyDictionary()


class Trace(base.Listener):
    """Writes down what happens to the atoms of an engine: `events`, such as `'greet SUCCESS'`, in
    the order told; and to the flow: `flow`, a list of states.

    That an atom is PENDING (again) is not written down.
    """

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.events: list[str] = []
        self.flow: list[str] = []

    @classmethod
    def of(cls, engine: Any) -> Trace:
        """The one of an engine, which listens from now on, if it did not before."""
        found = _known(engine)
        if found is None:
            found = cls(engine)
            found.register()
            _TRACES[engine] = weakref.ref(found)
        return found

    def _flow_receiver(self, state: str, details: base.Details) -> None:
        self.flow.append(state)

    def _task_receiver(self, state: str, details: base.Details) -> None:
        self._note(details["task_name"], state)

    def _retry_receiver(self, state: str, details: base.Details) -> None:
        self._note(details["retry_name"], state)

    def _note(self, name: str, state: str) -> None:
        if state != states.PENDING:
            self.events.append(f"{name} {state}")


def assert_flow_trace(traced: Any, expected: Any) -> None:
    """See that just this happened, and nothing else.

    `traced` is an engine made by the fixture `wbe_engine` (or given to `Trace.of` before it ran), a
    `Trace`, or a `CaptureListener`.  In `expected`, a text is `'atom STATE'`, or `'atom'` for one
    that ran and succeeded; lists and tuples are in order, the members of sets in any order, also
    mixed.

    :raises AssertionError: something else happened; shows all of it, and where it differs.
    :raises TypeError: `traced` is none of these, or nobody listened.
    """
    __tracebackhide__ = True
    events = _events_of(traced)
    wrong = patterns.match(patterns.read(expected), events)
    if wrong is None:
        return
    lines = ["the flow went another way:", *(f"  {event}" for event in events)]
    wanted = " or ".join(wrong.expected) or "nothing more"
    if wrong.place < len(events):
        lines[wrong.place + 1] += f"   <-- expected: {wanted}"
    else:
        lines.append(f"  (nothing more)   <-- expected: {wanted}")
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
    found = _known(traced)
    if found is None:
        raise TypeError(f"nobody listened to {traced!r:.100}: call Trace.of(engine) before it runs")
    return found.events


def _known(engine: Any) -> Trace | None:
    try:
        found = _TRACES.get(engine)
    except TypeError:  # nothing that can be referred to
        return None
    return None if found is None else found()
