"""Workers in threads of the process that tests them: real ones, which are always stopped."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

from wbengine.engines.worker_based import worker as workers

__all__ = ["worker_in_thread"]

#: Seconds that a worker may take to be there, and to end.
_PATIENCE: Final = 60.0


@contextlib.contextmanager
def worker_in_thread(
    url: str, *tasks: Any, topic: Any = "t", exchange: str = "default", **options: Any
) -> Iterator[workers.Worker]:
    """A worker for these `tasks` (classes or modules), which takes requests, and has stopped
    afterwards; `options` are those of `Worker`.

    :raises AssertionError: it is not there, or does not end, in a minute.
    """
    made = workers.Worker(exchange, topic, list(tasks), url=url, **options)
    thread = threading.Thread(target=made.run, kwargs={"display_banner": False}, daemon=True)
    thread.start()
    assert made.wait(_PATIENCE), f"worker {made.identity} is not there"
    try:
        yield made
    finally:
        made.stop()
        thread.join(_PATIENCE)
        assert not thread.is_alive(), f"worker {made.identity} did not end"
