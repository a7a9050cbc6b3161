"""SIGINT and SIGTERM of long-running commands: graceful stop, then immediate stop."""

from __future__ import annotations

import contextlib
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

from wbengine.concurrency import fork_signals

__all__ = ["StopSignals", "exit_at_once"]

#: Signals within this time in seconds count as one: supervisors that signal both a process and its
#: group deliver the signal twice.
_SAME_SIGNAL_SECONDS: Final = 0.1


class StopSignals:
    """Handler that calls `first` on the first signal, `second` on later ones, in new threads.

    Python runs a signal handler in the main thread between two bytecodes. The handler never runs
    while the main thread waits for something that only the handler would cause, or if the system
    delivered the signal to another thread. Therefore a thread reads the signal numbers from a
    socket, to which Python writes them at once.
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
        """Handle the signals in this block. Threads other than the main thread are unaffected.

        After a signal was received, the handlers remain installed until the process ends, because
        the same signal may arrive twice.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        reader, writer = self._sockets = socket.socketpair()
        writer.setblocking(False)
        threading.Thread(target=self._listen, args=(reader,), daemon=True).start()
        previous_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        previous_handlers = fork_signals.handle(self._on_signal)
        try:
            yield
        finally:
            if not self.received:
                for number, handler in previous_handlers.items():
                    signal.signal(number, handler)
                signal.set_wakeup_fd(previous_fd)
                writer.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._handled = True

    def _listen(self, reader: socket.socket) -> None:
        with reader:
            while numbers := reader.recv(1024):
                for _ in set(numbers) & set(fork_signals.NUMBERS):
                    self._on_number()

    def _on_number(self) -> None:
        now = time.monotonic()
        if self._received is None:
            self._received = now
            threading.Thread(target=self._first, daemon=True).start()
        elif now - self._received > _SAME_SIGNAL_SECONDS:
            threading.Thread(target=self._second, daemon=True).start()


def exit_at_once(code: int = 1) -> NoReturn:
    """End the process at once, without waiting for threads that were given up."""
    logging.shutdown()
    if "multiprocessing.forkserver" in sys.modules:
        # `os._exit` does not remove the temporary folder with the sockets of the child processes.
        import shutil
        from multiprocessing import util

        shutil.rmtree(util.get_temp_dir(), ignore_errors=True)
    os._exit(code)
