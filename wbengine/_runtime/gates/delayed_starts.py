"""Calls that wait for the `eta` of their task, or end because `expires` has passed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from wbengine._calls import invocation as calls
from wbengine._calls import start_times
from wbengine._concurrency import clocks
from wbengine._runtime import deadlines, stored_starts
from wbengine._runtime.gates import base
from wbengine.persistence import models
from wbengine.types import failure as ft

__all__ = ["StartTimeGate"]


class StartTimeGate(base.Gate):
    """Delays calls until the `eta` of their task.

    :param end: called with a call that must not start, and its outcome.
    :param record: returns the record of a call.
    :param keeps_times: the executor waits for the `eta` of recovered calls that it had not started,
        if the clock is that of the host.
    """

    def __init__(
        self,
        timers: deadlines.Timers,
        clock: clocks.Clock,
        end: Callable[[calls.Invocation, calls.Outcome], object],
        record: Callable[[calls.Invocation], models.AtomDetail],
        *,
        keeps_times: bool,
    ) -> None:
        self._timers: Final = timers
        self._clock: Final = clock
        self._end: Final = end
        self._record: Final = record
        self._keeps_times: Final = keeps_times and clock.is_real
        self._calls: dict[calls.Invocation, None] = {}

    @property
    def parkable(self) -> int:
        return len(self._calls)

    def admit_calls(self, tasks: list[calls.Invocation]) -> list[calls.Invocation]:
        return [
            call
            for call in tasks
            if (call.task.eta is None and call.task.expires is None) or self._admit_or_delay(call)
        ]

    def _admit_or_delay(self, call: calls.Invocation) -> bool:
        now = self._clock.monotonic()
        is_kept = self._keeps_times and call.recovered and not call.local
        try:
            self._read_times(call, now)
        except (TypeError, ValueError) as error:
            if is_kept:
                return True
            self._end(call, calls.Outcome(ft.Failure.from_exception(error)))
            return False
        if is_kept:
            return True
        expired = call.expired(self._clock.monotonic())
        if expired is not None:
            self._end(call, expired)
        elif call.not_before is not None and call.not_before > now:
            self._calls[call] = None
            self._timers.set((self, call), min(call.not_before, call.not_after or math.inf))
        else:
            self._note_passed(call)
            return True
        return False

    def _read_times(self, call: calls.Invocation, now: float) -> None:
        """Set the earliest and the latest start of an execution, once.

        Seconds count from the time at which the attempt was ready, perhaps in an earlier run; those
        of `expires` of a Map's item without `eta` from the time at which the item was submitted.

        :raises TypeError, ValueError: if a value is invalid.
        """
        if call.action != calls.EXECUTE or call.not_before is not None:
            return
        wall, record = self._clock.time(), self._record(call)
        ready = wall if record.submitted is None else record.submitted
        if call.index >= 0 and call.task.eta is None:
            ready = wall
        start_times.read(call, now - (wall - ready), ready)
        if call.task.eta is not None and (start := stored_starts.start_of(record)) is not None:
            call.not_before = now + (start - wall)

    def _note_passed(self, call: calls.Invocation) -> None:
        """Note in the record that the wait is over: a later run starts the task at once."""
        if call.index < 0 and call.action == calls.EXECUTE and call.task.eta is not None:
            record = self._record(call)
            if record.submitted is not None:
                record.meta[models.STARTS_AT] = record.submitted

    def release(self, due: Iterable[Hashable]) -> base.Work:
        now, released = self._clock.monotonic(), list[calls.Invocation]()
        waiting: list[Any] = [call for call in due if call in self._calls]
        for call in waiting:
            del self._calls[call]
            expired = call.expired(math.inf) if call.not_before > now else None
            if expired is None:
                released.append(call)
            else:
                self._end(call, expired)
        return base.Work(calls=released)

    def withdraw(self, selects: base.Selection) -> base.Work:
        return base.Work(calls=base.remove_selected(self._calls, selects))
