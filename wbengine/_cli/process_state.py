"""State of a command's process in its log: tracebacks, and work in progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from wbengine import states
from wbengine._concurrency import stacks, thread_pools

__all__ = ["log"]

_RUNNING: Final = (states.RUNNING, states.REVERTING)


def log(work: Callable[[], Iterable[Any]]) -> None:
    """Log the stacks of threads, coroutines and child processes, and the work in progress.

    :param work: returns engines, and the `Life` of each worker. It may wait for a lock, so it is
        called last.
    """
    stacks.log()
    for slot in thread_pools.live_slots():
        slot.log_stacks()
    for item in work():
        for line in _flow(item.storage) if hasattr(item, "storage") else _tasks(item):
            stacks.LOG.warning("in progress: %s", line)


def _tasks(life: Any) -> Iterator[str]:
    now = time.time()
    for (request_id, name), since in zip(life.current, life.since, strict=True):
        yield f"task {name!r}, request {request_id}, for {now - since:.1f} s"


def _flow(storage: Any) -> Iterator[str]:
    detail = storage.flow_detail
    atoms = [atom.name for atom in list(detail) if atom.state in _RUNNING]
    yield f"flow {detail.name!r} ({detail.uuid}): {', '.join(atoms) or detail.state}"
