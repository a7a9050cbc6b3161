"""SIGINT and SIGTERM of a command that runs for long: the first one ends it well, the second one at
once.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import socket
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

    Python runs a handler in the main thread, between two of its bytecodes: never, where that is
    about to wait for what only the handler would bring about, or where the system gave the signal
    to another thread.  So the numbers are read from a socket, to which Python writes them at once.
    """

    def __init__(self, first: Callable[[], Any], second: Callable[[], Any]) -> None:
        self._first = first
        self._second = second
        self._received: float | None = None
        self._handled = False
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    @property
    def received(self) -> bool:
        return self._handled or self._received is not None

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handle them here; without effect in any thread but the main one.

        Once one was received, the process is about to end, and they are handled until it does: the
        same signal may come twice.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        told, teller = self._sockets = socket.socketpair()
        teller.setblocking(False)
        threading.Thread(target=self._listen, args=(told,), daemon=True).start()
        before_told = signal.set_wakeup_fd(teller.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, self._on_signal) for number in _NUMBERS}
        _forked_processes_tell_nothing()
        try:
            yield
        finally:
            if not self.received:
                for number, handler in before.items():
                    signal.signal(number, handler)
                signal.set_wakeup_fd(before_told)
                teller.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._handled = True

    def _listen(self, told: socket.socket) -> None:
        with told:
            while numbers := told.recv(1024):
                for _ in set(numbers) & set(_NUMBERS):
                    self._on_number()

    def _on_number(self) -> None:
        now = time.monotonic()
        if self._received is None:
            self._received = now
            threading.Thread(target=self._first, daemon=True).start()
        elif now - self._received > _SAME:
            threading.Thread(target=self._second, daemon=True).start()


@functools.cache
def _forked_processes_tell_nothing() -> None:
    """Their signals are not those of this process."""
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


def leave(code: int = 1) -> NoReturn:
    """End the process at once: threads that were given up would be waited for."""
    logging.shutdown()
    if "multiprocessing.forkserver" in sys.modules:
        # Where its children met; nobody else removes it then.
        import shutil
        from multiprocessing import util

        shutil.rmtree(util.get_temp_dir(), ignore_errors=True)
    os._exit(code)
