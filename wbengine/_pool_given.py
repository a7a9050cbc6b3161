"""Calls in somebody else's pool, under the contract of ours as far as it allows."""

from __future__ import annotations

import functools
import os
import threading
import time
from concurrent import futures
from typing import Any

from wbengine import _pool_base, _pool_ends, alarms, exceptions, limits
from wbengine.types import failure as ft


class GivenPool:
    """A `concurrent.futures.Executor`, which is neither started nor stopped here.

    Its threads cannot be replaced: a call whose hard limit is over fails at once, and goes on to
    occupy its thread.  Where calls leave the process (`remote`), they are given None as `emit`, and
    so are not told of cancelling; they have to keep to their limits themselves.
    """

    def __init__(self, executor: futures.Executor, *, remote: bool = False) -> None:
        self._executor = executor
        self._remote = remote
        self._lock = threading.Lock()
        # What may still be withdrawn, or told of.  Whoever takes an entry out decides its fate.
        self._pending: dict[futures.Future[Any], _pool_base.Ticket] = {}

    #: Nobody knows what its threads are, and do next.
    private = settles = goes_on = False

    @property
    def unfinished(self) -> int:
        """How many calls wait or run."""
        return len(self._pending)

    def call_others(self) -> None:
        """Nothing: they look for themselves."""

    def start(self) -> None:
        """Nothing: whoever gave the executor did that."""

    def stop(self, wait: bool = True, kill: bool = False) -> None:
        """Nothing: whoever gave the executor may need it."""

    def submit(
        self,
        fn: Any,
        args: tuple[Any, ...],
        done: _pool_base.Done,
        on_event: _pool_base.OnEvent | None = None,
        limit: limits.TimeLimit = limits.UNLIMITED,
        what: str | None = None,
        *,
        lazily: bool = False,
    ) -> _pool_base.Ticket:
        """Run `fn(*args, emit)` some time.

        :raises RuntimeError: the executor was shut down; whatever else it raises.
        """
        if limit == limits.UNLIMITED:
            limit = limits.UNLIMITED
        ticket = _pool_base.Ticket(self, fn, args, done, on_event, limit, what)
        if self._remote:
            future = self._executor.submit(fn, *(*args, None))
        else:
            future = self._executor.submit(self._run, ticket)
        ticket.slot = future
        self._watch(future, ticket)
        return ticket

    def withdraw(self) -> list[_pool_base.Ticket]:
        """Take back every call that has not started, in order; their `done` is never called."""
        taken = []
        for future in self._pending.copy():
            ticket = self._pending.pop(future, None)
            if ticket is None:
                continue  # it ended just now
            if future.cancel():
                taken.append(ticket)
            else:
                self._watch(future, ticket)  # it runs, or has ended just now
        return taken

    def cancel(self, ticket: _pool_base.Ticket, grace: float | None = None) -> None:
        """See `Ticket.cancel`; nothing is killed."""
        ticket.cancelled = True
        ticket.slot.cancel()

    def _watch(self, future: futures.Future[Any], ticket: _pool_base.Ticket) -> None:
        self._pending[future] = ticket
        future.add_done_callback(self._ended)

    def _ended(self, future: futures.Future[Any]) -> None:
        ticket = self._pending.pop(future, None)
        if ticket is None:
            return  # withdrawn, or told already
        value: Any
        if not future.cancelled():
            problem = future.exception()
            value = ft.Failure.from_exception(problem) if problem else future.result()
        elif ticket.cancelled:
            value = _pool_ends.cancelled(ticket, "before it started")
        else:
            value = ft.Failure.from_exception(
                exceptions.ExecutionFailure(f"the pool dropped {ticket} before it started")
            )
        self._settle(ticket, value)

    def _settle(self, ticket: _pool_base.Ticket, value: Any) -> None:
        with self._lock:
            if ticket.state == _pool_base.OVER:
                return
            ticket.state = _pool_base.OVER
        ticket.settle(value)

    # In the threads of the executor.

    def _run(self, ticket: _pool_base.Ticket) -> Any:
        pid = os.getpid()
        limit = ticket.limit
        try:
            if limit is limits.UNLIMITED:
                return ticket.fn(*ticket.args, ticket)
            if limit.hard is not None:
                ticket.deadline = time.time() + limit.hard
            expire = functools.partial(self._expire, ticket)
            return alarms.limited(limit, ticket.fn, (*ticket.args, ticket), expire)
        except BaseException as error:
            return ft.Failure.from_exception(error)
        finally:
            if os.getpid() != pid:  # a fork that the call made, and that came out of it as well
                os._exit(0)
            ticket.on_event = None

    def _expire(self, ticket: _pool_base.Ticket, alarm: alarms.Alarm) -> None:
        """Its hard limit is over (in the thread of the watch, which has others to serve)."""
        args = (ticket, _pool_ends.overdue(ticket))
        threading.Thread(target=self._settle, args=args, name="wbengine-overdue").start()
        alarm.ring(exceptions.TimeLimitExceeded)
