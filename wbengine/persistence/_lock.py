"""The lock of a storage, with the interface of TaskFlow's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["Lock"]


class Lock:
    """A reentrant lock. `with`, `read_lock()` and `write_lock()` are equivalent."""

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
        with self:
            yield self

    write_lock = read_lock
