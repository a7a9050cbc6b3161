"""The lock of a storage, in the words of those who know TaskFlow's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["Lock"]


class Lock:
    """Held by one thread at a time, by that one as often as it likes.

    A `with` statement takes it, and so do `read_lock()` and `write_lock()`: here they are the same.
    """

    __slots__ = ("_lock",)

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock

    def __enter__(self) -> Lock:
        self._lock.acquire()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._lock.release()

    @contextlib.contextmanager
    def read_lock(self) -> Iterator[Lock]:
        """Hold it for the length of a `with` block."""
        with self:
            yield self

    write_lock = read_lock
