"""A store of one test: any backend, in which writes fail when they are told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from wbengine import _names, exceptions
from wbengine.persistence import backends, base
from wbengine.testing import faults

__all__ = ["WRITES", "FaultyBackend"]

_R = TypeVar("_R")

#: What changes a store: methods of its connections.
WRITES: Final = (
    "save_changes",
    "save_logbook",
    "save_outline",
    "take_lease",
    "give_back_lease",
    "renew_lease",
    "put_command",
    "clear_command",
    "put_signal",
    "drop_job",
    "hasten_job",
    "destroy_flow",
    "destroy_logbook",
    "clear_all",
    "upgrade",
)

#: It comes by the clock, not by what a flow does: it is meant only where it is named.
_BY_THE_CLOCK: Final = "renew_lease"


class FaultyBackend(base.Backend):
    """A backend that passes everything on to `inner` (a backend, or what `backends.fetch` takes),
    but for the faults that were asked for.

    A fault is about writes: calls of the methods in `WRITES`; with `method` about those of one
    method only.  Without, renewals of leases do not count, which come by the clock.  The first
    `skip` of these writes go well, after that each `every`-th goes wrong, so many `times` (None:
    always).  The fault that is returned counts them, and is over at the end of a `with` block.

    Each write takes `delay` seconds longer.  An engine tries a failed write twice again, here
    without a pause: three failures in a row end its run.

    Thread-safe.  As a context manager it closes itself and `inner` at the end.
    """

    write_pause = 0.0

    def __init__(
        self, inner: base.Backend | Mapping[str, Any] | str = "memory", *, delay: float = 0.0
    ) -> None:
        self.inner = inner if isinstance(inner, base.Backend) else backends.fetch(inner)
        super().__init__(self.inner.conf)
        self.encodes = self.inner.encodes
        self.delay = delay
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        self._writes: list[str] = []

    @property
    def delay(self) -> float:
        """Seconds that each write takes longer."""
        return self._delay

    @delay.setter
    def delay(self, seconds: float) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            raise ValueError(f"delay is {seconds!r}: it must be a number of seconds from 0")
        self._delay = seconds

    @property
    def writes(self) -> list[str]:
        """The methods of all writes so far, in order, also of those that failed; but for renewals
        of leases.
        """
        with self._lock:
            return list(self._writes)

    def fail_next(
        self,
        times: int | None = 1,
        *,
        skip: int = 0,
        every: int = 1,
        method: str | None = None,
    ) -> faults.Fault:
        """Refuse writes: they raise `StorageFailure`, and nothing is written.

        :raises ValueError: `method` is none of `WRITES`, or a number is out of its range.
        """
        return self._add("fail", False, times, skip, every, method)

    def lose_answer(
        self,
        times: int | None = 1,
        *,
        skip: int = 0,
        every: int = 1,
        method: str | None = None,
    ) -> faults.Fault:
        """Write, and report a time-out: `StorageFailure`, as if nobody knew what came of it.

        A write that `inner` refuses is refused.

        :raises ValueError: `method` is none of `WRITES`, or a number is out of its range.
        """
        return self._add("lose the answer of", True, times, skip, every, method)

    def heal(self) -> None:
        """Nothing goes wrong any more, and nothing is slow."""
        with self._lock:
            self._rules.clear()
        self.delay = 0.0

    def get_connection(self) -> base.Connection:
        """One of `inner`, whose writes may go wrong."""
        connection = self.inner.get_connection()
        for method in WRITES:
            setattr(connection, method, self._guarded(method, getattr(connection, method)))
        return connection

    def _guarded(self, method: str, do: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **options: self.write(method, lambda: do(*given, **options))

    def close(self) -> None:
        self.inner.close()

    def __enter__(self) -> FaultyBackend:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _add(
        self, what: str, written: bool, times: int | None, skip: int, every: int, method: str | None
    ) -> faults.Fault:
        if method is not None and method not in WRITES:
            hint = _names.hint(str(method), WRITES)
            raise ValueError(f"{method!r} is no write{hint}: {', '.join(WRITES)}")
        for name, number, least in (("skip", skip, 0), ("every", every, 1)):
            if type(number) is not int or number < least:
                raise ValueError(
                    f"{name} is {number!r}: it must be a whole number of at least {least}"
                )
        fault = faults.Fault(f"{what} {method or 'a write'}", times)
        with self._lock:
            self._rules.append(_Rule(fault, written, skip, every, method))
        return fault

    def write(self, method: str, do: Callable[[], _R]) -> _R:
        """Do one write, or what a fault makes of it; for connections."""
        with self._lock:
            if method != _BY_THE_CLOCK:
                self._writes.append(method)
            struck = [rule for rule in self._rules if rule.strikes(method)]
        if self.delay:
            time.sleep(self.delay)
        if not struck:
            return do()
        if not all(rule.written for rule in struck):
            raise exceptions.StorageFailure(f"{method} was refused, as the test wanted")
        do()
        raise exceptions.StorageFailure(f"{method} was not answered in time, as the test wanted")


class _Rule:
    """Which writes a fault is for, and whether they are written all the same."""

    def __init__(
        self, fault: faults.Fault, written: bool, skip: int, every: int, method: str | None
    ) -> None:
        self._fault = fault
        self.written = written
        self._left = skip + every
        self._every = every
        self._method = method

    def strikes(self, method: str) -> bool:
        """Whether it happens to this write, which is counted."""
        meant = method != _BY_THE_CLOCK if self._method is None else method == self._method
        if not meant:
            return False
        self._left -= 1
        if self._left:
            return False
        self._left = self._every
        return self._fault.strike()
