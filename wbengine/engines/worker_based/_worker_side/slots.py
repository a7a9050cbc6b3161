"""Create the pool in which a worker runs tasks."""

from __future__ import annotations

import os
from concurrent import futures
from typing import Final, TypeAlias

from wbengine import pools
from wbengine._introspection import object_names

POOLS: Final = ("threads", "processes", "solo")
PROCESSES: Final = "processes"

_NAME: Final = "wbengine-task"

#: Default number of slots, for tasks that mostly wait.
SLOTS_PER_CORE: Final = 4
MAX_SLOTS: Final = 32


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
    """Return the pool, its number of slots and its description.

    `threads` and `processes` are short forms of a `kind` with that `concurrency`. `max_calls` and
    `max_memory` (bytes) apply to each child process.

    :raises ValueError: if the options contradict each other or are out of range.
    """
    options = {"executor": executor, "threads": threads, "processes": processes, "pool": kind}
    names = [name for name, value in options.items() if value is not None]
    if len(names) > 1:
        raise ValueError(
            f"only one of {', '.join(options)} may be given, got {' and '.join(names)}"
        )
    if concurrency is not None and names not in ([], ["pool"]):
        raise ValueError(f"only one of {names[0]} and concurrency may be given")
    if executor is not None:
        _only_processes("an executor", max_calls, max_memory)
        return _external_pool(executor)
    if threads is not None or processes is not None:
        kind, concurrency = ("threads", threads) if processes is None else (PROCESSES, processes)
    if kind is None:
        kind = "threads"
    if kind == PROCESSES:
        count = concurrency if concurrency is not None else os.cpu_count() or 1
        pool = pools.ProcessPool(count, max_calls=max_calls, max_memory=max_memory, name=_NAME)
        return pool, count, kind
    _only_processes(kind, max_calls, max_memory)
    if kind == "threads":
        count = concurrency if concurrency is not None else default_slots()
        return pools.ThreadPool(count, name=_NAME), count, kind
    if kind != "solo":
        near = object_names.hint(str(kind), POOLS)
        raise ValueError(f"pool must be one of {', '.join(POOLS)}, got {kind!r}{near}")
    if concurrency not in (None, 1):
        raise ValueError(f"pool 'solo' has one slot, got concurrency={concurrency}")
    return pools.SoloPool(name=_NAME), 1, "solo (the main thread)"


def _external_pool(executor: futures.Executor) -> tuple[Pool, int, str]:
    if isinstance(executor, futures.ProcessPoolExecutor):
        raise ValueError(
            "tasks in a ProcessPoolExecutor cannot send events: use processes_count instead"
        )
    slots = int(getattr(executor, "_max_workers", 1))
    return pools.ExternalPool(executor), slots, "of the given executor"


def _only_processes(kind: str, max_calls: int | None, max_memory: int | None) -> None:
    if max_calls is not None or max_memory is not None:
        raise ValueError(f"max_calls and max_memory require child processes, got {kind}")


def default_slots() -> int:
    return min(MAX_SLOTS, (os.cpu_count() or 1) * SLOTS_PER_CORE)
