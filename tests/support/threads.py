"""Calls in several threads at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any


def call_in_threads(function: Callable[[Any], object], arguments: Iterable[Any]) -> None:
    """Call a function with each argument in a thread of its own; wait for the ends of all calls."""
    threads = [threading.Thread(target=function, args=(each,)) for each in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
