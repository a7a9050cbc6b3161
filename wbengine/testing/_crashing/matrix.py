"""Counts of runs by the step and the fault that was injected there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from wbengine.testing._crashing.schedules import Action, At, Moment, Schedule, SignalFault

__all__ = ["START", "Cell", "Matrix"]

#: The row of moments before the first step.
START: Final = "(start of the flow)"

#: Moments that name a step. Others belong to the latest of these.
_OF_STEPS: Final = frozenset({Moment.SEND, Moment.START, Moment.END, Moment.REPLY})


@dataclass(slots=True)
class Cell:
    """Runs with one fault at one step.

    :ivar broken: number of runs that broke a promise.
    :ivar findings: indexes of their findings.
    """

    runs: int = 0
    broken: int = 0
    findings: set[int] = field(default_factory=set)


class Matrix:
    """How many runs had each fault at each step, and which of them broke a promise.

    Its size depends on the numbers of steps and faults, not on the number of runs.
    """

    def __init__(self) -> None:
        self._steps: dict[str, dict[Action, Cell]] = {}
        self._signals: dict[str, dict[SignalFault, Cell]] = {}

    @property
    def steps(self) -> Mapping[str, Mapping[Action, Cell]]:
        """Cells by step and fault, in the order of the moments."""
        return self._steps

    @property
    def signals(self) -> Mapping[str, Mapping[SignalFault, Cell]]:
        """Cells by signal and fault."""
        return self._signals

    def add(self, schedule: Schedule, trace: Sequence[At], findings: Iterable[int]) -> None:
        """Count a run in the cell of each of its faults."""
        numbers = set(findings)
        for cell in self._cells(schedule, trace):
            cell.runs += 1
            cell.broken += bool(numbers)
            cell.findings |= numbers

    def _cells(self, schedule: Schedule, trace: Sequence[At]) -> Iterator[Cell]:
        for number, fault in schedule.moments:
            # A run can differ from the one with fewer faults, so that the fault does not occur.
            if number < len(trace) and fault in trace[number].faults:
                row = self._steps.setdefault(_step(trace, number), {})
                yield row.setdefault(fault.action, Cell())
        for name, signal_fault in schedule.signals:
            yield self._signals.setdefault(name, {}).setdefault(signal_fault, Cell())


def _step(trace: Sequence[At], number: int) -> str:
    """Return the step during or after which a moment is. Items of a map are one step."""
    for index in range(number, -1, -1):
        if trace[index].moment in _OF_STEPS:
            return re.sub(r"\[\d+\]\Z", "[*]", trace[index].what)
    return START
