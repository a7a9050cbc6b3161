"""A call that was submitted to a pool or an event loop."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wbengine import exceptions
from wbengine.concurrency.cancellation import Cancellation
from wbengine.concurrency.time_limits import UNLIMITED, TimeLimit
from wbengine.types import failure as ft

__all__ = ["Call", "Done", "end_fork"]

LOG = logging.getLogger("wbengine.pools")

Done = Callable[[Any], None]


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
        """Return the failure of a call that was cancelled before it started."""
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


def end_fork(pid: int) -> None:
    """Exit this process if it is a fork of `pid` that returned from the call that created it."""
    if os.getpid() != pid:
        os._exit(0)
