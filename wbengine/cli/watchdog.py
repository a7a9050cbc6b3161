"""Notices that a store goes silent while a command uses it: nothing else would."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from wbengine import exceptions
from wbengine.cli import stores

if TYPE_CHECKING:
    from wbengine.cli.context import Context

__all__ = ["minded"]

#: Seconds between two looks at the clock.
_LOOK: Final = 0.25


@contextlib.contextmanager
def minded(context: Context, *, ends: bool) -> Iterator[None]:
    """While this goes on, somebody else asks the store now and then.  Where that gets no answer,
    whoever waits for one gets none either: that is said, and if it `ends` the command, the process
    ends after the time of an answer, with a line and 69.

    A command that takes long, of a store that answers, goes on.
    """
    settings = context.settings
    if stores.is_of_this_process(settings) or not (ends or stores.is_database(settings)):
        yield
        return
    watchdog = _Watchdog(context, ends)
    watchdog.begin()
    try:
        yield
    finally:
        watchdog.end()


class _Watchdog:
    """One thread asks, and another one, which no driver can hold, looks at the clock."""

    def __init__(self, context: Context, ends: bool) -> None:
        self._context = context
        self._ends = ends
        self._done = threading.Event()
        #: Since when the one that asks has been waiting.
        self._since: float | None = None

    def begin(self) -> None:
        for work in (self._ask, self._mind):
            threading.Thread(target=work, name="wbengine-minding", daemon=True).start()

    def end(self) -> None:
        self._done.set()

    def _ask(self) -> None:
        settings = self._context.settings
        with contextlib.closing(stores.fetched(settings, patient=False)) as backend:
            while not self._done.wait(settings.timeout / 2):
                self._since = time.monotonic()
                # What is raised is an answer, and the command gets it too.
                with contextlib.suppress(exceptions.WbengineException, OSError):
                    stores.glance(backend)
                self._since = None

    def _mind(self) -> None:
        settings, told = self._context.settings, False
        while not self._done.wait(_LOOK):
            since = self._since
            silent = 0.0 if since is None else time.monotonic() - since
            if silent >= settings.timeout and self._ends:
                # The main thread cannot be woken from within a driver.
                os._exit(self._context.failed(stores.silent(settings)))
            if silent >= stores.SILENCE and not told:
                stores.say_silent(settings)
                told = True
            elif told and since is None:
                self._context.printer.note("the store answers again")
                told = False
