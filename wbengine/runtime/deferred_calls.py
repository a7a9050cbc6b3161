"""Calls that have begun and wait: for the `eta` of their task, or for a signal.

No executor has received them. A call that ends while it waits is put into the inbox of the run.
Only the thread of the run uses this, except for `awaits_signals`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from wbengine import _clock, start_times
from wbengine import invocation as calls
from wbengine.persistence import models
from wbengine.runtime import deadlines as timers_module
from wbengine.runtime import waits as waits_module
from wbengine.runtime.control import Inbox, Parked
from wbengine.types import failure as ft

__all__ = ["DeferredCalls"]


class DeferredCalls:
    """The waiting calls of a run and their deadlines.

    :param record: returns the record of a node.
    :param keeps_times: the executor waits for the `eta` of tasks that are not local.
    """

    def __init__(
        self,
        inbox: Inbox,
        clock: _clock.Clock,
        record: Callable[[int], models.AtomDetail],
        waits: waits_module.Waits | None,
        *,
        keeps_times: bool,
    ) -> None:
        self._inbox = inbox
        self._clock = clock
        self._record = record
        #: None: no task waits for a signal.
        self.waits = waits
        self._keeps_times = keeps_times
        self._calls: dict[calls.Invocation, None] = {}
        self._awaiting = 0
        #: None: no call, retry controller or run has a deadline.
        self.timers: timers_module.Timers | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def defer(self, tasks: list[calls.Invocation]) -> list[calls.Invocation]:
        """Return the tasks to submit now. The others wait, or have ended."""
        tasks = [
            call
            for call in tasks
            if (call.task.eta is None and call.task.expires is None) or self._is_time(call)
        ]
        return tasks if self.waits is None else self._without_waits(tasks, self.waits)

    def due(self) -> list[Any]:
        """Remove and return the calls, and the nodes of retry controllers, that are due."""
        assert self.timers is not None
        expired = self.timers.pop(self._clock.monotonic())
        due = [item for item in expired if isinstance(item, int) or item in self._calls]
        for item in due:
            if not isinstance(item, int):
                self._release(item)
        return due

    def take(
        self, matches: Callable[[calls.Invocation], bool] | None = None
    ) -> list[calls.Invocation]:
        """Remove and return the calls for which `matches` returns True (None: all)."""
        taken_calls = [call for call in self._calls if matches is None or matches(call)]
        for call in taken_calls:
            self._release(call)
        return taken_calls

    def set_timer(self, key: calls.Invocation | int, due: float) -> None:
        if self.timers is None:
            self.timers = timers_module.Timers()
        self.timers.set(key, due)

    def _hold(self, call: calls.Invocation, due: float) -> None:
        self._calls[call] = None
        self._awaiting += self._awaits_signal(call)
        if due < math.inf:
            self.set_timer(call, due)

    def _release(self, call: calls.Invocation) -> None:
        del self._calls[call]
        self._awaiting -= self._awaits_signal(call)

    def _awaits_signal(self, call: calls.Invocation) -> bool:
        waits = self.waits
        return waits is not None and call.node in waits.nodes and call.action == calls.EXECUTE

    def _is_time(self, call: calls.Invocation) -> bool:
        if self._keeps_times and not call.local:
            return True
        now = self._clock.monotonic()
        try:
            start_times.read(call, now, self._clock.time())
        except (TypeError, ValueError) as error:
            self._inbox.put((call, calls.Outcome(ft.Failure.from_exception(error))))
            return False
        expired = call.expired()
        if expired is not None:
            self._inbox.put((call, expired))
        elif call.not_before is not None and call.not_before > now:
            self._hold(call, min(call.not_before, call.not_after or math.inf))
        else:
            return True
        return False

    @property
    def awaits_signals(self) -> bool:
        """True if a task waits for a signal now. May be read from any thread."""
        return self._awaiting > 0

    def awaiting(self, in_flight_count: int) -> list[int]:
        """Return the first nodes that wait for signals if nothing else is in flight."""
        if in_flight_count != self._awaiting:
            return []
        return [call.node for call in itertools.islice(self._calls, waits_module.MAX_STORED_WAITS)]

    def _without_waits(
        self, tasks: list[calls.Invocation], waits: waits_module.Waits
    ) -> list[calls.Invocation]:
        waiting = [
            call for call in tasks if call.node in waits.nodes and call.action == calls.EXECUTE
        ]
        if not waiting:
            return tasks
        waits.read()
        now, wall = self._clock.monotonic(), self._clock.time()
        for call in waiting:
            record = self._record(call.node)
            if call.ticket is None:  # the wall clock may be set while the call waits
                call.ticket = now + (waits_module.until(record) - wall)
            outcome = waits.outcome(call, record, wall, timed_out=now >= call.ticket)
            if outcome is None:
                self._hold(call, call.ticket)
            else:
                self._inbox.put((call, outcome))
        return [call for call in tasks if call not in waiting]

    def end_waits(self, waits: waits_module.Waits) -> None:
        waits.has_new = False
        now = self._clock.time()
        for call in [call for call in self._calls if call.node in waits.nodes]:
            outcome = waits.outcome(call, self._record(call.node), now)
            if outcome is not None:
                self._release(call)
                self._inbox.put((call, outcome))

    def parked(self, min_seconds: float) -> Parked | None:
        """Return for how long a run may be parked if nothing else is in flight.

        :returns: None if it may not: something is due within `min_seconds`, the flow has a
            deadline, or a call other than a `WaitFor` is deferred.
        """
        waits, timers = self.waits, self.timers
        awaited = frozenset[int]() if waits is None else waits.nodes
        if any(call.node not in awaited for call in self._calls):
            return None  # the next run would restart an `eta` given in seconds
        seconds = None
        if timers is not None:
            seconds = timers.wait(self._clock.monotonic())
            is_soon = seconds is not None and seconds < min_seconds
            if is_soon or timers.deadline < math.inf:
                return None
        return Parked(seconds, None if waits is None else waits.count)
