"""Wall clocks that jump, one for each process: shared memory to which the parent writes the
offsets.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable

from wbengine._concurrency import clocks

_real: Callable[[], float] = time.time
_SIZE = struct.calcsize("d")


class Clocks:
    """The errors of the wall clocks in seconds, by number of the process."""

    def __init__(self, count: int) -> None:
        self._page = mmap.mmap(-1, max(1, count) * _SIZE)

    def jump(self, number: int, offset: float) -> None:
        struct.pack_into("d", self._page, number * _SIZE, offset)

    def install(self, number: int) -> None:
        """Use the wall clock with this number in this child process from now on."""
        page, at = self._page, number * _SIZE

        def wrong() -> float:
            offset: float = struct.unpack_from("d", page, at)[0]
            return _real() + offset

        time.time = wrong
        clocks.Clock.time = staticmethod(wrong)
