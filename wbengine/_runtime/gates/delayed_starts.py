"""Calls that wait for the `eta` of their task, or end because `expires` has passed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from wbengine._calls import invocation as calls
from wbengine._calls import start_times
from wbengine._concurrency import clocks
from wbengine._runtime import deadlines
from wbengine._runtime.gates import base
from wbengine.persistence import models
from wbengine.types import failure as ft

__all__ = ["StartTimeGate", "has_passed", "store_start"]


def store_start(record: models.AtomDetail, task: Any, now: float) -> None:
    """Store the earliest start of an execution, for displays. Ignore invalid values of `eta`."""
    with contextlib.suppress(TypeError, ValueError):
        record.meta[models.STARTS_AT] = start_times.moment(task.eta, "eta", now, now)


def has_passed(record: models.AtomDetail, now: float) -> bool:
    """Return whether the stored earliest start has passed; True without one."""
    start = record.meta_value(models.STARTS_AT)
    return not isinstance(start, float) or start <= now


class StartTimeGate(base.Gate):
    """Delays calls until the `eta` of their task.

    :param end: called with a call that must not start, and its outcome.
    :param keeps_times: the executor waits for the `eta` of tasks that are not local, if the clock
        is that of the host.
    """

    def __init__(
        self,
        timers: deadlines.Timers,
        clock: clocks.Clock,
        end: Callable[[calls.Invocation, calls.Outcome], object],
        *,
        keeps_times: bool,
    ) -> None:
        self._timers: Final = timers
        self._clock: Final = clock
        self._end: Final = end
        self._keeps_times: Final = keeps_times and clock.is_real
        self._calls: dict[calls.Invocation, None] = {}

    def admit_calls(self, tasks: list[calls.Invocation]) -> list[calls.Invocation]:
        return [
            call
            for call in tasks
            if (call.task.eta is None and call.task.expires is None) or self._admit_or_delay(call)
        ]

    def _admit_or_delay(self, call: calls.Invocation) -> bool:
        now = self._clock.monotonic()
        try:
            start_times.read(call, now, self._clock.time())
        except (TypeError, ValueError) as error:
            if self._keeps_times and not call.local:
                return True
            self._end(call, calls.Outcome(ft.Failure.from_exception(error)))
            return False
        if self._keeps_times and not call.local:
            return True
        expired = call.expired(self._clock.monotonic())
        if expired is not None:
            self._end(call, expired)
        elif call.not_before is not None and call.not_before > now:
            self._calls[call] = None
            self._timers.set((self, call), min(call.not_before, call.not_after or math.inf))
        else:
            return True
        return False

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
