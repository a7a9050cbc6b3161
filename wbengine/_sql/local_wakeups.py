"""Conductors of this process that wait for writes to a database, which other ways report later."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

import sqlalchemy as sa

from wbengine._concurrency import per_process

__all__ = ["LocalWakeups", "of_process"]


class LocalWakeups:
    """Functions that wake the conductors of a database, by its URL. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions = defaultdict[sa.URL, list[Callable[[], object]]](list)

    @contextlib.contextmanager
    def adding(self, url: sa.URL, wake: Callable[[], object]) -> Iterator[None]:
        """Let the method `wake` call a function during the block."""
        with self._lock:
            self._functions[url].append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._functions[url].remove(wake)

    def has_any(self, url: sa.URL) -> bool:
        """Return whether a conductor of this process uses the database."""
        with self._lock:
            return bool(self._functions.get(url))

    def wake(self, url: sa.URL) -> None:
        """Wake the conductors that use the database, if any."""
        with self._lock:
            functions = list(self._functions.get(url, ()))
        for function in functions:
            function()


of_process: Final = per_process.PerProcess(LocalWakeups)
