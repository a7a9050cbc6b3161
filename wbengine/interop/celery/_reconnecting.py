"""Threads of a process that each serve one connection to a broker or Redis, and reconnect."""

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
from wbengine._concurrency import conditions, threads
from wbengine.transports import _reasons

__all__ = [
    "IDLE_SECONDS", "MAX_PAUSE_SECONDS", "ReconnectLoop", "close_all", "is_lost", "is_refusal",
    "shared_instance",
]  # fmt: skip

LOG: Final = logging.getLogger(__name__)

#: Time after which an unused thread closes its connection and ends.
IDLE_SECONDS: Final = 30.0
#: Minimum and maximum pause between connection attempts. A connection that lasts longer than
#: `_STABLE_SECONDS` resets the pause.
_MIN_PAUSE_SECONDS: Final = 0.05
MAX_PAUSE_SECONDS: Final = 2.0
_STABLE_SECONDS: Final = 5.0

_T = TypeVar("_T")


class ReconnectLoop(abc.ABC):
    """A thread that serves one connection while work is pending, and for `IDLE_SECONDS` after that.

    It reopens a lost connection. All methods are thread-safe.

    :param place: a description of the peer, without passwords.
    """

    #: Whether other loops may still add work to this one while they are closed.
    closes_last: ClassVar[bool] = False

    def __init__(self, place: str) -> None:
        self.place = place
        #: Why the peer is unavailable; empty if it is available or nothing is known.
        self.unavailable_reason = ""
        self._lock = threading.RLock()
        self._changed = conditions.Condition(self._lock)
        self._stopping = conditions.Event()
        self._thread: threading.Thread | None = None
        self._used = 0.0

    def close(self, timeout: float = 5.0) -> None:
        """End the thread. Wait at most `timeout` seconds for `_serve` to finish."""
        with self._lock:
            thread = self._thread
            self._stopping.set()
            self._changed.notify_all()
        if thread is not None:
            thread.join(timeout)

    def _wake(self) -> None:
        """Notify the thread of work; start it if necessary. The caller holds `_lock`."""
        self._used = time.monotonic()
        self._changed.notify_all()
        if self._thread is None:
            self._stopping = conditions.Event()
            name = f"wbengine-celery-{type(self).__name__.lower()}"
            thread = threads.Thread(target=self._run, name=name, daemon=True)
            try:
                thread.start()
            finally:  # also after an interrupt
                self._thread = None if thread.ident is None else thread

    @property
    @abc.abstractmethod
    def _pending(self) -> int:
        """The amount of pending work."""

    @abc.abstractmethod
    def _serve(self) -> None:
        """Connect, and serve until `_is_over`. Raises an exception if the connection is lost."""

    @abc.abstractmethod
    def _on_refusal(self, error: Exception) -> None:
        """Give up all pending work after a permanent refusal by the peer."""

    def _is_over(self) -> bool:
        idle = not self._pending and time.monotonic() - self._used > IDLE_SECONDS
        return idle or self._stopping.is_set()

    def _run(self) -> None:
        pause = _MIN_PAUSE_SECONDS
        while True:
            began = time.monotonic()
            try:
                self._serve()
            except Exception as error:
                if is_refusal(error):
                    self._on_refusal(error)
                elif self._pending:
                    self._note_unavailable(_reasons.explain(error.__cause__ or error))
                    if not is_lost(error):
                        LOG.error("failed to use %s", self.place, exc_info=error)
            with self._lock:
                if self._stopping.is_set() or not self._pending:
                    self._thread, self.unavailable_reason = None, ""
                    return
            lasted = time.monotonic() - began > _STABLE_SECONDS
            pause = _MIN_PAUSE_SECONDS if lasted else min(2 * pause, MAX_PAUSE_SECONDS)
            self._stopping.wait(pause)

    def _note_unavailable(self, reason: str) -> None:
        if reason != self.unavailable_reason and not self._stopping.is_set():
            LOG.warning("%s cannot be reached (%d waiting): %s", self.place, self._pending, reason)
        self.unavailable_reason = reason

    def _note_available(self) -> None:
        if self.unavailable_reason:
            LOG.warning("%s can be reached again", self.place)
        self.unavailable_reason = ""


_LOST: Final = (
    OSError, exceptions.TransportFailure, amqp_errors.AMQPError, kombu.exceptions.KombuError,
)  # fmt: skip


def is_lost(error: BaseException) -> bool:
    """Return True if an error means that a broker or Redis is unavailable.

    redis-py need not be installed.
    """
    return isinstance(error, _LOST) or type(error).__module__ == "redis.exceptions"


def is_refusal(error: BaseException) -> bool:
    """Return True if an error is permanent, such as a wrong password or a missing library."""
    return any(
        _reasons.is_refusal(cause) or isinstance(cause, ImportError)
        for cause in (error, error.__cause__)
    )


_instances: dict[Any, Any] = {}
_lock = threading.Lock()


def shared_instance(make: Callable[..., _T], *args: Any) -> _T:
    """Return this process's only instance of `make(*args)`.

    A forked process gets its own, because it does not inherit threads.
    """
    key = os.getpid(), make, args
    with _lock:
        if key not in _instances:
            _instances[key] = make(*args)
        instance: _T = _instances[key]
        return instance


def close_all(timeout: float = 2.0) -> None:
    """Close the objects of `shared_instance` in this process; the next use creates new ones."""
    with _lock:
        instances = [_instances.pop(key) for key in list(_instances) if key[0] == os.getpid()]
    for one in sorted(instances, key=lambda one: one.closes_last):
        one.close(timeout)


atexit.register(close_all)
