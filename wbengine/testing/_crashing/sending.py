"""The signals of one run, and their faults."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from wbengine import exceptions, signals
from wbengine.persistence import _listing
from wbengine.testing._crashing.moments import Moments
from wbengine.testing._crashing.outcome import PlannedSignal
from wbengine.testing._crashing.schedules import SignalFault

__all__ = ["SignalSender"]


class SignalSender:
    """Sends each signal when the flow waits for it, unless a fault occurs.

    :param send: delivers the value of a signal of this name.
    """

    def __init__(
        self,
        to_send: Iterable[PlannedSignal],
        moments: Moments,
        send: Callable[[str, Any], object],
    ) -> None:
        self._to_send = list(to_send)
        self._late: list[PlannedSignal] = []
        self._moments = moments
        self._faults = dict(moments.outcome.schedule.signals)
        self._deliver = send

    @property
    def unsent(self) -> list[str]:
        """Names of signals for which the flow did not wait."""
        return [each.name for each in self._to_send]

    def send_early(self) -> None:
        """Send the signals that arrive before the flow starts."""
        for each in list(self._to_send):
            if self._faults.get(each.label) is SignalFault.EARLY:
                self._to_send.remove(each)
                self._moments.outcome.occurred.add(each.label)
                self._send(each)

    def send_awaited(self, waits: Sequence[_listing.Wait]) -> bool:
        """Send the first signal for which the flow waits. Return whether it arrived."""
        for each in list(self._to_send):
            if any(each.name in wait.signal.split(signals.OR) for wait in waits):
                self._to_send.remove(each)
                if self._send_with_fault(each):
                    return True
        return False

    def send_late(self) -> bool:
        """Send a signal that did not arrive in time. Return False if there is none."""
        if not self._late:
            return False
        self._send(self._late.pop(0))
        return True

    def _send_with_fault(self, each: PlannedSignal) -> bool:
        self._moments.outcome.occurred.add(each.label)
        match self._faults.get(each.label):
            case SignalFault.MISSING:
                self._moments.event("fault", f"signal {each.name!r} did not arrive")
                return False
            case SignalFault.LATE:
                self._moments.event("fault", f"signal {each.name!r} did not arrive in time")
                self._late.append(each)
                return False
            case SignalFault.TWICE:
                self._send(each)
                with contextlib.suppress(exceptions.Duplicate):
                    self._send(each)
                return True
        self._send(each)
        return True

    def _send(self, each: PlannedSignal) -> None:
        self._moments.event("signal", f"signal {each.name!r} arrived")
        self._deliver(each.name, each.value)
