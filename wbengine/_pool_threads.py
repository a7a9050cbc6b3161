"""Calls in threads of this process: many at a time, or one in the thread that serves."""

from __future__ import annotations

import functools
import logging
import threading
import time
from typing import Any, Final

from wbengine import _pool_base, _pool_ends, alarms, exceptions, watch

LOG = logging.getLogger("wbengine.pools")

#: Seconds that a thread has to come back once what it waited for was given up.
_GRACE: Final = 1.0


class _Threads(_pool_base.Pool):
    """A thread that cannot be ended can be given up, and replaced."""

    def _make_slot(self, name: str) -> _pool_base.Slot:
        return _Thread(name, self)

    def lose(self, slot: _pool_base.Slot, ticket: _pool_base.Ticket) -> bool:
        """Give up the thread that runs a call; False: the call is over."""
        with self._lock:
            if ticket.state != _pool_base.RUNNING:
                return False
            ticket.state = _pool_base.OVER
            ticket.slot = None
            self._running -= 1
            self._lost += 1
        LOG.warning(
            "thread %s of pool %r is lost: it still ran %s when the hard limit of %g s was over",
            slot.name,
            self._name,
            ticket,
            ticket.limit.hard or 0.0,
        )
        left, thread, manned = _pool_ends.overdue(ticket), slot.thread, True
        with self._lock:
            if thread is not None:
                self._serving.lose(thread)
            try:
                self._man(slot, (ticket, left))
            except RuntimeError:  # no more threads
                manned = False
                self._slots.remove(slot)
        if not manned:
            ticket.settle(left)
        return True


class ThreadPool(_Threads):
    """`size` threads of this process.

    When a call's soft limit is over, `SoftTimeLimitExceeded` is raised in its thread between two
    steps of Python code; what waits in C goes on, and so does code of the logging, importing and
    threading modules, for 50 ms.  When its hard limit is over, it fails at once with
    `TimeLimitExceeded`; its thread is lost (`lost`, and one line in the log) and another takes its
    place.  In the lost one, `TimeLimitExceeded` is raised too; what it returns is dropped.

    Coroutines that a call waits for (`loops.Loop.run`) are interrupted themselves, and cancelled
    when the hard limit is over: then no thread is lost.
    """


class SoloPool(_Threads):
    """One slot: calls run in the thread that calls `serve`, as they come.

    Limits are those of `ThreadPool`, but if that is the main thread the soft one is raised by a
    signal, and interrupts most of what waits in C.  If the thread is lost, another one goes on.
    """

    private = False

    def __init__(self, *, name: str = "wbengine") -> None:
        super().__init__(1, name=name)
        self._slots.append(self._make_slot(f"{name}-solo"))

    def serve(self) -> None:
        """Make the calls that are submitted, in this thread, until `stop` and the last one's end.

        :raises RuntimeError: another thread serves, or served, the pool.
        """
        slot = self._slots[0]
        with self._lock:
            if slot.thread is not None:
                raise RuntimeError(f"pool {self._name!r} is served by {slot.thread.name} already")
            slot.thread = threading.current_thread()
            self._serving.begin(slot.thread)
        alarms.install()
        self._serve(slot)
        self.join(None)  # if this thread was lost, another one serves


class _Thread(_pool_base.Slot):
    def __init__(self, name: str, pool: _Threads) -> None:
        super().__init__(name)
        self._pool = pool

    def run_limited(self, ticket: _pool_base.Ticket) -> Any:
        limit = ticket.limit
        if limit.hard is not None:
            ticket.deadline = time.time() + limit.hard
        expire = functools.partial(self._expire, ticket)
        return alarms.limited(limit, self.run, (ticket,), expire)

    def _expire(self, ticket: _pool_base.Ticket, alarm: alarms.Alarm) -> None:
        """The hard limit is over (in the thread of the watch)."""
        if alarm.diverted:
            # What it waits for is given up; the thread comes back by itself, unless it waits again.
            alarm.ring(exceptions.TimeLimitExceeded)
            again = functools.partial(self._give_up, ticket, alarm)
            watch.of_process().after(_GRACE, again)
        else:
            self._give_up(ticket, alarm)

    def _give_up(self, ticket: _pool_base.Ticket, alarm: alarms.Alarm) -> None:
        if self._pool.lose(self, ticket):
            alarm.ring(exceptions.TimeLimitExceeded)
