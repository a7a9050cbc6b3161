"""Who wants a run to stop, while it can."""

from __future__ import annotations

import threading

from wbengine._core.inbox import Inbox, Withdrawn
from wbengine.invocation import TaskExecutor

__all__ = ["Brake"]


class Brake:
    """The way to suspend one run, from any thread and from signal handlers.

    Once it is let go the executor may be another run's, and nothing is taken back from it.
    """

    def __init__(self, executor: TaskExecutor, inbox: Inbox) -> None:
        self._executor = executor
        self._inbox = inbox
        self._lock = threading.RLock()
        self._over = False
        self._thread = -1
        #: Nothing more is to start.
        self.suspending = False

    def take_hold(self) -> None:
        """The run begins; its loop is in the calling thread."""
        self._thread = threading.get_ident()

    def suspend(self) -> None:
        """Let nothing more start, and take back what has not started."""
        if threading.get_ident() == self._thread:
            # The loop may be in the midst of anything; it takes back what it can when it comes by.
            self.suspending = True
            self._inbox.put(None)
            return
        with self._lock:
            if not (self._over or self.suspending):
                self.suspending = True
                self._inbox.put(Withdrawn(self._executor.withdraw()))

    def disown(self) -> None:
        """The flow is somebody else's from now on: the executor forgets it, and the loop is woken.

        From any thread.
        """
        with self._lock:
            if not self._over:
                self._over = True
                self._executor.disown()
                self._inbox.put(None)

    def let_go(self) -> None:
        """The run is over: whoever still wants to suspend it comes too late."""
        with self._lock:
            self._over = True
