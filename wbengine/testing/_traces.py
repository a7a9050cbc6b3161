"""Recorded events of a run, and their comparison with expected ones."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from wbengine import states
from wbengine.listeners import base, capturing

__all__ = ["Trace", "assert_flow_trace"]

# Weak references: the registration keeps a listener alive as long as its engine, but the listener
# refers to the engine.
_TRACES: Final[weakref.WeakKeyDictionary[Any, weakref.ref[Trace]]] = weakref.WeakKeyDictionary()


class Trace(base.Listener):
    """Records the state changes of an engine's atoms and of its flow."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        #: State changes of atoms in order, without PENDING, as texts such as `'greet SUCCESS'`.
        self.events: list[str] = []
        #: States of the flow in order.
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
    mismatch = match(parse(expected), events)
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


# Patterns of events: sequences, and sets in any order.


@dataclass(frozen=True)
class Event:
    """A single event."""

    text: str

    @functools.cached_property
    def first_events(self) -> frozenset[str]:
        """Events with which the pattern can start."""
        return frozenset((self.text,))


@dataclass(frozen=True)
class Ordered:
    """Parts in this order."""

    parts: tuple[Pattern, ...]

    @functools.cached_property
    def first_events(self) -> frozenset[str]:
        events: set[str] = set()
        for part in self.parts:
            events |= part.first_events
            if not _can_end(part):
                break
        return frozenset(events)


@dataclass(frozen=True)
class Unordered:
    """Parts in any order, interleaved; each part keeps its own order."""

    parts: tuple[Pattern, ...]

    @functools.cached_property
    def first_events(self) -> frozenset[str]:
        return frozenset().union(*(part.first_events for part in self.parts))


Pattern = Event | Ordered | Unordered

_SUCCESSFUL_STATES: Final = (states.RUNNING, states.SUCCESS)


@dataclass(frozen=True)
class Mismatch:
    """The first mismatch: the number of matching events, and the events that were expected next."""

    position: int
    expected: tuple[str, ...]


def parse(expected: Any) -> Pattern:
    """Return a pattern for text, lists, tuples and sets.

    A text is `'atom STATE'`, or `'atom'` for an atom that runs and succeeds. Lists and tuples are
    in order, sets in any order.

    :raises TypeError: if `expected` contains anything else.
    """
    if isinstance(expected, str):
        _, space, state = expected.rpartition(" ")
        if space and state in states.ATOM_STATES:
            return Event(expected)
        return Ordered(tuple(Event(f"{expected} {each}") for each in _SUCCESSFUL_STATES))
    if isinstance(expected, AbstractSet):
        return Unordered(tuple(parse(part) for part in sorted(expected, key=repr)))
    if isinstance(expected, Sequence):
        return Ordered(tuple(map(parse, expected)))
    raise TypeError(f"Expected trace must consist of str, list, tuple and set, got {expected!r}")


def match(pattern: Pattern, events: Sequence[str]) -> Mismatch | None:
    """Compare the events with the pattern. Return None if they match."""
    candidates = [pattern]
    for position, event in enumerate(events):
        remaining = [rest for each in candidates for rest in _advance(each, event)]
        if not remaining:
            return Mismatch(position, _expected(candidates))
        # Mostly there is only one: large patterns are slow to compare.
        candidates = remaining if len(remaining) == 1 else list(dict.fromkeys(remaining))
    if any(map(_can_end, candidates)):
        return None
    return Mismatch(len(events), _expected(candidates))


def _advance(pattern: Pattern, event: str) -> Iterator[Pattern]:
    """Yield the remaining patterns for each way in which `event` can be the next one."""
    if isinstance(pattern, Event):
        if pattern.text == event:
            yield Ordered(())
    elif isinstance(pattern, Ordered):
        for number, part in enumerate(pattern.parts):
            for rest in _advance(part, event) if event in part.first_events else ():
                yield Ordered((*_non_empty(rest), *pattern.parts[number + 1 :]))
            if not _can_end(part):
                return
    else:
        for number, part in enumerate(pattern.parts):
            for rest in _advance(part, event) if event in part.first_events else ():
                before_and_after = pattern.parts[:number], pattern.parts[number + 1 :]
                yield Unordered((*before_and_after[0], *_non_empty(rest), *before_and_after[1]))


def _non_empty(pattern: Pattern) -> tuple[Pattern, ...]:
    return (pattern,) if isinstance(pattern, Event) or pattern.parts else ()


def _can_end(pattern: Pattern) -> bool:
    return not isinstance(pattern, Event) and all(map(_can_end, pattern.parts))


def _expected(patterns: Sequence[Pattern]) -> tuple[str, ...]:
    return tuple(sorted({text for pattern in patterns for text in pattern.first_events}))
