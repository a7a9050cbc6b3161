"""Worlds whose contents several processes share."""

from __future__ import annotations

import fcntl
import pickle
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from wbengine.testing._worlds.contents import Contents

__all__ = ["SharedLock"]


class SharedLock:
    """The lock of a world whose contents are in a file. Reentrant, for threads and processes.

    It reads the contents when it is acquired, and writes them when it is released.

    :param contents: the object that it changes.
    """

    def __init__(self, path: Path, contents: Contents) -> None:
        self._path: Final = path
        self._contents = contents
        self._of_thread = threading.RLock()
        self._depth = 0
        self._file: IO[bytes]
        path.touch()

    def __enter__(self) -> None:
        self._of_thread.acquire()
        self._depth += 1
        if self._depth == 1:
            self._file = self._path.open("r+b")
            fcntl.flock(self._file, fcntl.LOCK_EX)
            data = self._file.read()
            if data:
                vars(self._contents).update(pickle.loads(data))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._depth == 1:
                with self._file:  # This releases the lock.
                    self._file.seek(0)
                    self._file.write(pickle.dumps(vars(self._contents)))
                    self._file.truncate()
        finally:
            self._depth -= 1
            self._of_thread.release()
