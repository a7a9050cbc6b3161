"""A store for one test, whose writes can fail on request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine.persistence import backends, base
from wbengine.testing import _faults

__all__ = ["WRITES", "FaultyBackend"]

_R = TypeVar("_R")

#: Methods of connections that change the store.
WRITES: Final = (
    "save_changes",
    "save_logbook",
    "save_outline",
    "acquire_lease",
    "release_lease",
    "end_lease",
    "renew_lease",
    "put_command",
    "put_signal",
    "put_pause",
    "remove_pause",
    "add_access_key",
    "end_access_key",
    "note_use_of_access_key",
    "drop_job",
    "destroy_flow",
    "destroy_logbook",
    "clear_all",
    "upgrade",
)

#: A write that depends on time, not on the flow. Only faults for this method affect it.
_TIMED_WRITE: Final = "renew_lease"


class FaultyBackend(base.Backend):
    """A backend that calls `inner` and injects faults into writes. Thread-safe.

    Writes are calls of the methods in `WRITES`. An engine repeats a failed write twice, without a
    pause here, so three failures in a row end its run. The end of a `with` block closes this
    backend and `inner`. Methods that inject faults return a `Fault`, which counts its occurrences
    and ends at the end of its own `with` block. They have these parameters:

    :param times: the number of failed writes (None: unlimited).
    :param skip: the number of first writes that succeed.
    :param every: of the following writes, each `every`-th fails.
    :param method: only this method is counted and fails (default: all, except renewals of leases).

    Parameters of the constructor:

    :param inner: a backend, or an argument of `backends.fetch`.
    :param delay: seconds that are added to each write.
    """

    write_pause = 0.0

    def __init__(
        self, inner: base.Backend | Mapping[str, Any] | str = "memory", *, delay: float = 0.0
    ) -> None:
        #: The wrapped backend.
        self.inner = inner if isinstance(inner, base.Backend) else backends.fetch(inner)
        super().__init__(self.inner.conf)
        self.encodes = self.inner.encodes
        self.delay = delay
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        self._writes: list[str] = []

    @property
    def delay(self) -> float:
        """Seconds that are added to each write."""
        return self._delay

    @delay.setter
    def delay(self, seconds: float) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            raise ValueError(f"delay must be a number of seconds from 0, got {seconds!r}")
        self._delay = seconds

    @property
    def writes(self) -> list[str]:
        """The methods of all writes except renewals of leases, in order, including failed ones."""
        with self._lock:
            return list(self._writes)

    def fail_next(
        self,
        times: int | None = 1,
        *,
        skip: int = 0,
        every: int = 1,
        method: str | None = None,
    ) -> _faults.Fault:
        """Make writes fail: they raise `StorageFailure`, and nothing is written.

        :raises ValueError: if `method` is not in `WRITES`, or a number is out of range.
        """
        return self._add("fail", False, times, skip, every, method)

    def lose_answer(
        self,
        times: int | None = 1,
        *,
        skip: int = 0,
        every: int = 1,
        method: str | None = None,
    ) -> _faults.Fault:
        """Make writes succeed and then raise `StorageFailure`, as after a timeout.

        If `inner` rejects a write, its exception is raised instead.

        :raises ValueError: if `method` is not in `WRITES`, or a number is out of range.
        """
        return self._add("lose the answer of", True, times, skip, every, method)

    def heal(self) -> None:
        """End all faults and delays."""
        with self._lock:
            self._rules.clear()
        self.delay = 0.0

    def get_connection(self) -> base.Connection:
        """Return a connection of `inner` with faults."""
        connection = self.inner.get_connection()
        for method in WRITES:
            setattr(connection, method, self._wrap(method, getattr(connection, method)))
        return connection

    def _wrap(self, method: str, do: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **options: self.write(method, lambda: do(*args, **options))

    def close(self) -> None:
        self.inner.close()

    def __enter__(self) -> FaultyBackend:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _add(
        self,
        description: str,
        is_written: bool,
        times: int | None,
        skip: int,
        every: int,
        method: str | None,
    ) -> _faults.Fault:
        if method is not None and method not in WRITES:
            hint = object_names.hint(str(method), WRITES)
            raise ValueError(f"method must be one of {', '.join(WRITES)}, got {method!r}{hint}")
        for name, number, minimum in (("skip", skip, 0), ("every", every, 1)):
            if type(number) is not int or number < minimum:
                raise ValueError(
                    f"{name} must be a whole number of at least {minimum}, got {number!r}"
                )
        fault = _faults.Fault(f"{description} {method or 'a write'}", times)
        with self._lock:
            self._rules.append(_Rule(fault, is_written, skip, every, method))
        return fault

    def write(self, method: str, do: Callable[[], _R]) -> _R:
        """Execute a write of a connection, with the faults that affect it."""
        with self._lock:
            if method != _TIMED_WRITE:
                self._writes.append(method)
            effective = [rule for rule in self._rules if rule.affects(method)]
        if self.delay:
            time.sleep(self.delay)
        if not effective:
            return do()
        if not all(rule.is_written for rule in effective):
            raise exceptions.StorageFailure(f"{method} failed as injected by the test")
        do()
        raise exceptions.StorageFailure(
            f"{method} was written but timed out as injected by the test"
        )


class _Rule:
    """A fault, the writes that it affects, and whether they are executed."""

    def __init__(
        self, fault: _faults.Fault, is_written: bool, skip: int, every: int, method: str | None
    ) -> None:
        self._fault = fault
        self.is_written = is_written
        self._countdown = skip + every
        self._every = every
        self._method = method

    def affects(self, method: str) -> bool:
        """Count a write. Return True if the fault affects it."""
        is_counted = method != _TIMED_WRITE if self._method is None else method == self._method
        if not is_counted:
            return False
        self._countdown -= 1
        if self._countdown:
            return False
        self._countdown = self._every
        return self._fault.trigger()
