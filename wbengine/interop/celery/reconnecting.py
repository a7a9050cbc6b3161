"""Threads of a process that serve over one connection to a broker, or a Redis, and outlast it."""

from __future__ import annotations

import abc
import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeVar

import kombu
from amqp import exceptions as amqp_errors

from wbengine import exceptions
from wbengine.engines.worker_based.connections import connecting
from wbengine.transports import reasons

__all__ = [
    "IDLE", "LONGEST_PAUSE", "ReconnectLoop", "close_all", "is_lost", "is_refusal", "one_for",
]  # fmt: skip

LOG: Final = logging.getLogger(__name__)

#: Seconds after which a thread that is not used lets go of its connection, and ends.
IDLE: Final = 30.0
#: Seconds between attempts to reach a broker or a Redis, at first and at most; a connection that
#: lasted for so many counts as good.
_FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
_LASTED: Final = 5.0

_T = TypeVar("_T")


class ReconnectLoop(abc.ABC):
    """Serves over one connection, in a thread of its own, while there is something to do and for
    `IDLE` seconds more.  A connection that is lost is made again.  All methods may be called from
    any thread.

    :param place: what it is connected to, in words, without passwords.
    """

    #: Others have something for it when they are closed.
    closes_last: ClassVar[bool] = False

    def __init__(self, place: str) -> None:
        self.place = place
        #: Why it cannot be reached now; empty: nothing is known against it.
        self.why = ""
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._used = 0.0

    def close(self, timeout: float = 5.0) -> None:
        """End the thread, once `_serve` finds that it is over, or after `timeout` seconds."""
        with self._changed:
            thread = self._thread
            self._stopping.set()
            self._changed.notify()
        if thread is not None:
            thread.join(timeout)

    def _wake(self) -> None:
        """There is something to do; called with the lock of `_changed` held."""
        self._used = time.monotonic()
        self._changed.notify()
        if self._thread is None:
            self._stopping = threading.Event()
            name = f"wbengine-celery-{type(self).__name__.lower()}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    @property
    @abc.abstractmethod
    def _pending(self) -> int:
        """How much there is to do."""

    @abc.abstractmethod
    def _serve(self) -> None:
        """Connect, and serve until `_is_over`; raises when the connection is lost."""

    @abc.abstractmethod
    def _refused(self, error: Exception) -> None:
        """It says no, and would to all that is pending: give that up."""

    def _is_over(self) -> bool:
        idle = not self._pending and time.monotonic() - self._used > IDLE
        return idle or self._stopping.is_set()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                self._serve()
            except Exception as error:
                if is_refusal(error):
                    self._refused(error)
                elif self._pending:
                    self._away(reasons.explain(error.__cause__ or error))
                    if not is_lost(error):
                        LOG.error("%s cannot be served", self.place, exc_info=error)
            with self._changed:
                if self._stopping.is_set() or not self._pending:
                    self._thread, self.why = None, ""
                    return
            lasted = time.monotonic() - began > _LASTED
            pause = _FIRST_PAUSE if lasted else min(2 * pause, LONGEST_PAUSE)
            self._stopping.wait(pause)

    def _away(self, why: str) -> None:
        if why != self.why and not self._stopping.is_set():
            LOG.warning("%s cannot be reached (%d wait): %s", self.place, self._pending, why)
        self.why = why

    def _back(self) -> None:
        if self.why:
            LOG.warning("%s can be reached again", self.place)
        self.why = ""


_LOST: Final = (
    OSError, exceptions.TransportFailure, amqp_errors.AMQPError, kombu.exceptions.KombuError,
)  # fmt: skip


def is_lost(error: BaseException) -> bool:
    """Whether an error says that a broker, or a Redis, is away; redis-py need not be installed."""
    return isinstance(error, _LOST) or type(error).__module__ == "redis.exceptions"


def is_refusal(error: BaseException) -> bool:
    """Whether waiting does not mend an error: a wrong password, a library that is missing."""
    return any(
        connecting.is_refusal(one) or isinstance(one, ImportError)
        for one in (error, error.__cause__)
    )


# Those of this process. ---------------------------------------------------------------------------

_made: dict[Any, Any] = {}
_lock = threading.Lock()


def one_for(make: Callable[..., _T], *args: Any) -> _T:
    """The one object of this process that `make(*args)` makes: threads are not inherited."""
    key = os.getpid(), make, args
    with _lock:
        if key not in _made:
            _made[key] = make(*args)
        found: _T = _made[key]
        return found


def close_all(timeout: float = 2.0) -> None:
    """Close what `one_for` made in this process; the next use makes another one."""
    with _lock:
        found = [_made.pop(key) for key in list(_made) if key[0] == os.getpid()]
    for one in sorted(found, key=lambda one: one.closes_last):
        one.close(timeout)


atexit.register(close_all)
