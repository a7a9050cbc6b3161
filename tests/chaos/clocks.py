"""Wall clocks that jump, one for each process: a page of memory that whoever forks them writes."""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable

from wbengine import _clock

_real: Callable[[], float] = time.time
_SIZE = struct.calcsize("d")


class Clocks:
    """By how much the wall clocks of processes are wrong, in seconds, by number of the process."""

    def __init__(self, count: int) -> None:
        self._page = mmap.mmap(-1, max(1, count) * _SIZE)

    def jump(self, number: int, offset: float) -> None:
        struct.pack_into("d", self._page, number * _SIZE, offset)

    def install(self, number: int) -> None:
        """In a child: from now on, its wall clock is that of this number."""
        page, at = self._page, number * _SIZE

        def wrong() -> float:
            offset: float = struct.unpack_from("d", page, at)[0]
            return _real() + offset

        time.time = wrong
        _clock.Clock.time = staticmethod(wrong)
