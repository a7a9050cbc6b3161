"""Calls that were begun and have to wait: for the `eta` of their task, or for a signal.

No executor has them.  What one comes to meanwhile (its signal is there, or its time is over) goes
to the inbox of the run.  Only the thread of the run calls this, but for `awaits_signals`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from wbengine import _clock, start_times
from wbengine import invocation as calls
from wbengine.persistence import models
from wbengine.runtime import timers as timers_module
from wbengine.runtime import waits as waits_module
from wbengine.runtime.control import Inbox, Parked
from wbengine.types import failure as ft

__all__ = ["HeldCalls"]


class HeldCalls:
    """The calls of one run that are held back, and when the run has to look again.

    `record(node)` is that of a task.  `keeps_times`: the executor waits for the `eta` of what is
    not local.
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
        # In the order of their beginning.
        self._calls: dict[calls.Invocation, None] = {}
        #: Only if something waits for a time (a call, or the retry of a node), or the run does.
        self.timers: timers_module.Timers | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def hold_back(self, tasks: list[calls.Invocation]) -> list[calls.Invocation]:
        """What of these may be handed out now; the others are held, or have come to their end."""
        tasks = [
            call
            for call in tasks
            if (call.task.eta is None and call.task.expires is None) or self._is_time(call)
        ]
        return tasks if self.waits is None else self._without_waits(tasks, self.waits)

    def due(self) -> list[Any]:
        """The calls, and the nodes of retries, whose time has come; none of these is held now."""
        assert self.timers is not None
        found = self.timers.pop(self._clock.monotonic())
        due = [one for one in found if isinstance(one, int) or one in self._calls]
        for one in due:
            self._calls.pop(one, None)
        return due

    def take(
        self, wanted: Callable[[calls.Invocation], bool] | None = None
    ) -> list[calls.Invocation]:
        """Hold these no longer: all, or those that are wanted."""
        found = [call for call in self._calls if wanted is None or wanted(call)]
        for call in found:
            del self._calls[call]
        return found

    def set_timer(self, thing: calls.Invocation | int, due: float) -> None:
        """Let a call, or the retry of a node, be `due` at a moment."""
        if self.timers is None:
            self.timers = timers_module.Timers()
        self.timers.set(thing, due)

    def _hold(self, call: calls.Invocation, due: float) -> None:
        self._calls[call] = None
        if due < math.inf:
            self.set_timer(call, due)

    def _is_time(self, call: calls.Invocation) -> bool:
        if self._keeps_times and not call.local:
            return True
        now = self._clock.monotonic()
        try:
            start_times.read(call, now, self._clock.time())
        except (TypeError, ValueError) as error:
            self._inbox.put((call, calls.Outcome(ft.Failure.from_exception(error))))
            return False
        late = call.expired()
        if late is not None:
            self._inbox.put((call, late))
        elif call.not_before is not None and call.not_before > now:
            self._hold(call, min(call.not_before, call.not_after or math.inf))
        else:
            return True
        return False

    # -- signals --------------------------------------------------------------------------------

    @property
    def awaits_signals(self) -> bool:
        """Whether a task waits for a signal now; from any thread."""
        waits = self.waits
        return waits is not None and any(call.node in waits.nodes for call in list(self._calls))

    def _without_waits(
        self, tasks: list[calls.Invocation], waits: waits_module.Waits
    ) -> list[calls.Invocation]:
        begun = [
            call for call in tasks if call.node in waits.nodes and call.action == calls.EXECUTE
        ]
        if not begun:
            return tasks
        waits.look()
        now, wall = self._clock.monotonic(), self._clock.time()
        for call in begun:
            record = self._record(call.node)
            if call.ticket is None:  # no executor has it, and the clock on the wall may be set
                call.ticket = now + (waits_module.until(record) - wall)
            outcome = waits.outcome(call, record, wall, over=now >= call.ticket)
            if outcome is None:
                self._hold(call, call.ticket)
            else:
                self._inbox.put((call, outcome))
        return [call for call in tasks if call not in begun]

    def end_waits(self, waits: waits_module.Waits) -> None:
        """Let go on what waited for a signal that is here now."""
        waits.news = False
        now = self._clock.time()
        for call in [call for call in self._calls if call.node in waits.nodes]:
            outcome = waits.outcome(call, self._record(call.node), now)
            if outcome is not None:
                del self._calls[call]
                self._inbox.put((call, outcome))

    # -- parking --------------------------------------------------------------------------------

    def parked(self, after: float) -> Parked | None:
        """Until when a run of which nothing else is under way may be suspended; None: it may not,
        for something is due within `after` seconds.
        """
        waits, timers = self.waits, self.timers
        awaited = frozenset[int]() if waits is None else waits.nodes
        if any(call.node not in awaited for call in self._calls):
            return None  # the next run would count the seconds of an `eta` anew
        seconds = None
        if timers is not None:
            seconds = timers.wait(self._clock.monotonic())
            is_soon = seconds is not None and seconds < after
            if is_soon or timers.deadline < math.inf:
                return None
        return Parked(seconds, None if waits is None else waits.heard)
