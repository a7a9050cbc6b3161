"""One call that was submitted to a pool, or to an event loop, and who is told of its end."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wbengine import exceptions
from wbengine.concurrency.cancellation import Cancellation
from wbengine.concurrency.limits import UNLIMITED, TimeLimit
from wbengine.types import failure as ft

__all__ = ["Call", "Done", "end_fork"]

LOG = logging.getLogger("wbengine.pools")

Done = Callable[[Any], None]


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """`fn(*args)` for whoever makes it; `done` is told the value, or the `Failure`, once.

    `cancellation` tells the call that it is to end, and its deadline while it runs; without it, it
    has one of its own.  `always_begins`: it begins also when it was cancelled before, to hear of
    that.  `name` is that of its task, for people.
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
        """Hand over its value or `Failure`; what the receiver raises is logged."""
        try:
            self.done(value)
        except BaseException:
            LOG.exception("the receiver of the result of %s failed", self)
        # Those who may cancel it may know it for long.
        self.args, self.done = (), _ignore
        self.cancellation.close()

    def cancelled_early(self) -> ft.Failure:
        """What it comes to if it was cancelled before it started."""
        return ft.Failure.from_exception(
            exceptions.Cancelled(f"{self} was cancelled before it started")
        )

    def overdue(self) -> ft.Failure:
        """What it comes to if its hard limit is over."""
        message = f"{self} did not end within its hard limit of {self.limit.hard or 0.0:g} s"
        return ft.Failure.from_exception(exceptions.TimeLimitExceeded(message))

    def __str__(self) -> str:
        if self.name is not None:
            return f"task {self.name!r}"
        return getattr(self.fn, "__qualname__", None) or repr(self.fn)


def _ignore(value: Any) -> None:
    """It was told already."""


def end_fork(pid: int) -> None:
    """End this process if it is a fork of `pid` which a call made, and which came out of it."""
    if os.getpid() != pid:
        os._exit(0)
