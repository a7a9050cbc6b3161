"""How much Python code something runs, however fast the machine is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def steps(call: Callable[[], object]) -> int:
    """How many lines of Python code run in this thread while it is called."""
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
    """How many times more steps one of many takes than one of few: about 1 if each costs the same.

    `prepare(count)` gives what is to be called for so many.
    """
    many = 8 * few
    return (steps(prepare(many)) / many) / (steps(prepare(few)) / few)
