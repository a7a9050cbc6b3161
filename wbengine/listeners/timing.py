"""Listeners that measure durations and record times."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from wbengine import exceptions, states
from wbengine.listeners import base

__all__ = ["DurationListener", "EventTimeListener", "PrintingDurationListener"]

LOG: Final = logging.getLogger(__name__)

STARTING_STATES: Final = frozenset({states.RUNNING, states.REVERTING})
FINISHED_STATES: Final = frozenset(base.FINISH_STATES)
WATCH_STATES: Final = FINISHED_STATES | STARTING_STATES | {states.PENDING}

_TASK: Final = "task"
_FLOW: Final = "flow"


class DurationListener(base.Listener):
    """Stores the duration of each task and of the flow in seconds, as `duration` in their metadata.

    For a task, this is the runtime that its worker reported, or else the time between the two state
    changes. Only the latest run or revert of a task counts.
    """

    def __init__(self, engine: Any) -> None:
        super().__init__(engine, WATCH_STATES, WATCH_STATES, ())
        self._since: dict[str, dict[str, float]] = {_TASK: {}, _FLOW: {}}

    def deregister(self) -> None:
        """Stop listening. Log a warning about tasks and flows that did not end."""
        super().deregister()
        for kind, since in self._since.items():
            if since:
                LOG.warning(
                    "%s %s(s) did not enter any of the states %s",
                    len(since),
                    kind,
                    ", ".join(sorted(FINISHED_STATES)),
                )
            since.clear()

    def _receive(self, kind: str, state: str, details: base.Details) -> None:
        name = details[f"{kind}_name"]
        if state in STARTING_STATES:
            self._since[kind][name] = time.monotonic()
            self._record_start(kind, name)
            return
        began = self._since[kind].pop(name, None)
        withdrawn = kind == _TASK and "result" not in details
        if began is None or state == states.PENDING or withdrawn:
            return
        started, ended = details.get("started"), details.get("ended")
        if started is None or ended is None:
            started, ended = began, time.monotonic()
        self._record_ending(max(0.0, ended - started), kind, name)

    def _record_start(self, kind: str, name: str) -> None:
        """Handle the start of a task or flow. For subclasses."""

    def _record_ending(self, seconds: float, kind: str, name: str) -> None:
        _store(self._engine, kind, name, {"duration": seconds})


class PrintingDurationListener(DurationListener):
    """A `DurationListener` that also prints each start and duration, with `printer` or `print`."""

    def __init__(self, engine: Any, printer: Callable[[str], Any] | None = None) -> None:
        super().__init__(engine)
        if printer is not None and not callable(printer):
            raise TypeError(f"printer must be a function that takes a line, got {printer!r}")
        self._printer = printer if printer is not None else print

    def _record_start(self, kind: str, name: str) -> None:
        self._printer(f"'{name}' {kind} started.")

    def _record_ending(self, seconds: float, kind: str, name: str) -> None:
        super()._record_ending(seconds, kind, name)
        self._printer(f"It took {kind} '{name}' {seconds:0.2f} seconds to finish.")


class EventTimeListener(base.Listener):
    """Stores when a flow or atom last entered a state: `<STATE>-timestamp` in its metadata.

    The times are in Unix seconds.
    """

    def _receive(self, kind: str, state: str, details: base.Details) -> None:
        _store(self._engine, kind, details[f"{kind}_name"], {f"{state}-timestamp": time.time()})


def _store(engine: Any, kind: str, name: str, update: Mapping[str, Any]) -> None:
    """Add to the metadata of a flow or an atom. Log failures of the store."""
    try:
        if kind == _FLOW:
            engine.storage.update_flow_metadata(update)
        else:
            engine.storage.update_atom_metadata(name, update)
    except exceptions.StorageFailure:
        LOG.warning("cannot store the %s of %s %r", update, kind, name, exc_info=True)
