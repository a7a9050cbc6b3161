"""A gate that keeps SQLite connections closed while this process forks.

SQLite keeps the locks of a process in its memory. A child inherits this memory, but not the locks:
its connections, also new ones, would rely on locks that only the parent has. When the parent
releases them, another connection removes the write-ahead log into which the child still writes.
Therefore a process closes its connections before it forks, and parent and child open their own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Final

from wbengine._concurrency import conditions

__all__ = ["ForkGate"]

LOG: Final = logging.getLogger(__name__)

#: Maximum time that a fork waits for the end of transactions.
_FORK_WAIT_SECONDS: Final = 30.0


class ForkGate:
    """A context manager for the use of connections. A fork waits for the threads inside it.

    Threads that enter during a fork wait for its end. A thread that is inside can enter again, and
    the thread that forks can enter: a finalizer that runs there can close a store.

    :param close: closes all connections. It is called before a fork, when no thread is inside.
    """

    def __init__(self, close: Callable[[], object]) -> None:
        self._close = close
        self._reset()
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork,
            after_in_child=self._after_fork_in_child,
        )

    def _reset(self) -> None:
        self._forking = threading.RLock()
        self._is_closed = False
        self._forking_thread: int | None = None
        self._lock = threading.Lock()
        self._changed = conditions.Condition(self._lock)
        # How often each thread has entered. Without a lock: threads enter before they read
        # `_is_closed`, and a fork sets it before it reads `_users`.
        self._users: dict[int, int] = {}

    def __enter__(self) -> None:
        me = threading.get_ident()
        depth = self._users.get(me, 0)
        self._users[me] = depth + 1
        while self._is_closed and not depth and self._forking_thread != me:
            self.__exit__()
            self._changed.wait_for(lambda: not self._is_closed)
            self._users[me] = 1

    def __exit__(self, *exc_info: object) -> None:
        me = threading.get_ident()
        if self._users[me] > 1:  # A finalizer can close a store inside of a transaction.
            self._users[me] -= 1
            return
        del self._users[me]
        if self._is_closed:
            self._notify()

    def _notify(self) -> None:
        with self._lock:
            self._changed.notify_all()

    def _before_fork(self) -> None:
        self._forking.acquire()
        self._forking_thread = threading.get_ident()
        self._is_closed = True
        me = {self._forking_thread}  # A signal handler can fork while its own thread is inside.
        self._changed.wait_for(lambda: set(self._users) <= me, _FORK_WAIT_SECONDS)
        if not self._users:
            self._close()
        else:
            LOG.warning(
                "This process forks during a transaction of an SQLite database: the child must not"
                " use this database"
            )

    def _after_fork(self) -> None:
        self._is_closed = False
        self._forking_thread = None
        self._notify()
        self._forking.release()

    def _after_fork_in_child(self) -> None:
        me = threading.get_ident()
        users = {me: self._users[me]} if me in self._users else {}
        self._reset()
        self._users = users
