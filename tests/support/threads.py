"""Calls in several threads at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def call_in_threads(call: Callable[[_T], _R], values: Iterable[_T]) -> list[_R]:
    """Call a function with each value in its own thread; return the results in this order.

    :raises Exception: the first error of the calls, after all have ended.
    """
    arguments = list(values)
    with ThreadPoolExecutor(len(arguments)) as threads:
        return list(threads.map(call, arguments))
