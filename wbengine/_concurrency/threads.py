"""Threads whose start is safe against Ctrl-C."""

from __future__ import annotations

import _thread
import contextvars
import threading
from typing import Final

from wbengine._concurrency import conditions

__all__ = ["Thread"]

#: Time in which a thread must begin if an interrupt arrived during its start.
_BEGIN_SECONDS: Final = 1.0


class Thread(threading.Thread):
    """A thread whose `start` Ctrl-C can interrupt safely.

    After an interrupted `start`, the thread either runs, or `ident` is None and it never runs.

    `threading.Thread.start` does not guarantee this. It waits for a `threading.Event`: an interrupt
    can leave the lock of that event locked, so that the new thread blocks forever, or can raise
    `RuntimeError: release unlocked lock`. Interrupts arrive in the main thread only. Therefore the
    main thread lets another thread call `threading.Thread.start`.
    """

    def start(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            super().start()
            return
        has_begun = conditions.Event()
        errors: list[BaseException] = []
        context, start = contextvars.copy_context(), super().start

        def begin() -> None:
            try:
                context.run(start)
            except BaseException as error:
                errors.append(error)
            has_begun.set()

        try:
            _thread.start_new_thread(begin, ())
            has_begun.wait()
        except BaseException as error:
            if not isinstance(error, Exception):
                has_begun.wait(_BEGIN_SECONDS)
            raise
        if errors:
            raise errors[0]
