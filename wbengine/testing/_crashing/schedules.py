"""The faults of one run: which of them can occur at which moment."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = [
    "TRANSPARENT",
    "Action",
    "At",
    "Fault",
    "Moment",
    "Schedule",
    "SignalFault",
    "parse",
    "singles",
]


#: In the text of a schedule: each step runs in a process of its own.
_SEPARATE: Final = "separate"

#: In the text of a schedule: processes are real.
_REAL: Final = "real"


class Moment(enum.StrEnum):
    """Kinds of moments at which faults can occur."""

    WRITE = "write"  # before a write to the store
    SEND = "send"  # before a request is sent to a worker
    START = "start"  # before the first line of a step
    BEFORE_EFFECT = "before effect"
    AFTER_EFFECT = "after effect"
    END = "end"  # after the last line of a step
    REPLY = "reply"  # before the engine receives the result of a step
    WAIT = "wait"  # while the flow only waits


class Action(enum.StrEnum):
    """Faults at a moment."""

    KILL = "kill"  # the process of the engine
    KILL_BOTH = "kill both"  # the processes of the engine and of the worker
    LOSE = "lose"  # the process of the worker
    RESEND = "resend"  # the same, and the step runs again, as the option on_worker_lost decides
    FAIL = "fail"  # an exception
    BUSY = "busy"  # an HTTP service answers with status 503
    COPY = "copy"  # the request of an idempotent step runs again
    CANCEL = "cancel"
    DEADLINE = "deadline"
    LATER = "later"  # the engine is killed, and continues a day later
    UNREACHABLE = "unreachable"  # the store
    LOST_ANSWER = "answer lost"  # the store writes, but the engine receives no answer


#: Faults after which the flow has to end as without a fault.
TRANSPARENT: Final = frozenset({
    Action.KILL, Action.KILL_BOTH, Action.LOSE, Action.RESEND, Action.COPY, Action.UNREACHABLE,
    Action.LOST_ANSWER,
})  # fmt: skip


class Fault(NamedTuple):
    """An action, and for exceptions the number of the class: see `Faults.exceptions`."""

    action: Action
    exception: int = 0

    def __str__(self) -> str:
        return f"{self.action}{f' {self.exception}' if self.exception else ''}"


class At(NamedTuple):
    """What happened at one moment of a run, and which faults could have occurred."""

    moment: Moment
    what: str
    line: str
    faults: tuple[Fault, ...]


class SignalFault(enum.StrEnum):
    """Faults of a signal."""

    EARLY = "early"  # before the flow starts
    LATE = "late"  # after the flow has waited as long as it wanted
    TWICE = "twice"
    MISSING = "missing"


@dataclass(frozen=True)
class Schedule:
    """The faults of one run: by the number of the moment, and by signal.

    :ivar is_separate: whether each step runs in a process of its own.
    :ivar is_real: whether engine and workers are real processes.
    """

    moments: tuple[tuple[int, Fault], ...] = ()
    signals: tuple[tuple[str, SignalFault], ...] = ()
    is_separate: bool = False
    is_real: bool = False

    def __str__(self) -> str:
        parts = [f"{number}:{fault}" for number, fault in self.moments]
        parts += [f"{name}:{fault}" for name, fault in self.signals]
        parts += [_SEPARATE] * self.is_separate + [_REAL] * self.is_real
        return ", ".join(parts)

    @property
    def last(self) -> int:
        """The number of the last moment with a fault, or -1."""
        return self.moments[-1][0] if self.moments else -1

    @property
    def is_transparent(self) -> bool:
        """Whether the flow has to end as without these faults."""
        return not self.signals and all(fault.action in TRANSPARENT for _, fault in self.moments)

    def extended(self, number: int, fault: Fault) -> Schedule:
        """Return a schedule with one more fault, at a later moment."""
        return Schedule((*self.moments, (number, fault)), self.signals)


def parse(text: str) -> Schedule:
    """Return the schedule whose text a report shows.

    :raises ValueError: if the text is not that of a schedule.
    """
    moments: list[tuple[int, Fault]] = []
    signals: list[tuple[str, SignalFault]] = []
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if part in (_SEPARATE, _REAL):
            continue
        name, colon, fault = part.rpartition(":")
        try:
            if not colon:
                raise ValueError
            if not name.isdecimal():
                signals.append((name, SignalFault(fault)))
                continue
            action, _, number = (
                fault.partition(" ") if fault.startswith("fail") else (fault, "", "")
            )
            moments.append((int(name), Fault(Action(action), int(number or 0))))
        except ValueError:
            raise ValueError(
                f"{part!r} in {text!r} must be the number of a moment and a fault, such as"
                " '12:kill', or the name of a signal and a fault, such as 'approved:late'"
            ) from None
    return Schedule(tuple(sorted(moments)), tuple(signals), _SEPARATE in parts, _REAL in parts)


def singles(trace: Iterable[At], signals: Iterable[str]) -> Iterator[Schedule]:
    """Yield the schedules with one fault, in the order of the moments."""
    for number, at in enumerate(trace):
        for fault in at.faults:
            yield Schedule(((number, fault),))
    for name in dict.fromkeys(signals):
        for each in SignalFault:
            yield Schedule((), ((name, each),))
