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


class _LocalActionEngine(action.ActionEngine):
    """What the engines of this host share.

    Option: `strict_results` (default False): refuse the arguments and results that could not travel
    to a worker, as a worker-based engine would: the task fails with `NotEncodable`.
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset({"strict_results"})

    @property
    def _strict(self) -> bool:
        return self._flag("strict_results", False)


class SerialActionEngine(_LocalActionEngine):
    """Runs one task after the other, in the thread that calls `run`.

    Async bodies run in an event loop of the engine's own, one after the other too.  The options of
    the parallel engine are accepted and mean nothing here, so that which of the two it is can be a
    matter of configuration.
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset({"executor", "max_workers", "wait_timeout"})

    def _make_executor(self) -> calls.TaskExecutor:
        return executors.SerialTaskExecutor(strict=self._strict)


def _threads(workers: int | None, strict: bool) -> calls.TaskExecutor:
    return executors.ThreadTaskExecutor(max_workers=workers, strict=strict)


def _processes(workers: int | None, strict: bool) -> calls.TaskExecutor:
    return executors.ProcessTaskExecutor(max_workers=workers, strict=strict)


_KINDS: Final[Mapping[str, Callable[[int | None, bool], calls.TaskExecutor]]] = {
    **dict.fromkeys(("threads", "thread", "threaded"), _threads),
    **dict.fromkeys(("greenthreads", "greenthread", "greenthreaded"), _threads),
    **dict.fromkeys(("processes", "process"), _processes),
}


class ParallelActionEngine(_LocalActionEngine):
    """Runs tasks in threads or processes, as many at a time as there are.

    Options: `executor`: 'threads' (the default; also 'thread', 'threaded'), 'processes' (also
    'process'), or a `concurrent.futures.Executor` of either sort, which is used as it is and not
    shut down; `max_workers`: the size of an own pool.

    'greenthreads' (also 'greenthread', 'greenthreaded') are threads too: green ones where eventlet
    has patched the standard library, real ones elsewhere.  For many tasks that only wait there are
    async bodies: with threads, as many as there are run at once, whatever the size of the pool.

    `wait_timeout` (of TaskFlow's process executor) is accepted: nothing is polled here.
    """

    OPTIONS: ClassVar[frozenset[str]] = frozenset({"executor", "max_workers", "wait_timeout"})

    def _make_executor(self) -> calls.TaskExecutor:
        wanted: Any = self._options.get("executor")
        workers = _count(self._options.get("max_workers"))
        strict = self._strict
        if wanted is None:
            wanted = "threads"
        if isinstance(wanted, str):
            make = _KINDS.get(wanted.strip().lower())
            if make is None:
                raise ValueError(
                    f"Unknown executor {wanted!r}{_names.hint(wanted, _KINDS)}; known:"
                    f" {', '.join(_KINDS)}, or a concurrent.futures.Executor"
                )
            return make(workers, strict)
        if isinstance(wanted, calls.TaskExecutor):
            if strict:
                raise ValueError(
                    "Option strict_results cannot change a TaskExecutor that was made already:"
                    " make it with strict=True"
                )
            return wanted
        if isinstance(wanted, futures.ProcessPoolExecutor):
            return executors.FutureProcessTaskExecutor(wanted, strict=strict)
        if isinstance(wanted, futures.Executor):
            return executors.ThreadTaskExecutor(wanted, strict=strict)
        raise TypeError(
            f"Option executor must be a word or a concurrent.futures.Executor, not {wanted!r}"
        )


def _count(value: Any) -> int | None:
    if value is None:
        return None
    try:
        count = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else 0
    except ValueError:
        count = 0
    if count < 1:
        raise ValueError(f"Option max_workers must be a number, at least 1, not {value!r}")
    return count
