"""Waiting for other threads and processes, for the documented maximum times.

The times are those of `delivery_guarantees.rst`, on an idle machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: Factor for all times, because tests share the machine with many other processes.
MARGIN = 10.0

#: Time for events without a documented maximum: a process starts, a task ends.
SOON = 6.0
#: Time to reconnect after a broker returned or a connection was cut.
RECONNECTED = 2.0


def until(condition: Callable[[], object], within: float = SOON) -> None:
    """Wait until the condition is true, which takes at most `within` seconds on an idle machine."""
    deadline = time.monotonic() + MARGIN * within
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {MARGIN:g} times {within} s"
        time.sleep(0.01)
