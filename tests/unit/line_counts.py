"""Number of executed Python lines, a measure that does not depend on the machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def steps(call: Callable[[], object]) -> int:
    """Return the number of Python lines that a call executes in this thread."""
    count = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def growth(prepare: Callable[[int], Callable[[], object]], few: int = 100) -> float:
    """Return the steps per item for many items, divided by those for few: about 1 if linear.

    `prepare(count)` returns the function to measure for `count` items.
    """
    many = 8 * few
    return (steps(prepare(many)) / many) / (steps(prepare(few)) / few)
