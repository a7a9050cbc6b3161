"""Threads that are started safely where Ctrl-C may interrupt."""

from __future__ import annotations

import _thread
import contextvars
import threading
from typing import Final

from wbengine.concurrency import conditions

__all__ = ["Thread"]

#: Maximum time in which a thread begins, if it was started just before an interrupt.
_BEGIN_SECONDS: Final = 1.0


class Thread(threading.Thread):
    """A thread whose `start` may be interrupted: then it runs, or (`ident` is None) never will.

    `threading.Thread.start` waits for a `threading.Event`. An interrupt can leave the lock of that
    event locked, so that the new thread never leaves its first lines, or become a
    `RuntimeError: release unlocked lock`. Interrupts arrive in the main thread only. There, another
    thread calls `threading.Thread.start`.
    """

    def start(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            super().start()
            return
        begun = conditions.Event()
        errors: list[BaseException] = []
        context, start = contextvars.copy_context(), super().start

        def begin() -> None:
            try:
                context.run(start)
            except BaseException as error:
                errors.append(error)
            begun.set()

        try:
            _thread.start_new_thread(begin, ())
            begun.wait()
        except BaseException as error:
            if not isinstance(error, Exception):
                begun.wait(_BEGIN_SECONDS)
            raise
        if errors:
            raise errors[0]
