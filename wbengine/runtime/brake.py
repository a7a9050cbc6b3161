"""Who wants a run to stop, or what of it to end, while it can."""

from __future__ import annotations

import threading
from collections import deque

from wbengine.invocation import TaskExecutor
from wbengine.runtime.cancelling import Cancelling, Wish
from wbengine.runtime.inbox import Inbox, Withdrawn

__all__ = ["Brake"]


class Brake:
    """The way to suspend one run, or to cancel it, from any thread and from signal handlers.

    Once it is let go the executor may be another run's, and nothing is taken back from it.
    """

    def __init__(self, executor: TaskExecutor, inbox: Inbox, cancelling: Cancelling) -> None:
        self._executor = executor
        self._inbox = inbox
        self._cancelling = cancelling
        self._lock = threading.RLock()
        self._over = False
        self._decided = False
        self._thread = -1
        #: Nothing more is to start in this run.
        self.suspending = False
        #: What is to end, as far as the loop did not come by since.
        self.wishes: deque[Wish] = deque()
        #: Nothing is to start now: for one of both reasons.
        self.pulled = False

    def take_hold(self) -> None:
        """The run begins; its loop is in the calling thread."""
        self._thread = threading.get_ident()

    def suspend(self) -> None:
        """Let nothing more start, and take back what has not started."""
        if threading.get_ident() == self._thread:
            # The loop may be in the midst of anything; it takes back what it can when it comes by.
            self.suspending = self.pulled = True
            self._inbox.put(None)
            return
        with self._lock:
            if not (self._over or self.suspending):
                self.suspending = self.pulled = True
                self._inbox.put(Withdrawn(self._executor.withdraw()))

    def cancel(self, wish: Wish) -> bool:
        """Let some atoms, or all, come to an end, and take back what has not started.

        Idempotent.  False: the run is over.
        """
        with self._lock:
            if self._over or self._decided:
                return False
            self.wishes.append(wish)
            self.pulled = True
            if threading.get_ident() == self._thread:
                if self._executor.immediate:  # a task of this very thread, maybe
                    self._cancelling.cancel(self._cancelling.meant(wish))
                self._inbox.put(None)
            else:
                # In this order: what was there before, and is not taken back, runs.
                meant = self._cancelling.meant(wish)
                taken = self._executor.withdraw()
                self._inbox.put(Withdrawn(taken))
                self._cancelling.cancel(meant.difference(taken))
            return True

    def decide(self) -> None:
        """How the run ends is decided upon now: who cancels later comes too late."""
        with self._lock:
            self._decided = True

    def granted(self) -> None:
        """The loop did what the first of the wishes is about."""
        with self._lock:
            self.wishes.popleft()
            # In this order: a signal's handler may come in between.
            self.pulled = self.suspending
            if self.wishes:
                self.pulled = True

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
