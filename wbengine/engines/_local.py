"""Engines that run every task on this host."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent import futures
from typing import Any, Final

import futurist

from wbengine._calls import invocation as calls
from wbengine._concurrency import eventlet, time_limits
from wbengine._introspection import object_names
from wbengine._runtime import executors
from wbengine.engines import _option_table, base

__all__ = ["ParallelActionEngine", "SerialActionEngine"]


def _common(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"strict": settings["strict_results"], "limit": settings["timelimit"]}


class SerialActionEngine(base.Engine):
    """Runs one task at a time, in the thread that calls `run`.

    Async tasks run in an event loop of the engine, also one at a time. The options of the parallel
    engine are accepted and ignored, so that the kind of engine can be configured.
    """

    OPTIONS = _option_table.LOCAL

    def _make_executor(self) -> calls.TaskExecutor:
        return executors.SerialTaskExecutor(**_common(self._settings))


#: Executors that certainly call functions in this process.
_THREAD_POOLS: Final = (
    futures.ThreadPoolExecutor,
    futurist.ThreadPoolExecutor,
    futurist.GreenThreadPoolExecutor,
    futurist.SynchronousExecutor,
)

_THREADS, _PROCESSES = "threads", "processes"

_KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("threads", "thread", "threaded"), _THREADS),
    **dict.fromkeys(("greenthreads", "greenthread", "greenthreaded"), _THREADS),
    **dict.fromkeys(("processes", "process"), _PROCESSES),
}


class ParallelActionEngine(base.Engine):
    """Runs tasks in a pool of threads or processes.

    Options: `executor`: 'threads' (the default; also 'thread', 'threaded'), 'processes' (also
    'process'), or a `concurrent.futures.Executor`, which is not shut down; `max_workers`: the size
    of the engine's own pool. Executors other than those of threads in `concurrent.futures` and
    futurist may pickle their calls (Dask, loky, mpi4py and others).

    'greenthreads' (also 'greenthread', 'greenthreaded') are green threads if eventlet has patched
    the standard library, otherwise real threads (then a `futurist.GreenThreadPoolExecutor` is
    rejected). For many tasks that only wait, use async tasks: with threads, the size of the pool
    does not limit them.

    `cancel_grace` (10 seconds, None: never): time after which a cancelled task is killed if it runs
    in a child process. `wait_timeout` (of TaskFlow's process executor) is accepted and
    ignored.
    """

    OPTIONS = _option_table.LOCAL

    def _make_executor(self) -> calls.TaskExecutor:
        choice: Any = self._settings["executor"]
        workers, common = self._settings["max_workers"], _common(self._settings)
        if choice is None:
            choice = _THREADS
        if isinstance(choice, str):
            kind = _KINDS.get(choice.strip().lower())
            if kind is None:
                raise ValueError(
                    f"executor must be one of {', '.join(_KINDS)}, or a"
                    " concurrent.futures.Executor, got"
                    f" {choice!r}{object_names.hint(choice, _KINDS)}"
                )
            if kind == _PROCESSES:
                grace = self._settings["cancel_grace"]
                return executors.ProcessTaskExecutor(workers, grace=grace, **common)
            return executors.ThreadTaskExecutor(max_workers=workers, **common)
        if isinstance(choice, calls.TaskExecutor):
            self._check_unchanged()
            return choice.for_engine()
        if isinstance(choice, _THREAD_POOLS):
            eventlet.check_executor(choice)
            return executors.ThreadTaskExecutor(choice, **common)
        if isinstance(choice, futures.Executor):
            return executors.FutureProcessTaskExecutor(choice, **common)
        raise TypeError(f"executor must be a str or a concurrent.futures.Executor, got {choice!r}")

    def _check_unchanged(self) -> None:
        """Reject options that cannot change an existing executor."""
        common = _common(self._settings)
        for name, how, is_given in (
            ("strict_results", "strict=True", common["strict"]),
            ("timelimit", "limit=...", common["limit"] != time_limits.UNLIMITED),
        ):
            if is_given:
                raise ValueError(
                    f"Option {name} has no effect on an existing TaskExecutor: construct"
                    f" it with {how}"
                )
