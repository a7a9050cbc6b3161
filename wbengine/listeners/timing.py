"""Measures how long things take, and notes when they happen."""

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
    """Stores how many seconds each task, and the flow, took: `duration` in their metadata.

    That of a task is the time its worker needed for it, where the worker says so; otherwise, and
    for the flow, the time between the two changes of state.  A task that is reverted, or runs
    again, has that of the latest time.
    """

    def __init__(self, engine: Any) -> None:
        super().__init__(engine, WATCH_STATES, WATCH_STATES, ())
        #: When what is under way began, by kind and name.
        self._since: dict[str, dict[str, float]] = {_TASK: {}, _FLOW: {}}

    def deregister(self) -> None:
        """Listen no longer; warns of what began and did not come to its end."""
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
            self._began(kind, name)
            return
        began = self._since[kind].pop(name, None)
        given_back = kind == _TASK and "result" not in details
        if began is None or state == states.PENDING or given_back:
            return
        started, ended = details.get("started"), details.get("ended")
        if started is None or ended is None:
            started, ended = began, time.monotonic()
        self._record_ending(max(0.0, ended - started), kind, name)

    def _began(self, kind: str, name: str) -> None:
        """Something began."""

    def _record_ending(self, seconds: float, kind: str, name: str) -> None:
        """Something that took `seconds` came to its end."""
        _store(self._engine, kind, name, {"duration": seconds})


class PrintingDurationListener(DurationListener):
    """Also says (by `print`, or `printer`) when something begins, and how long it took."""

    def __init__(self, engine: Any, printer: Callable[[str], Any] | None = None) -> None:
        super().__init__(engine)
        if printer is not None and not callable(printer):
            raise TypeError(f"printer must be a function that takes a line, not {printer!r}")
        self._printer = printer if printer is not None else print

    def _began(self, kind: str, name: str) -> None:
        self._printer(f"'{name}' {kind} started.")

    def _record_ending(self, seconds: float, kind: str, name: str) -> None:
        super()._record_ending(seconds, kind, name)
        self._printer(f"It took {kind} '{name}' {seconds:0.2f} seconds to finish.")


class EventTimeListener(base.Listener):
    """Stores when (unix seconds) a flow or atom entered a state: `<STATE>-timestamp` in its
    metadata; of a state entered twice, the latest time.
    """

    def _receive(self, kind: str, state: str, details: base.Details) -> None:
        _store(self._engine, kind, details[f"{kind}_name"], {f"{state}-timestamp": time.time()})


def _store(engine: Any, kind: str, name: str, update: Mapping[str, Any]) -> None:
    """Add to the metadata of a flow or an atom, if that is possible: it is not worth a failure."""
    try:
        if kind == _FLOW:
            engine.storage.update_flow_metadata(update)
        else:
            engine.storage.update_atom_metadata(name, update)
    except exceptions.StorageFailure:
        LOG.warning("The %s of %s %r was not stored", update, kind, name, exc_info=True)
