"""Workers in threads of the test's process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

from wbengine.engines.worker_based import worker as workers

__all__ = ["worker_in_thread"]

#: Maximum time for a worker to start, and to stop.
_TIMEOUT_SECONDS: Final = 60.0


@contextlib.contextmanager
def worker_in_thread(
    url: str, *tasks: Any, topic: Any = "t", exchange: str = "default", **options: Any
) -> Iterator[workers.Worker]:
    """Run a worker with these `tasks` (classes or modules) for the length of a `with` block.

    :param options: arguments of `Worker`.
    :raises AssertionError: if the worker does not start or stop within a minute.
    """
    worker = workers.Worker(exchange, topic, list(tasks), url=url, **options)
    thread = threading.Thread(target=worker.run, kwargs={"display_banner": False}, daemon=True)
    thread.start()
    assert worker.wait(_TIMEOUT_SECONDS), f"worker {worker.identity} did not start"
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(_TIMEOUT_SECONDS)
        assert not thread.is_alive(), f"worker {worker.identity} did not end"
