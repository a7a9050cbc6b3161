"""The CPU time of a call, which other processes do not increase."""

from __future__ import annotations

import os
from collections.abc import Callable


def seconds(call: Callable[[], object]) -> float:
    """Return the CPU time of this process and of its children that ended during the call."""
    before = os.times()
    call()
    return sum(os.times()[:4]) - sum(before[:4])


def minimum_seconds(call: Callable[[], object]) -> float:
    """Return the minimum of three calls, because other threads also use CPU time."""
    return min(seconds(call) for _ in range(3))
