"""Signals of long-running commands: graceful stop, immediate stop, and state of the process."""

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

from wbengine._concurrency import fork_signals
from wbengine._introspection import object_names

__all__ = ["StopSignals", "exit_at_once", "restoring_terminal"]

#: Signals within this time in seconds count as one: supervisors that signal both a process and its
#: group deliver the signal twice.
_SAME_SIGNAL_SECONDS: Final = 0.1

#: Signals whose handler is not replaced if user code has set one, or if they are ignored (`nohup`).
_OPTIONAL: Final = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
#: Signals that stop a command.
_STOP: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)

_Act = Callable[[], Any]


class StopSignals:
    """Handler that calls `first` on the first stop signal, `second` on later ones, in new threads.

    SIGUSR1 logs the state of the process (`process_state`). SIGUSR2 has no effect.

    Python runs a signal handler in the main thread between two bytecodes. The handler never runs
    while the main thread waits for something that only the handler would cause, or if the system
    delivered the signal to another thread. Therefore a thread reads the signal numbers from a
    socket, to which Python writes them at once.
    """

    def __init__(self, first: _Act, second: _Act, work: _Act = tuple) -> None:
        self._first = first
        self._second = second
        self._work = work
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
        kept = {number for number in _OPTIONAL if signal.getsignal(number) != signal.SIG_DFL}
        numbers = set(fork_signals.NUMBERS) - kept
        previous_handlers = fork_signals.handle(self._on_signal, numbers)
        try:
            yield
        finally:
            if self.received:
                if signal.SIGHUP in numbers:
                    # Python resets handlers when it ends, but ignored signals remain ignored.
                    signal.signal(signal.SIGHUP, signal.SIG_IGN)
            else:
                for number, handler in previous_handlers.items():
                    signal.signal(number, handler)
                signal.set_wakeup_fd(previous_fd)
                writer.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._handled = self._handled or number in _STOP

    def _listen(self, reader: socket.socket) -> None:
        with reader:
            while numbers := reader.recv(1024):
                for number in set(numbers):
                    if (act := self._action(number)) is not None:
                        threading.Thread(target=act, daemon=True).start()

    def _action(self, number: int) -> _Act | None:
        # Python also writes the numbers of signals that user code handles.
        if number in _OPTIONAL and signal.getsignal(number) != self._on_signal:
            return None
        if number == signal.SIGUSR1:
            return lambda: object_names.load("wbengine._cli.process_state:log")(self._work)
        if number not in _STOP:
            return None
        now = time.monotonic()
        if self._received is None:
            self._received = now
            return self._first
        # A terminal that closes may send SIGHUP several times, and systemd sends it after another
        # signal.
        is_second = number != signal.SIGHUP and now - self._received > _SAME_SIGNAL_SECONDS
        return self._second if is_second else None


@contextlib.contextmanager
def restoring_terminal() -> Iterator[None]:
    """Let SIGTERM end this block with SystemExit, because it restores the terminal at its end.

    Threads other than the main thread are unaffected, and other handlers stay.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    fork_signals.handle(_exit_by_signal, [signal.SIGTERM])
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_by_signal(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def exit_at_once(code: int = 1) -> NoReturn:
    """End the process at once, without waiting for threads that were given up."""
    logging.shutdown()
    if "multiprocessing.forkserver" in sys.modules:
        # `os._exit` does not remove the temporary folder with the sockets of the child processes.
        import shutil
        from multiprocessing import util

        shutil.rmtree(util.get_temp_dir(), ignore_errors=True)
    os._exit(code)
