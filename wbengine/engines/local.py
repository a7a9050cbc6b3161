"""Engines that run every task on this host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, ClassVar, Final

from wbengine import _names
from wbengine import invocation as calls
from wbengine._core import executors
from wbengine.engines import action

__all__ = ["ParallelActionEngine", "SerialActionEngine"]


class SerialActionEngine(action.ActionEngine):
    """Runs one task after the other, in the thread that calls `run`."""

    def _make_executor(self) -> calls.TaskExecutor:
        return executors.SerialTaskExecutor()


_KINDS: Final[Mapping[str, Callable[[int | None], calls.TaskExecutor]]] = {
    **dict.fromkeys(
        ("threads", "thread", "threaded"),
        lambda workers: executors.ThreadTaskExecutor(max_workers=workers),
    ),
    **dict.fromkeys(
        ("processes", "process"),
        lambda workers: executors.ProcessTaskExecutor(max_workers=workers),
    ),
}


class ParallelActionEngine(action.ActionEngine):
    """Runs tasks in threads or processes, as many at a time as there are.

    Options: `executor`: 'threads' (the default; also 'thread', 'threaded'), 'processes' (also
    'process'), or a `concurrent.futures.Executor` of either sort, which is used as it is and not
    shut down; `max_workers`: the size of an own pool.
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset({"executor", "max_workers"})

    def _make_executor(self) -> calls.TaskExecutor:
        wanted: Any = self._options.get("executor")
        workers = _count(self._options.get("max_workers"))
        if wanted is None:
            wanted = "threads"
        if isinstance(wanted, str):
            make = _KINDS.get(wanted.strip().lower())
            if make is None:
                raise ValueError(
                    f"Unknown executor {wanted!r}{_names.hint(wanted, _KINDS)}; known:"
                    f" {', '.join(_KINDS)}, or a concurrent.futures.Executor"
                )
            return make(workers)
        if isinstance(wanted, calls.TaskExecutor):
            return wanted
        if isinstance(wanted, futures.ProcessPoolExecutor):
            return executors.FutureProcessTaskExecutor(wanted)
        if isinstance(wanted, futures.Executor):
            return executors.ThreadTaskExecutor(wanted)
        raise TypeError(
            f"Option executor must be a word or a concurrent.futures.Executor, not {wanted!r}"
        )


def _count(value: Any) -> int | None:
    if value is None:
        return None
    try:
        count = int(value)
    except (TypeError, ValueError):
        count = 0
    if count < 1:
        raise ValueError(f"Option max_workers must be a number, at least 1, not {value!r}")
    return count
