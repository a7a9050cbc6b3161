"""A call that was submitted to a pool or an event loop, and its cancellation."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wbengine import exceptions
from wbengine._concurrency.time_limits import UNLIMITED, TimeLimit
from wbengine.types import failure as ft

__all__ = ["Call", "Cancellation", "Done"]

LOG = logging.getLogger("wbengine.pools")

Done = Callable[[Any], None]


class Cancellation:
    """The cancellation state of a call. Thread-safe.

    :ivar cancelled: whether the call was cancelled.
    :ivar deadline: end of the hard time limit in Unix seconds; None if the call does not run or has
        no limit.
    :ivar prevented: whether the call was cancelled before it started. It never runs.
    :ivar left: whether the run of the flow was interrupted. A later run continues the work that the
        call started outside of this process.
    """

    # Class attributes, because each call has a token and few calls are cancelled.
    cancelled: bool = False
    deadline: float | None = None
    prevented: bool = False
    left: bool = False
    _callbacks: tuple[Callable[[], object], ...] = ()

    def cancel(self) -> None:
        """Cancel the call. This thread runs the callbacks in order. Idempotent."""
        self.cancelled = True
        self._call_back()

    def on_cancel(self, callback: Callable[[], object]) -> None:
        """Run `callback()` when the call is cancelled, or now if it is already cancelled.

        In rare cases it runs twice. Only the thread that owns the call may use this.
        """
        # No lock is needed: `cancel` sets the flag before it reads the callbacks.
        self._callbacks += (callback,)
        if self.cancelled:
            self._call_back()

    def close(self) -> None:
        self._callbacks = ()

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            callback()


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """A call `fn(*args)`. The callback `done` receives the value or the `Failure`, once.

    :ivar cancellation: cancels the call, and contains its deadline while it runs.
    :ivar always_begins: whether the call begins even if it was cancelled before, so that `fn` can
        react to the cancellation.
    :ivar name: name of the task, for messages.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    done: Done
    limit: TimeLimit = UNLIMITED
    cancellation: Cancellation = field(default_factory=Cancellation)
    name: str | None = field(default=None, kw_only=True)
    always_begins: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.limit is not UNLIMITED and self.limit == UNLIMITED:
            self.limit = UNLIMITED

    def complete(self, value: Any) -> None:
        """Pass the value or `Failure` to `done`. Log its exceptions."""
        try:
            self.done(value)
        except BaseException:
            LOG.exception("the callback for the result of %s failed", self)
        # Release these now: the caller may keep the call for a long time, to cancel it.
        self.args, self.done = (), _ignore
        self.cancellation.close()

    def cancelled_early(self) -> ft.Failure:
        """Record that the call was cancelled before it started, and return its failure."""
        self.cancellation.prevented = True
        return ft.Failure.from_exception(
            exceptions.Cancelled(f"{self} was cancelled before it started")
        )

    def overdue(self) -> ft.Failure:
        """Return the failure of a call that exceeded its hard limit."""
        message = f"{self} did not end within its hard limit of {self.limit.hard or 0.0:g} s"
        return ft.Failure.from_exception(exceptions.TimeLimitExceeded(message))

    def __str__(self) -> str:
        if self.name is not None:
            return f"task {self.name!r}"
        return getattr(self.fn, "__qualname__", None) or repr(self.fn)


def _ignore(value: Any) -> None:
    """Do nothing. This replaces `done` after its call."""
