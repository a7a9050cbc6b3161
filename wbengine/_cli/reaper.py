"""Process 1 of a container: a parent of the command that reaps orphaned processes."""

from __future__ import annotations

import os
import signal
from typing import Final, NoReturn

from wbengine._concurrency import fork_signals

__all__ = ["continue_in_child"]

_AWAITED: Final = (signal.SIGCHLD, *fork_signals.NUMBERS)

#: Added to the number of the signal that ended the command, as shells do.
_EXIT_BY_SIGNAL: Final = 128


def continue_in_child() -> None:
    """Return in a child process. This process forwards signals to it, and ends when it ends.

    Process 1 becomes the parent of each process whose parent has ended. If nothing reads the exit
    status of such a process, it remains as a zombie. A worker cannot read them: it would also
    receive the status of processes that its tasks and pools wait for.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    child = os.fork()
    if child:
        _reap(child)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reap(child: int) -> NoReturn:
    while True:
        received = signal.sigwaitinfo(_AWAITED)
        if received.si_signo == signal.SIGCHLD:
            _reap_ended(child)
        elif received.si_code <= 0:  # Others are from the terminal, which also signals the child.
            os.kill(child, received.si_signo)


def _reap_ended(child: int) -> None:
    while (ended := os.waitpid(-1, os.WNOHANG))[0]:
        pid, status = ended
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else _EXIT_BY_SIGNAL - code)
