"""SIGINT and SIGTERM of a command that runs for long: the first one ends it well, the second one at
once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NoReturn

__all__ = ["StopSignals", "leave"]

_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)

#: Signals so close to each other, in seconds, are one: supervisors that signal a process and its
#: group deliver it twice.
_SAME: Final = 0.1


class StopSignals:
    """Calls `first` upon the first signal, and `second` upon each later one, in threads of their
    own.
    """

    def __init__(self, first: Callable[[], Any], second: Callable[[], Any]) -> None:
        self._first = first
        self._second = second
        self._received: float | None = None

    @property
    def received(self) -> bool:
        return self._received is not None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handle them here; without effect in any thread but the main one.

        Once one was received, the process is about to end, and they are handled until it does: the
        same signal may come twice.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in _NUMBERS}
        try:
            yield
        finally:
            if not self.received:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A handler runs between two bytecodes of the main thread, which may hold any lock: all it
        # does is start a thread.
        now = time.monotonic()
        if self._received is None:
            self._received = now
            threading.Thread(target=self._first, daemon=True).start()
        elif now - self._received > _SAME:
            threading.Thread(target=self._second, daemon=True).start()


def leave(code: int = 1) -> NoReturn:
    """End the process at once: threads that were given up would be waited for."""
    logging.shutdown()
    if "multiprocessing.forkserver" in sys.modules:
        # Where its children met; nobody else removes it then.
        import shutil
        from multiprocessing import util

        shutil.rmtree(util.get_temp_dir(), ignore_errors=True)
    os._exit(code)
