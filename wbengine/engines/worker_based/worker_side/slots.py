"""The slots of a worker: where the tasks run that it takes, and how many at once."""

from __future__ import annotations

import os
from concurrent import futures
from typing import Final, TypeAlias

from wbengine import pools

#: The kinds of pools, by name.
POOLS: Final = ("threads", "processes", "solo")
PROCESSES: Final = "processes"

_NAME: Final = "wbengine-task"

#: Slots of a worker that was not told how many: for tasks that mostly wait.
SLOTS_PER_CORE: Final = 4
MOST_SLOTS: Final = 32


#: The place where tasks run.
Pool: TypeAlias = pools.Pool | pools.ExternalPool


def make_pool(
    executor: futures.Executor | None = None,
    threads: int | None = None,
    processes: int | None = None,
    *,
    kind: str | None = None,
    concurrency: int | None = None,
    max_calls: int | None = None,
    max_memory: int | None = None,
) -> tuple[Pool, int, str]:
    """The place, the number of slots in it, and what they are, for people.

    `threads` and `processes` are short for a `kind` ('threads', 'processes' or 'solo') with that
    `concurrency`.  `max_calls` and `max_memory` (bytes) are for each child process.

    :raises ValueError: the options contradict each other, or are out of range.
    """
    given = {"executor": executor, "threads": threads, "processes": processes, "pool": kind}
    wanted = [name for name, value in given.items() if value is not None]
    if len(wanted) > 1:
        raise ValueError(f"give one of {', '.join(given)}, not {' and '.join(wanted)}")
    if concurrency is not None and wanted not in ([], ["pool"]):
        raise ValueError(f"give {wanted[0]} or a concurrency, not both")
    if executor is not None:
        _only_processes("an executor", max_calls, max_memory)
        return _given(executor)
    if threads is not None or processes is not None:
        kind, concurrency = ("threads", threads) if processes is None else (PROCESSES, processes)
    if kind is None:
        kind = "threads"
    if kind == PROCESSES:
        count = concurrency if concurrency is not None else os.cpu_count() or 1
        made = pools.ProcessPool(count, max_calls=max_calls, max_memory=max_memory, name=_NAME)
        return made, count, kind
    _only_processes(kind, max_calls, max_memory)
    if kind == "threads":
        count = concurrency if concurrency is not None else default_slots()
        return pools.ThreadPool(count, name=_NAME), count, kind
    if kind != "solo":
        raise ValueError(f"pool must be one of {', '.join(POOLS)}, not {kind!r}")
    if concurrency not in (None, 1):
        raise ValueError(f"pool 'solo' has one slot, not {concurrency}")
    return pools.SoloPool(name=_NAME), 1, "solo (the main thread)"


def _given(executor: futures.Executor) -> tuple[Pool, int, str]:
    if isinstance(executor, futures.ProcessPoolExecutor):
        raise ValueError(
            "tasks cannot tell events out of a ProcessPoolExecutor: give processes_count instead"
        )
    slots = int(getattr(executor, "_max_workers", 1))
    return pools.ExternalPool(executor), slots, "of a given executor"


def _only_processes(kind: str, max_calls: int | None, max_memory: int | None) -> None:
    if max_calls is not None or max_memory is not None:
        raise ValueError(f"a limit of calls or memory per child needs processes, not {kind}")


def default_slots() -> int:
    """Slots of a worker that was not told how many."""
    return min(MOST_SLOTS, (os.cpu_count() or 1) * SLOTS_PER_CORE)
