"""Calls in child processes, each served by a thread of its own here."""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from wbengine import _pool_base, _pool_child, _pool_ends, _pool_process, exceptions, watch
from wbengine.types import failure as ft

LOG = logging.getLogger("wbengine.pools")

#: Seconds between two looks at the memory of a child that runs a call.
_MEMORY_PERIOD: Final = 0.1


class ProcessPool(_pool_base.Pool):
    """`size` child processes, each served by its own thread over its own pipe.

    - `fn` must be importable by name; it, its arguments, its events and its result are pickled.
      What cannot be pickled is a `Failure` of `NotEncodable` that names the type and its path;
      the child lives on.
    - What `fn` raises (`SystemExit` and `KeyboardInterrupt` included) is a `Failure` made in the
      child.
    - A child that dies gives a `Failure` of `WorkerLost` that names pid and exit code or signal; it
      alone is replaced, when the next call needs it.  One that dies between two calls costs none.
    - Where the first children end by themselves before they are ready, as they do when the script
      that is `__main__` starts something on import, no more are made: all calls fail alike.
    - `initializer(*initargs)` runs first in each child; what it raises fails the call that needed
      the child.
    - The soft limit is raised in the child's main thread by a signal, and interrupts most of what
      waits in C; it gives the alarm that is handled there (`alarms.NUMBER`) a handler.  At the hard
      one the child is killed, and it alone.  Processes that a call started are not.
    - `max_calls`: a child makes no more calls than that.  `max_memory` (bytes that are resident): a
      call during which the child has more is killed, and fails with `MemoryError`; one that ends
      with more was the last of its child.  Both replace that child alone.
    - What a call logs comes out of the loggers of this process, before the call ends: a child has
      no handlers of its own, and the levels that loggers had here when it started.  What a thread
      that a call left behind logs between two calls comes with the next one.
    - Children are never forks of this process (forkserver, else spawn): the module `__main__` is
      imported under another name, as with `multiprocessing`, so scripts need their main guard.
      They get the environment as it is when they start, do not react to SIGINT and SIGTERM (the
      parent decides), and end when the parent does, even in the middle of a call.

    A call costs about 0.1 ms above what it does; a child about 10 ms, the first one more.

    :raises ValueError: a size or maximum is not above 0; the memory of processes is not known here.
    """

    def __init__(
        self,
        size: int,
        *,
        max_calls: int | None = None,
        max_memory: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        name: str = "wbengine",
    ) -> None:
        for what, value in (("max_calls", max_calls), ("max_memory", max_memory)):
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or value < 1
            ):
                raise ValueError(f"{what} must be a whole number of at least 1, not {value!r}")
        if max_memory is not None and _pool_process.memory(os.getpid()) is None:
            raise ValueError("max_memory: this system does not tell the memory of processes")
        super().__init__(size, name=name)
        self._max_calls = max_calls
        self._max_memory = max_memory
        self._initializer = initializer
        self._initargs = tuple(initargs)
        self._modules: frozenset[str] = frozenset()
        self._births = _Births()

    @property
    def pids(self) -> list[int]:
        """The processes that are alive now, in the order of the slots."""
        with self._lock:
            slots = list(self._slots)
        return [slot.pid for slot in slots if isinstance(slot, _Process) and slot.pid]

    @staticmethod
    def check() -> None:
        """Whoever is going to start one may ask first: one error instead of one for each call.

        :raises RuntimeError: this is a child itself, which imports the script that is `__main__`.
        """
        _pool_process.check_not_importing()

    def preload(self, modules: Iterable[str]) -> None:
        """Have each child import these, too, by name, before its first call; what a module costs is
        then no part of a call, and of its limits.  To be called before `start`."""
        self._modules |= {name for name in modules if name != "__main__"}

    def _make_slot(self, name: str) -> _pool_base.Slot:
        prepare, given = self._initializer, self._initargs
        if self._modules:
            prepare, given = _pool_child.prepare, (sorted(self._modules), prepare, *given)
        make = functools.partial(_pool_process.Child, name, prepare, given)
        return _Process(name, make, self._births, self._max_calls, self._max_memory)


class _Births:
    """What the slots of one pool know of children that were to come: whether any can.

    A child that imports a script which starts a pool itself ends of it, and so would all others,
    each after it ran the rest of that script.
    """

    def __init__(self) -> None:
        self._proven = False
        self._problem: ft.Failure | None = None

    @property
    def problem(self) -> ft.Failure | None:
        """Why no child can start, if that is known."""
        return self._problem

    def succeeded(self) -> None:
        self._proven = True

    def failed(self, child: _pool_process.Child, name: str) -> ft.Failure:
        """What stands for a child that is gone before it was ready."""
        what = f"process {child.pid} ({name}) {child.fate()} before it was ready"
        if self._proven or child.exit_code is None or child.exit_code < 0:
            return _pool_ends.gone(what)
        self._problem = _pool_ends.gone(f"{what}; {_pool_process.ADVICE}")
        return self._problem


class _Process(_pool_base.Slot):
    """The parent's side of one child after another."""

    def __init__(
        self,
        name: str,
        make: Callable[[], _pool_process.Child],
        births: _Births,
        max_calls: int | None,
        max_memory: int | None,
    ) -> None:
        super().__init__(name)
        self._make = make
        self._births = births
        self._max_calls = max_calls
        self._max_memory = max_memory
        self._child: _pool_process.Child | None = None
        self._lock = threading.Lock()
        self._killed = False
        # The call that the child makes now, and why it was killed, if it was.
        self._ticket: _pool_base.Ticket | None = None
        self._why: BaseException | None = None
        self._timers: list[watch.Timer] = []

    @property
    def pid(self) -> int | None:
        child = self._child
        return None if child is None else child.pid

    def open(self) -> None:
        problem = self._ensure()
        if problem is not None:
            LOG.warning("process %s did not start: %s", self.name, problem.pformat())

    def run(self, ticket: _pool_base.Ticket) -> Any:
        limit = ticket.limit
        if limit.hard is not None:
            ticket.deadline = time.time() + limit.hard
        try:
            data = _pool_child.encode_call(
                ticket.fn, ticket.args, ticket.deadline, limit.soft is not None
            )
        except exceptions.NotEncodable as error:
            return ft.Failure.from_exception(error)
        try:
            for _ in range(2):
                problem = self._ensure()
                if problem is not None:
                    return problem
                child = self._child
                assert child is not None
                if not self._begin(child, ticket):
                    return _pool_ends.cancelled(ticket, "before it started")
                if child.send(data):
                    del data
                    return self._settle(child, child.result(ticket), ticket)
                # It died between two calls: this one never reached it, another child may run it.
                self._end()
                self.close()
            return _pool_ends.gone(
                f"two processes of {self.name} died before {ticket} reached them"
            )
        except Exception as error:
            self._end()
            self.close()
            return ft.Failure.from_exception(error)

    def _begin(self, child: _pool_process.Child, ticket: _pool_base.Ticket) -> bool:
        """From now on the child makes this call; False: it was cancelled before."""
        with self._lock:
            if ticket.cancelled:
                return False
            self._ticket, self._why = ticket, None
            child.calls += 1
            limit, later = ticket.limit, watch.of_process().after
            if limit.soft is not None:
                ring = functools.partial(child.tell, _pool_child.SOFT, child.calls)
                self._timers.append(later(limit.soft, ring))
            if limit.hard is not None:
                end = functools.partial(self._put_down, child, ticket, self._overdue)
                self._timers.append(later(limit.hard, end))
            if self._max_memory is not None:
                self._timers.append(
                    later(_MEMORY_PERIOD, functools.partial(self._weigh, child, ticket))
                )
        return True

    def _end(self) -> BaseException | None:
        """The call is over; why its child was killed, if it was."""
        with self._lock:
            timers, self._timers = self._timers, []
            self._ticket, why, self._why = None, self._why, None
        for timer in timers:
            watch.of_process().call_off(timer)
        return why

    def _settle(self, child: _pool_process.Child, value: Any, ticket: _pool_base.Ticket) -> Any:
        why = self._end()
        if value is not _pool_process.GONE:
            if why is not None:
                self.worn = True  # it was killed when it had answered already, and may not be dead
                return value
            self.worn = child.calls == self._max_calls or self._overweight(child) is not None
            return value
        self.worn = True  # others have a child at hand
        self.close()
        if why is not None:
            return ft.Failure.from_exception(why)
        return _pool_ends.gone(
            f"process {child.pid} ({self.name}) {child.fate()} while it ran {ticket}"
        )

    # While a call runs, in other threads.

    def cancel(self, ticket: _pool_base.Ticket, grace: float | None) -> None:
        with self._lock:
            child = self._child
            if self._ticket is not ticket or child is None:
                return  # it is over; or about to begin, and looks itself
            child.tell(_pool_child.CANCEL, child.calls)
            if grace is not None:
                end = functools.partial(self._put_down, child, ticket, self._refused)
                self._timers.append(watch.of_process().after(max(0.0, grace), end))

    def _put_down(
        self,
        child: _pool_process.Child,
        ticket: _pool_base.Ticket,
        why: Callable[[_pool_process.Child, _pool_base.Ticket], BaseException],
    ) -> None:
        """Kill the child, if it still makes this call."""
        with self._lock:
            if self._ticket is not ticket or self._child is not child or self._why is not None:
                return
            self._why = why(child, ticket)
            child.kill()
        LOG.warning("process %s (%s) was killed: %s", child.pid, self.name, self._why)

    def _overdue(self, child: _pool_process.Child, ticket: _pool_base.Ticket) -> BaseException:
        return exceptions.TimeLimitExceeded(
            f"{ticket} did not end within its hard limit of {ticket.limit.hard or 0.0:g} s;"
            f" its process {child.pid} was killed"
        )

    def _refused(self, child: _pool_process.Child, ticket: _pool_base.Ticket) -> BaseException:
        return exceptions.Cancelled(
            f"{ticket} was cancelled, and did not end; its process {child.pid} was killed"
        )

    def _weigh(self, child: _pool_process.Child, ticket: _pool_base.Ticket) -> None:
        weight = self._overweight(child)
        if weight is not None:
            self._put_down(
                child,
                ticket,
                lambda child, ticket: MemoryError(
                    f"process {child.pid} had {weight:,} bytes of memory when it ran {ticket}, of"
                    f" {self._max_memory:,} allowed; it was killed"
                ),
            )
            return
        with self._lock:
            if self._ticket is ticket and self._child is child:
                again = functools.partial(self._weigh, child, ticket)
                self._timers.append(watch.of_process().after(_MEMORY_PERIOD, again))

    def _overweight(self, child: _pool_process.Child) -> int | None:
        """The memory of a child that has too much."""
        if self._max_memory is None:
            return None
        weight = _pool_process.memory(child.pid)
        return weight if weight is not None and weight > self._max_memory else None

    # Between calls.

    def rest(self) -> None:
        self.worn = False
        self.close()

    def _ensure(self) -> ft.Failure | None:
        """Have a child that is ready; the Failure says why there is none."""
        if self._child is not None:
            if self._child.alive():
                return None
            self.close()
        if self._births.problem is not None:
            return self._births.problem
        try:
            child = self._make()
        except Exception as error:
            return ft.Failure.from_exception(error)
        with self._lock:
            self._child = child
            killed = self._killed
        if killed:
            child.kill()
        problem = child.result(None)
        if problem is None:
            self._births.succeeded()
            return None
        self.close()
        if problem is _pool_process.GONE:
            return self._births.failed(child, self.name)
        assert isinstance(problem, ft.Failure)
        return problem

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()
