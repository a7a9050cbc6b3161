"""The slots of a worker: where the tasks run that it takes, and how many at once."""

from __future__ import annotations

import os
from concurrent import futures
from typing import Any, Final, Protocol

from wbengine import pools
from wbengine.types import failure as ft

__all__ = ["default_slots", "make_pool"]

#: Slots of a worker that was not told how many: for tasks that mostly wait.
SLOTS_PER_CORE: Final = 4
MOST_SLOTS: Final = 32


class Pool(Protocol):
    """What a worker needs of the place where tasks run (see `wbengine.pools`)."""

    def submit(self, fn: Any, args: tuple[Any, ...], done: Any, on_event: Any) -> Any: ...
    def start(self) -> None: ...
    def stop(self, wait: bool = True, kill: bool = False) -> None: ...


class _Given:
    """A pool over somebody's own executor, which is not ours to stop."""

    def __init__(self, executor: futures.Executor) -> None:
        self._executor = executor

    def submit(self, fn: Any, args: tuple[Any, ...], done: Any, on_event: Any) -> None:
        def finished(future: futures.Future[Any]) -> None:
            try:
                value = future.result()
            except BaseException as error:  # also of a pool that dropped it
                value = ft.Failure.from_exception(error)
            done(value)

        self._executor.submit(fn, *args, emit=on_event).add_done_callback(finished)

    def start(self) -> None:
        pass

    def stop(self, wait: bool = True, kill: bool = False) -> None:
        pass


def make_pool(
    executor: futures.Executor | None, threads: int | None, processes: int | None
) -> tuple[Pool, int, str]:
    """The place, the number of slots in it, and what they are, for people."""
    if sum(option is not None for option in (executor, threads, processes)) > 1:
        raise ValueError("give one of executor, threads_count and processes_count, not several")
    if isinstance(executor, futures.ProcessPoolExecutor):
        raise ValueError(
            "tasks cannot tell events out of a ProcessPoolExecutor: give processes_count instead"
        )
    if executor is not None:
        slots = int(getattr(executor, "_max_workers", 1))
        return _Given(executor), slots, "of a given executor"
    if processes is not None:
        return pools.ProcessPool(processes, name="wbengine-task"), processes, "processes"
    count = threads if threads is not None else default_slots()
    return pools.ThreadPool(count, name="wbengine-task"), count, "threads"


def default_slots() -> int:
    """Slots of a worker that was not told how many."""
    return min(MOST_SLOTS, (os.cpu_count() or 1) * SLOTS_PER_CORE)
