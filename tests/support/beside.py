"""Engines that run beside a test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def running(engine: Any, let: threading.Event | None = None) -> Iterator[None]:
    """Run an engine in a thread of its own; leaving the block sets `let`, if there is one, waits
    for the end, and raises what the run raised.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            engine.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        if let is not None:
            let.set()
        thread.join(60)
    assert not thread.is_alive()
    if errors:
        raise errors[0]
