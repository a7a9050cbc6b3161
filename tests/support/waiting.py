"""Waiting for what other threads and processes do, for as long as a user is promised at most.

Seconds are those of the guide's page on promises, on a machine that does nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: How many times longer than promised anything may take, as tests run beside many others.
MARGIN = 10.0

#: Nothing is promised, but nobody would wait for longer: a process starts, a task ends.
SOON = 6.0
#: A broker is reached again after it came back, or after a connection to it was cut.
RECONNECTED = 2.0


def until(condition: Callable[[], object], within: float = SOON) -> None:
    """Wait until it holds, which takes at most `within` seconds on a machine of one's own."""
    deadline = time.monotonic() + MARGIN * within
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {MARGIN:g} times {within} s"
        time.sleep(0.01)
