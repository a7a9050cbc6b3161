"""What a call takes of a processor: that does not grow while other processes have it."""

from __future__ import annotations

import os
from collections.abc import Callable


def seconds(call: Callable[[], object]) -> float:
    """Of this process, and of those that it started and that ended meanwhile."""
    before = os.times()
    call()
    return sum(os.times()[:4]) - sum(before[:4])


def least(call: Callable[[], object]) -> float:
    """The least of three tries: other threads of this process may have worked meanwhile."""
    return min(seconds(call) for _ in range(3))
